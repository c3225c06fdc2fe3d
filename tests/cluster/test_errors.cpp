// A wrong call on one rank is the same Error on all of them, and no rank waits for another.
#include <gtest/gtest.h>

#include <functional>

#include "ranks.h"
#include "sharded_case.h"
#include "support/errors.h"

namespace attn::test {
namespace {

/// A call that every rank makes; `change` makes that of the last rank another one.
struct Call {
  cluster::Sharding sharding = cluster::Placement::zigzag(64, world().size(), 4);
  int64_t n = sharding.queries.tokens(world().rank());
  Array<4> q{DType::float32, {1, 4, n, 8}}, k{DType::float32, {1, 2, n, 8}}, out = q;
  Array<3> lse{DType::float32, {1, 4, n}};
  Array<4> bias{DType::float32, {1, 1, 1, 64}};
  AttentionOptions options;
  cluster::Schedule schedule = cluster::Schedule::ring;
  AttentionGradients gradients;

  void forward() {
    cluster::attention(world(), sharding, q.view(), k.view(), k.view(), out.view(), lse.view(), options, schedule);
  }
  void backward() {
    cluster::attention_backward(world(), sharding, q.view(), k.view(), k.view(), out.view(), lse.view(), out.view(),
                                gradients, options, {}, schedule);
  }
};

bool is_last() { return world().rank() == world().size() - 1; }

struct Wrong {
  const char* name;
  std::function<void(Call&)> change;
  std::string reason;
};

TEST(ClusterErrors, OfOneRankAreThoseOfAll) {
  if (world().size() == 1) GTEST_SKIP() << "one rank";
  const std::string last = std::to_string(world().size() - 1);
  const std::vector<Wrong> table = {
      {"width",
       [](Call& c) {
         c.k = Array<4>(DType::float32, {1, 2, c.n, 4});
       },
       "rank " + last + ": k must have q's"},
      {"tokens",
       [](Call& c) {
         c.q = c.out = Array<4>(DType::float32, {1, 4, c.n + 1, 8});
       },
       "tokens, must have the " + std::to_string(Call().sharding.queries.tokens(world().size() - 1)) + " of its rank"},
      {"softcap", [](Call& c) { c.options.softcap = -1; }, "rank " + last + ": softcap is -1"},
      {"causal", [](Call& c) { c.options.causal = true; }, "rank " + last + " and rank 0 differ in the options"},
      {"seed", [](Call& c) { c.options.seed = 7; }, "differ in the options"},
      {"heads",
       [](Call& c) {
         c.k = Array<4>(DType::float32, {1, 4, c.n, 8});
       },
       "differ in the shapes"},
      {"chunk", [](Call& c) { c.sharding = cluster::Placement::zigzag(64, world().size(), 2); }, ""},
      {"bias", [](Call& c) { c.options.bias = c.bias.view(); }, "differ in the presence or shape of a mask or a bias"},
      {"schedule", [](Call& c) { c.schedule = cluster::Schedule::gather; }, "differ in the schedule"},
      {"groups", [](Call& c) { c.schedule = cluster::Schedule::heads(world().size() + 1); },
       "the schedule has groups of " + std::to_string(world().size() + 1) + " ranks, must divide the "},
      {"groups of heads", [](Call& c) { c.schedule = cluster::Schedule::heads(); }, "differ in the schedule"},
      {"ranks", [](Call& c) { c.sharding = cluster::Placement::zigzag(64, 1, 4); }, "the sharding is for 1 ranks"},
      {"shard", [](Call& c) { c.options.shard.first_key = 1; }, "shard may say first_batch and first_head alone"},
  };
  for (const Wrong& wrong : table) {
    Call call;
    if (is_last()) wrong.change(call);
    const std::string forward = error_of([&] { call.forward(); });
    EXPECT_NE(forward, "") << wrong.name;
    EXPECT_NE(forward.find(wrong.reason), std::string::npos) << wrong.name << ": " << forward;
    const std::string backward = error_of([&] { call.backward(); });
    EXPECT_NE(backward.find(wrong.reason), std::string::npos) << wrong.name << ": " << backward;
  }
}

TEST(ClusterErrors, OfGradientsThatOneRankWants) {
  if (world().size() == 1) GTEST_SKIP() << "one rank";
  Call call;
  Array<4> dk = call.k;
  if (is_last()) call.gradients.dk = dk.view();
  EXPECT_NE(error_of([&] { call.backward(); }).find("differ in the arrays that they want or have"), std::string::npos);
}

/// A rank that has no arguments for the call.
TEST(ClusterErrors, OfARankThatRefuses) {
  if (world().size() == 1) GTEST_SKIP() << "one rank";
  Call call;
  const std::string error = error_of([&] {
    if (is_last()) cluster::refuse(world(), "no tokens");
    call.forward();
  });
  EXPECT_NE(error.find("rank " + std::to_string(world().size() - 1) + ": no tokens"), std::string::npos) << error;
}

TEST(ClusterErrors, OfRanksThatAreNotAtOneStep) {
  if (world().size() == 1) GTEST_SKIP() << "one rank";
  EXPECT_EQ(error_of([] { cluster::synchronize(world(), "seed"); }), "");
  EXPECT_NE(error_of([] { cluster::synchronize(world(), is_last() ? "seed" : "starts"); }), "");
  Call call;
  EXPECT_NE(error_of([&] { is_last() ? cluster::synchronize(world(), "seed") : call.forward(); }), "");
}

/// After an error the ranks are still in step.
TEST(ClusterErrors, LeaveTheNextCallAlone) {
  Call wrong, right;
  if (is_last()) wrong.options.softcap = -1;
  EXPECT_NE(error_of([&] { wrong.forward(); }), "");
  EXPECT_EQ(error_of([&] { right.forward(); }), "");
}

}  // namespace
}  // namespace attn::test
