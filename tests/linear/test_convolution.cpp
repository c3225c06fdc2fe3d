// causal_convolution(): the kernels against float64, the gradients against differences, and its properties.
#include <gtest/gtest.h>

#include <cmath>

#include "convolution_case.h"
#include "support/errors.h"

namespace attn::test {
namespace {

using Layout = ConvolutionLayout;

/// Every width, layout and option, in shapes that end inside of a vector, a group of rows, a block and a tile.
std::vector<ConvolutionCase> cases(DType dtype) {
  std::vector<ConvolutionCase> all;
  const int64_t shapes[][3] = {{2, 150, 37}, {1, 3, 70}, {3, 67, 16}, {1, 1, 530}, {2, 64, 1}};
  for (int64_t W = 1; W <= 8; ++W)
    for (Layout layout : {Layout::channels, Layout::tokens, Layout::apart})
      for (int bits = 0; bits < 8; ++bits) {
        const auto [B, L, C] = shapes[all.size() % 5];
        ConvolutionCase c{B, L, C, W, dtype, bool(bits & 1), bool(bits & 2), bool(bits & 4), layout};
        all.push_back(c.draw(100 + all.size()));
        c.initial = false;
        c.segments = true;
        all.push_back(c.draw(100 + all.size()));
      }
  for (int64_t W : {2, 4}) {
    ConvolutionCase packed{1, 300, 40, W, dtype};
    packed.cu_seqlens = {3, 3, 5, 140, 141, 280};
    for (bool initial : {false, true}) {
      packed.initial = initial;
      all.push_back(packed.draw(900 + W));
    }
    packed.initial = false;
    packed.segments = true;
    all.push_back(packed.draw(910 + W));
  }
  return all;
}

void expect_like_reference(DType dtype) {
  const std::vector<ConvolutionCase> all = cases(dtype);
  const size_t step = effort() == Effort::quick ? 7 : 1;  // no divisor of the number of combinations
  for (size_t n = step == 1 ? 0 : static_cast<size_t>(dtype); n < all.size(); n += step) {
    const ConvolutionCase& c = all[n];
    const std::vector<Values> reference = run_reference(c).values(), terms = magnitudes(c);
    const std::vector<double> roundings = convolution_roundings(c.W);
    for_each_isa([&](const std::string& isa) {
      const std::vector<Values> actual = run_kernels(c).values();
      for (size_t r = 0; r < actual.size(); ++r) {
        ASSERT_EQ(actual[r].size(), reference[r].size());
        for (size_t i = 0; i < actual[r].size(); ++i)
          ASSERT_LE(distance(actual[r][i], reference[r][i]),
                    element_bound(reference[r][i], terms[r][i], roundings[r], c.dtype))
              << ConvolutionResults::names[r] << " " << i << " of " << c.name() << " on " << isa;
      }
    });
  }
}

TEST(ConvolutionOptions, FollowTheReferenceInFloat32) { expect_like_reference(DType::float32); }
TEST(ConvolutionOptions, FollowTheReferenceInFloat64) { expect_like_reference(DType::float64); }
TEST(ConvolutionOptions, FollowTheReferenceInBfloat16) { expect_like_reference(DType::bfloat16); }
TEST(ConvolutionOptions, FollowTheReferenceInFloat16) { expect_like_reference(DType::float16); }

/// The loss of the differences: <dout, out> + <dfinal_state, final_state>.
double loss_of(const ConvolutionCase& c) {
  const ConvolutionResults r = run_reference(c);
  const Values out = r.out.values(), dout = c.dout.values();
  double loss = 0;
  for (size_t n = 0; n < out.size(); ++n) loss += std::isfinite(out[n]) ? out[n] * dout[n] : 0;
  for (int64_t n = 0; n < r.final_state.count() && r.final_state.given(); ++n)
    loss += r.final_state.get(n) * c.dfinal_state.get(n);
  return loss;
}

template <class Array>
void expect_differences(ConvolutionCase& c, Array& input, const Array& gradient, const char* name) {
  for (int64_t n = 0; n < input.count() && input.given(); ++n) {
    const double before = input.get(n);
    input.set(n, before + kDifferenceStep);
    const double above = loss_of(c);
    input.set(n, before - kDifferenceStep);
    const double below = loss_of(c);
    input.set(n, before);
    ASSERT_LE(distance((above - below) / (2 * kDifferenceStep), gradient.get(n)), difference_bound(gradient.get(n)))
        << name << " " << n << " of " << c.name();
  }
}

TEST(Convolution, TheReferenceFollowsDifferences) {
  std::vector<ConvolutionCase> all{{2, 6, 2, 3, DType::float64, true, true, true},
                                   {2, 2, 2, 4, DType::float64, false, true, true},
                                   {1, 9, 2, 4, DType::float64, true, true, true}};
  all[2].cu_seqlens = {0, 2, 2, 9};
  all.push_back({2, 9, 2, 4, DType::float64, true, true});
  all.back().segments = true;
  for (ConvolutionCase& c : all) {
    c.draw(7);
    ConvolutionResults r = run_reference(c);
    expect_differences(c, c.x.memory(), r.dx.memory(), "dx");
    expect_differences(c, c.weight, r.dweight, "dweight");
    expect_differences(c, c.bias_values, r.dbias, "dbias");
    expect_differences(c, c.initial_state, r.dinitial_state, "dinitial_state");
  }
}

TEST(Convolution, ByHand) {
  Tensor<float, 3> x({1, 4, 1}), out({1, 4, 1}), state({1, 1, 2});
  Tensor<float, 2> weight({1, 3});
  Tensor<float, 1> bias({1});
  std::copy_n(std::array{1.0f, 2.0f, 3.0f, 4.0f}.data(), 4, x.data());
  std::copy_n(std::array{100.0f, 10.0f, 1.0f}.data(), 3, weight.data());
  bias[0] = 0.5f;
  causal_convolution(x, weight, out, {.bias = bias}, state);
  EXPECT_EQ((std::vector<float>(out.begin(), out.end())), (std::vector<float>{1.5f, 12.5f, 123.5f, 234.5f}));
  EXPECT_EQ((std::vector<float>(state.begin(), state.end())), (std::vector<float>{3, 4}));
}

TEST(Convolution, ASplitSequenceGivesTheSame) {
  for (DType dtype : {DType::float32, DType::float64, DType::bfloat16})
    for (Layout layout : {Layout::channels, Layout::tokens})
      for_each_isa([&](const std::string& isa) {
        ConvolutionCase c{2, 140, 70, 4, dtype, true, true, true, layout};
        c.draw(3);
        const ConvolutionResults whole = run_kernels(c);
        LaidOut out(dtype, c.x.size(), layout);
        Array<3> state = c.initial_state;
        CausalConvolutionOptions options = c.options();
        options.initial_state = state.view();
        int64_t t = 0;
        for (int64_t count : {1, 1, 2, 0, 65, 71}) {
          causal_convolution(c.x.view().slice(1, t, t + count), c.weight.view(), out.view().slice(1, t, t + count),
                             options, state.view());
          t += count;
        }
        ASSERT_EQ(t, c.L);
        EXPECT_EQ(out.values(), whole.out.values()) << isa;
        EXPECT_TRUE(same_bits(state, whole.final_state)) << isa;
      });
}

TEST(Convolution, StatesMayHoldMoreTokens) {
  for (int64_t tokens : {4, 9}) {
    ConvolutionCase c{2, 30, 20, 4, DType::bfloat16, true, true, true};
    c.draw(4);
    const ConvolutionResults whole = run_kernels(c);
    Array<3> state(c.dtype, {c.B, c.C, tokens});
    for (int64_t n = 0; n < c.B; ++n)
      for (int64_t i = 0; i < c.C; ++i)
        for (int64_t j = 0; j < tokens; ++j)
          state.set({n, i, j}, j < tokens - 3 ? kNaN : c.initial_state.get({n, i, j - (tokens - 3)}));
    LaidOut out(c.dtype, c.x.size()), expected(c.dtype, c.x.size());
    CausalConvolutionOptions options = c.options();
    options.initial_state = state.view();
    Array<3> expected_state(c.dtype, state.size());
    reference::causal_convolution(c.x.view(), c.weight.view(), expected.view(), options, expected_state.view());
    int64_t t = 0;
    for (int64_t count : {1, 2, 0, 5, 22}) {
      causal_convolution(c.x.view().slice(1, t, t + count), c.weight.view(), out.view().slice(1, t, t + count), options,
                         state.view());
      t += count;
    }
    EXPECT_EQ(out.values(), whole.out.values());
    EXPECT_TRUE(same_bits(state, expected_state));
  }
}

TEST(Convolution, PackedSequencesAreLikeSequencesApart) {
  for_each_isa([&](const std::string& isa) {
    ConvolutionCase c{1, 200, 37, 4, DType::float32, true, true, true};
    c.cu_seqlens = {2, 2, 3, 130, 190};
    c.draw(5);
    const ConvolutionResults packed = run_kernels(c);
    for (int64_t n = 0; n < c.sequences(); ++n) {
      const int64_t begin = c.cu_seqlens[n], end = c.cu_seqlens[n + 1];
      LaidOut out(c.dtype, {1, end - begin, c.C}), dx(c.dtype, {1, end - begin, c.C});
      Array<3> last(c.dtype, {1, c.C, c.W - 1}), dinitial(c.dtype, {1, c.C, c.W - 1});
      CausalConvolutionOptions options = c.options();
      options.cu_seqlens = {};
      options.initial_state = options.initial_state.slice(0, n, n + 1);
      causal_convolution(c.x.view().slice(1, begin, end), c.weight.view(), out.view(), options, last.view());
      causal_convolution_backward(c.x.view().slice(1, begin, end), c.weight.view(), c.dout.view().slice(1, begin, end),
                                  {.dx = dx.view(), .dinitial_state = dinitial.view()}, options,
                                  ConstView<3>(c.dfinal_state.view()).slice(0, n, n + 1));
      for (int64_t i = 0; i < c.C; ++i) {
        for (int64_t t = begin; t < end; ++t) {
          ASSERT_EQ(out.get(0, t - begin, i), packed.out.get(0, t, i)) << isa;
          ASSERT_EQ(dx.get(0, t - begin, i), packed.dx.get(0, t, i)) << isa;
        }
        for (int64_t j = 0; j < c.W - 1; ++j) {
          ASSERT_EQ(last.get({0, i, j}), packed.final_state.get({n, i, j})) << isa;
          ASSERT_EQ(dinitial.get({0, i, j}), packed.dinitial_state.get({n, i, j})) << isa;
        }
      }
    }
    for (int64_t t : {0, 1, 190, 199}) {
      ASSERT_EQ(packed.out.get(0, t, 36), 0);
      ASSERT_EQ(packed.dx.get(0, t, 36), 0);
    }
  });
}

TEST(Convolution, SegmentsAreLikePackedSequences) {
  ConvolutionCase c{1, 150, 37, 4, DType::float32};
  c.cu_seqlens = {0, 2, 70, 71, 150};
  c.draw(6);
  c.dfinal_state = {};
  ConvolutionCase with_ids = c;
  with_ids.cu_seqlens = {};
  with_ids.segments = true;
  with_ids.ids = Array<2>(DType::int64, {1, c.L});
  for (int64_t n = 0; n < c.sequences(); ++n)
    for (int64_t t = c.cu_seqlens[n]; t < c.cu_seqlens[n + 1]; ++t) with_ids.ids.set(t, 7 - static_cast<double>(n));
  for_each_isa([&](const std::string& isa) {
    const std::vector<Values> packed = run_kernels(c).values(), segments = run_kernels(with_ids).values();
    EXPECT_EQ(packed[0], segments[0]) << isa;
    EXPECT_EQ(packed[2], segments[2]) << isa;
  });
}

TEST(Convolution, BitsDoNotDependOnThreadsNorLayouts) {
  for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    ConvolutionCase channels{2, 1500, 90, 4, dtype, true, true, true}, tokens = channels, apart = channels;
    tokens.layout = Layout::tokens;
    apart.layout = Layout::apart;
    for (ConvolutionCase* c : {&channels, &tokens, &apart}) c->draw(8);
    for_each_isa([&](const std::string& isa) {
      set_thread_count(1);
      const ConvolutionResults one = run_kernels(channels);
      for (int threads : {2, 7}) {
        set_thread_count(threads);
        EXPECT_TRUE(run_kernels(channels).same_bits_as(one)) << threads << " threads on " << isa;
      }
      set_thread_count(0);
      EXPECT_TRUE(run_kernels(tokens).same_bits_as(one)) << isa;
      EXPECT_TRUE(run_kernels(apart).same_bits_as(one)) << isa;
    });
  }
}

TEST(Convolution, NaNStaysInItsSequence) {
  for (bool segments : {false, true})
    for_each_isa([&](const std::string& isa) {
      ConvolutionCase c{1, 100, 20, 4, DType::float32};
      c.cu_seqlens = {0, 40, 100};
      c.draw(9);
      if (segments) {
        c.cu_seqlens = {};
        c.segments = true;
        c.ids = Array<2>(DType::int32, {1, 100});
        for (int64_t t = 40; t < 100; ++t) c.ids.set(t, 1);
      }
      const ConvolutionResults clean = run_kernels(c);
      c.x.set(0, 38, 5, kNaN);
      const ConvolutionResults r = run_kernels(c);
      for (int64_t t = 0; t < 100; ++t)
        for (int64_t i = 0; i < 20; ++i) {
          const bool reads = i == 5 && t >= 38 && t < 40, is_read = i == 5 && t >= 35 && t < 40;
          ASSERT_EQ(std::isnan(r.out.get(0, t, i)), reads) << t << " " << isa;
          ASSERT_EQ(std::isnan(r.dx.get(0, t, i)), is_read) << t << " " << isa;
          if (!is_read) {
            ASSERT_EQ(r.dx.get(0, t, i), clean.dx.get(0, t, i)) << t << " " << isa;
          }
        }
      for (int64_t i = 0; i < 20; ++i) ASSERT_EQ(std::isnan(r.dbias.get(i)), i == 5) << isa;
    });
}

TEST(Convolution, MixedTypes) {
  ConvolutionCase c{2, 70, 37, 4, DType::bfloat16, true, true, true};
  c.draw(10);
  const ConvolutionResults expected = run_kernels(c);
  const Array<2> weight = c.weight.as(DType::float64);
  LaidOut out(c.dtype, c.x.size(), Layout::tokens), dx(DType::float64, c.x.size());
  Array<2> dweight(DType::float32, c.weight.size());
  causal_convolution(c.x.view(), weight.view(), out.view(), c.options());
  causal_convolution_backward(c.x.view(), weight.view(), c.dout.view(), {.dx = dx.view(), .dweight = dweight.view()},
                              c.options(), c.dfinal_state.view());
  EXPECT_EQ(out.values(), expected.out.values());
  Values dx_rounded = dx.values(), dweight_rounded = dweight.values();
  for (Values* values : {&dx_rounded, &dweight_rounded})
    for (double& value : *values) value = rounded(value, c.dtype);
  EXPECT_EQ(dx_rounded, expected.dx.values());
  EXPECT_EQ(dweight_rounded, expected.dweight.values());
}

TEST(Convolution, NothingToDo) {
  for (const auto& [B, L, C] : {Shape<3>{0, 4, 3}, Shape<3>{2, 0, 3}, Shape<3>{2, 4, 0}}) {
    ConvolutionCase c{B, L, C, 4, DType::float32, true, true, true};
    c.draw(1);
    const ConvolutionResults r = run_kernels(c), expected = run_reference(c);
    for (size_t n = 0; n < 6; ++n) EXPECT_LE(max_abs_error(r.values()[n], expected.values()[n]), 0) << c.name();
  }
}

class ConvolutionErrors : public ::testing::Test {
 protected:
  using Reasons = std::vector<std::string>;
  Tensor<float, 3> x{{2, 5, 3}}, out{{2, 5, 3}}, state{{2, 3, 3}};
  Tensor<float, 2> weight{{3, 4}};
  Tensor<float, 1> bias{{3}};
  Tensor<int32_t, 2> ids{{2, 5}};
};

TEST_F(ConvolutionErrors, OfTheForward) {
  EXPECT_EQ(error_of([&] {
              Tensor<double, 3> wide({2, 5, 4});
              Tensor<float, 2> narrow({2, 4});
              causal_convolution(x, narrow, wide);
            }),
            "[causal_convolution] weight has size [2, 4], must be [C, W] = [3, 4]; out has size [2, 5, 4], must be x's "
            "size = [2, 5, 3]; out is float64, must be float32, x's type");
  const Tensor<float, 2> nine({3, 9});
  EXPECT_EQ(reasons_of([&] { causal_convolution(x, nine, out); }),
            (Reasons{"weight has a width of 9, must be 1 to 8"}));
  EXPECT_EQ(reasons_of([&] {
              causal_convolution(x, Tensor<float, 2>({3, 0}), out);
            }),
            (Reasons{"weight has a width of 0, must be 1 to 8"}));
  EXPECT_EQ(reasons_of([&] {
              causal_convolution(x, Tensor<int32_t, 2>({3, 4}), out, {.bias = Tensor<float, 1>({4})});
            }),
            (Reasons{"weight is int32, must be a floating type", "bias has size [4], must be [C] = [3]"}));
  EXPECT_EQ(reasons_of([&] {
              causal_convolution(x, weight, out, {.initial_state = Tensor<float, 3>({2, 3, 2})},
                                 Tensor<double, 3>({1, 3, 3}));
            }),
            (Reasons{"initial_state has size [2, 3, 2], must be [N, C, W - 1 or more] = [2, 3, 3]",
                     "final_state has size [1, 3, 3], must be [N, C, W - 1 or more] = [2, 3, 3]",
                     "final_state is float64, must be float32, x's type"}));
  const std::vector<int64_t> falling = {0, 4, 2};
  EXPECT_EQ(
      reasons_of([&] { causal_convolution(x, weight, out, {.cu_seqlens = falling}); }),
      (Reasons{"cu_seqlens is for a batch of 1, but x has a batch of 2", "cu_seqlens must rise, within 0 .. L = 5"}));
  EXPECT_EQ(
      reasons_of([&] { causal_convolution(x, weight, out, {.initial_state = state, .segment_ids = ids}, state); }),
      (Reasons{"initial_state cannot be given with segment_ids", "final_state cannot be given with segment_ids"}));
  EXPECT_EQ(reasons_of([&] {
              causal_convolution(x, weight, out, {.segment_ids = Tensor<float, 2>({1, 5})});
            }),
            (Reasons{"segment_ids is float32, must be int32 or int64",
                     "segment_ids has size [1, 5], must be [B, L] = [2, 5]"}));
  EXPECT_EQ(reasons_of([&] { causal_convolution(x, weight, x); }), (Reasons{"out overlaps x"}));
  EXPECT_EQ(reasons_of([&] {
              causal_convolution(x, weight, View<3>(nullptr, DType::float32, {2, 5, 3}));
            }),
            (Reasons{"out must have data"}));
}

TEST_F(ConvolutionErrors, OfTheBackward) {
  EXPECT_EQ(
      reasons_of([&] {
        Tensor<float, 2> dweight({4, 3});
        causal_convolution_backward(x, weight, Tensor<double, 3>({2, 5, 3}),
                                    {.dx = state, .dweight = dweight, .dbias = bias});
      }),
      (Reasons{"dout is float64, must be float32, x's type", "dx has size [2, 3, 3], must be x's size = [2, 5, 3]",
               "dweight has size [4, 3], must be weight's size = [3, 4]", "dbias is given, but bias is not"}));
  EXPECT_EQ(
      reasons_of(
          [&] { causal_convolution_backward(x, weight, out, {.dinitial_state = state}, {.segment_ids = ids}, state); }),
      (Reasons{"dfinal_state cannot be given with segment_ids", "dinitial_state cannot be given with segment_ids"}));
  EXPECT_EQ(reasons_of([&] { causal_convolution_backward(x, weight, out, {.dx = out}); }),
            (Reasons{"dx overlaps dout"}));
}

}  // namespace
}  // namespace attn::test
