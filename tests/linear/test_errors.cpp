// linear_attention(): what it says of bad arguments, and that it then writes nothing.
#include <gtest/gtest.h>

#include <limits>

#include "linear_case.h"
#include "support/errors.h"

namespace attn::test {
namespace {

using Strings = std::vector<std::string>;

/// A valid call, and what is refused about it after a change.
struct Call {
  LinearCase c;
  LinearAttentionOptions options;
  Array<4> out, state;
  ConstView<4> q, k, v;
  View<4> out_view, state_view;

  Call() {
    c.dims = {2, 2, 4, 10, 8, 6};
    c.decay = Decay::row;
    c.draw(1);
    out = Array<4>(DType::float32, c.v.size());
    state = Array<4>(DType::float32, c.state_size());
    options = c.options();
    q = c.q.view();
    k = c.k.view();
    v = c.v.view();
    out_view = out.view();
    state_view = state.view();
  }
  Strings reasons() const {
    return reasons_of([&] { linear_attention(q, k, v, out_view, options, state_view); });
  }
};

/// The reasons after `change`.
template <class Change>
Strings after(const Change& change) {
  Call call;
  EXPECT_EQ(call.reasons(), Strings{});
  change(call);
  call.out.fill_with_nan();
  const std::vector<std::byte> before = call.out.bytes();
  const Strings reasons = call.reasons();
  if (!reasons.empty()) {
    EXPECT_TRUE(call.out.bytes() == before) << "it wrote before it refused";
  }
  return reasons;
}

TEST(LinearErrors, Shapes) {
  EXPECT_EQ(after([](Call& c) { c.k.size[3] = 7; }),
            Strings{"k has size [2, 2, 10, 7], must be q's size = [2, 2, 10, 8]"});
  EXPECT_EQ(after([](Call& c) { c.v.size[2] = 9; }),
            Strings({"v has size [2, 4, 9, 6], must be [B, Hv, L, Dv] = [2, 4, 10, 6]"}));
  EXPECT_EQ(after([](Call& c) { c.out_view.size[3] = 5; }),
            Strings{"out has size [2, 4, 10, 5], must be [B, Hv, L, Dv] = [2, 4, 10, 6]"});
  EXPECT_EQ(after([](Call& c) { c.state_view.size[2] = 6; }),
            Strings{"final_state has size [2, 4, 6, 6], must be [N, Hv, Dk, Dv] = [2, 4, 8, 6]"});
  EXPECT_EQ(after([](Call& c) { c.options.normalize = true; }),
            Strings({"initial_state has size [2, 4, 8, 6], must be [N, Hv, Dk, Dv + 1] = [2, 4, 8, 7]",
                     "final_state has size [2, 4, 8, 6], must be [N, Hv, Dk, Dv + 1] = [2, 4, 8, 7]"}));
  EXPECT_EQ(after([](Call& c) { c.options.beta.size[2] = 3; }),
            Strings{"beta has size [2, 4, 3], must be [B, Hv, L] = [2, 4, 10]"});
  EXPECT_EQ(after([](Call& c) { c.options.log_decay.size[3] = 5; }),
            Strings{"log_decay has size [2, 4, 10, 5], must be [B, Hv, L, Dk] = [2, 4, 10, 8] (each axis may be 1)"});
}

TEST(LinearErrors, HeadsThatDoNotDivide) {
  Call call;
  call.v.size[1] = 3;
  call.out_view.size[1] = 3;
  call.options.log_decay = {};
  call.options.beta = {};
  call.options.initial_state = {};
  call.state_view = {};
  EXPECT_EQ(call.reasons(), Strings{"v has 3 heads, must have a multiple of q's 2"});
}

TEST(LinearErrors, Types) {
  EXPECT_EQ(after([](Call& c) { c.v.dtype = DType::bfloat16; }), Strings{"v is bfloat16, must be float32, q's type"});
  EXPECT_EQ(after([](Call& c) { c.options.initial_state.dtype = DType::bfloat16; }),
            Strings{"initial_state is bfloat16, must be float32"});
  EXPECT_EQ(after([](Call& c) { c.options.log_decay.dtype = DType::int32; }),
            Strings{"log_decay is int32, must be a floating type"});
}

TEST(LinearErrors, Numbers) {
  EXPECT_EQ(after([](Call& c) {
              c.c.log_decay.set(100, 0.25);
              c.options.log_decay = c.c.log_decay.view();
            }),
            Strings{"log_decay has the element 0.250000, must be at most 0: it is the logarithm of the factor on the "
                    "state"});
  EXPECT_EQ(after([](Call& c) { c.options.scale = kInf; }), Strings{"scale is inf, must be finite"});
  EXPECT_EQ(after([](Call& c) { c.options.l2norm_epsilon = -1; }),
            Strings{"l2norm_epsilon is -1.000000, must be finite and at least 0"});
}

TEST(LinearErrors, PackedSequences) {
  static const int64_t falling[] = {0, 5, 3}, beyond[] = {0, 11}, fitting[] = {0, 4, 10};
  const auto alone = [](Call& c, std::span<const int64_t> starts) {
    c.q.size[0] = c.k.size[0] = c.v.size[0] = c.out_view.size[0] = 1;
    c.options.log_decay.size[0] = c.options.beta.size[0] = 1;
    c.options.cu_seqlens = starts;
    c.options.initial_state = {};
    c.state_view = {};
  };
  EXPECT_EQ(after([&](Call& c) { alone(c, fitting); }), Strings{});
  EXPECT_EQ(after([&](Call& c) { alone(c, falling); }), Strings{"cu_seqlens must rise, within 0 .. L = 10"});
  EXPECT_EQ(after([&](Call& c) { alone(c, beyond); }), Strings{"cu_seqlens must rise, within 0 .. L = 10"});
  EXPECT_EQ(after([&](Call& c) {
              c.options.cu_seqlens = fitting;  // N is still 2
            }),
            Strings{"cu_seqlens is for a batch of 1, but q has a batch of 2"});
}

TEST(LinearErrors, Memory) {
  EXPECT_EQ(after([](Call& c) { c.v = c.out_view; }), Strings{"out overlaps v"});
  EXPECT_EQ(after([](Call& c) { c.out_view.stride[2] = 0; }),
            Strings{"out overlaps itself: its strides map several elements to one address"});
  Call call;
  call.q.data = nullptr;
  EXPECT_EQ(call.reasons(), Strings{"q must have data"});
  call = Call();
  call.state_view = View<4>{call.c.initial_state.view()};  // in place: allowed
  EXPECT_EQ(call.reasons(), Strings{});
}

/// Heads of other widths beside each other in one array: out is refused only where it shares columns with v.
TEST(LinearErrors, ColumnsOfOneArray) {
  Array<4> memory(DType::float32, {1, 1, 7, 20});
  const auto columns = [&](int64_t first, int64_t heads, int64_t width) {
    return View<4>(static_cast<char*>(memory.view().data) + first * 4, DType::float32, {1, heads, 7, width},
                   {140, width, 20, 1});
  };
  const auto refused = [&](int64_t first) {
    return reasons_of(
        [&] { linear_attention(columns(0, 2, 2), columns(4, 2, 2), columns(8, 2, 3), columns(first, 2, 3)); });
  };
  EXPECT_EQ(refused(14), Strings{});
  EXPECT_EQ(refused(13), Strings{"out overlaps v"});
  EXPECT_EQ(refused(7), Strings({"out overlaps k", "out overlaps v"}));
  const View<4> other_rows(memory.view().data, DType::float32, {1, 2, 7, 3}, {140, 3, 13, 1});
  EXPECT_EQ(reasons_of([&] { linear_attention(columns(0, 2, 2), columns(4, 2, 2), columns(8, 2, 3), other_rows); }),
            Strings({"out overlaps q", "out overlaps k", "out overlaps v"}));
}

TEST(LinearErrors, GradientsOfWhatIsNotGiven) {
  Call call;
  call.options.log_decay = {};
  call.options.beta = {};
  Array<4> ddecay(DType::float32, call.c.log_decay.size());
  Array<3> dbeta(DType::float32, call.c.beta_values.size());
  LinearAttentionGradients gradients;
  gradients.dlog_decay = ddecay.view();
  gradients.dbeta = dbeta.view();
  EXPECT_EQ(reasons_of([&] {
              linear_attention_backward(call.q, call.k, call.v, call.c.dout.view(), gradients, call.options);
            }),
            Strings({"dlog_decay is given, but log_decay is not", "dbeta is given, but beta is not"}));
  gradients = {};
  gradients.dq = call.out.view();
  EXPECT_EQ(reasons_of([&] {
              linear_attention_backward(call.q, call.k, call.v, call.c.dout.view(), gradients, call.options);
            }),
            Strings{"dq has size [2, 4, 10, 6], must be q's size = [2, 2, 10, 8]"});
}

}  // namespace
}  // namespace attn::test
