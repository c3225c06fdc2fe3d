// train: what a profile says of models, their training and generation.
#include "attn/profile.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "attn/generate.h"
#include "support/training.h"

namespace attn::test {
namespace {

/// The rows of what `work` does.
template <class Work>
std::vector<ProfileRow> rows_of(const Work& work) {
  Profiler profiler;
  work();
  return summarize(profiler.take_spans());
}

std::set<std::string> scopes_of(const std::vector<ProfileRow>& rows) {
  std::set<std::string> scopes;
  for (const ProfileRow& row : rows) scopes.insert(row.scope);
  return scopes;
}

double flops_in(const std::vector<ProfileRow>& rows, const std::string& scope) {
  double sum = 0;
  for (const ProfileRow& row : rows)
    if (row.scope.starts_with(scope)) sum += row.flops;
  return sum;
}

/// Two formulas that know nothing of each other: the sum over the operations, and forward_flops().
TEST(ProfiledTraining, TheOperationsOfAForwardAddUpToItsFlops) {
  for (const char* name : {"gpt", "llama", "encoder"}) {
    models::Config config = models::family(name);
    config.vocab_size = 50;
    config.context = 24;
    config.embed_dim = 32;
    config.layers = 2;
    config.heads = 4;
    config.kv_heads = name == std::string("llama") ? 2 : 0;
    config.classes = name == std::string("encoder") ? 5 : 0;
    const models::Model model(config, nn::Precision::float32, 1);
    const models::Batch batch{.tokens = some_tokens(3 * 24, 50), .sequences = 3, .length = 24};
    autograd::Tape tape;
    const auto rows = rows_of([&] { model.forward(tape, batch); });
    EXPECT_DOUBLE_EQ(flops_in(rows, ""), 3 * models::forward_flops(config, 24)) << name;
  }
}

TEST(ProfiledTraining, ForwardBackwardAndUpdateHaveTheirLayers) {
  models::Model model(tiny(0), nn::Precision::float32, 1);
  const auto data = same_batch();
  TrainerOptions options = short_run();
  options.accumulation = 1;
  Trainer trainer(model, data, options, "");
  trainer.step();  // gradients are there from here on
  const auto without_scratch = [] {
    return memory_in_use() - scratch_in_use();
  };  // a thread may get its first task now
  const int64_t before = without_scratch();
  const auto rows = rows_of([&] { trainer.step(); });
  EXPECT_EQ(without_scratch(), before);  // what a tape keeps for the next does not count
  EXPECT_GT(memory_peak(), before);
  const std::set<std::string> scopes = scopes_of(rows);
  for (const char* pass : {"forward", "backward"})
    for (const char* layer :
         {"block 0/norm_attention", "block 1/attention", "block 1/attention/qkv", "block 0/attention/output",
          "block 0/feed_forward/up", "block 1/feed_forward/down", "norm", "head"})
      EXPECT_TRUE(scopes.count(std::string(pass) + "/" + layer)) << pass << "/" << layer;
  EXPECT_TRUE(scopes.count("optimizer") && scopes.count("gradient norm"));
  // Each product of the forward has two in the backward; attention five products for two.
  const auto of = [&](const std::string& scope) { return flops_in(rows, scope); };
  EXPECT_DOUBLE_EQ(of("backward/block 0/feed_forward"), 2 * of("forward/block 0/feed_forward"));
  EXPECT_DOUBLE_EQ(of("backward/block 1/attention/qkv"), 2 * of("forward/block 1/attention/qkv"));
  std::map<std::string, double> attention;
  for (const ProfileRow& row : rows) attention[row.operation] += row.flops;
  EXPECT_DOUBLE_EQ(attention["attention_backward"], 2.5 * attention["attention"]);
}

TEST(ProfiledTraining, RecomputationShowsInTheBackward) {
  models::Model model(tiny(0), nn::Precision::float32, 1);
  const auto data = same_batch();
  TrainerOptions options = short_run();
  options.accumulation = 1;
  options.recompute = true;
  Trainer trainer(model, data, options, "");
  const auto rows = rows_of([&] { trainer.step(); });
  EXPECT_DOUBLE_EQ(flops_in(rows, "backward/block 1/feed_forward"), 3 * flops_in(rows, "forward/block 1/feed_forward"));
}

TEST(ProfiledTraining, GenerationHasItsSteps) {
  const models::Model model(tiny(0), nn::Precision::float32, 1);
  const std::vector<int64_t> prompt = {1, 2, 3};
  const auto rows = rows_of([&] { generate::generate(model, prompt, {.max_new_tokens = 4}); });
  std::map<std::string, int64_t> calls;
  for (const ProfileRow& row : rows)
    if (row.operation.empty()) calls[row.scope] += row.calls;
  EXPECT_EQ(calls["prefill"], 1);
  EXPECT_EQ(calls["decode"], 3);
  EXPECT_EQ(calls["sample"], 4);
  EXPECT_EQ(calls["decode/block 1/attention"], 3);
}

/// An operation of a user's own, from attn/autograd.h.
TEST(ProfiledTraining, OwnOperationsAreInTheirScope) {
  const auto rows = rows_of([&] {
    autograd::Tape tape({.record = true});
    const autograd::Value x(attn::Array(DType::float32, {2, 3}), true);
    autograd::Value y;
    {
      const autograd::Tape::NameScope scope(tape, "mine");
      y = tape.result("twice", tape.array(DType::float32, {2, 3}), {x});
      ops::scale(x.data().rows(), 2, y.data().rows());
      tape.record(y, [&] {
        const ProfileSpan span("my gradient", [] { return OperationWork{{2, 3}, 7, 5}; });
        tape.add_gradient(x, y.gradient());
      });
    }
    tape.add_gradient(y, x.data());
    tape.backward();
  });
  const auto own =
      std::find_if(rows.begin(), rows.end(), [](const ProfileRow& row) { return row.operation == "my gradient"; });
  ASSERT_NE(own, rows.end());
  EXPECT_EQ(own->scope, "mine");
  EXPECT_EQ(own->shape, "2 x 3");
  EXPECT_EQ(own->flops, 7);
  EXPECT_EQ(own->bytes, 5);
}

}  // namespace
}  // namespace attn::test
