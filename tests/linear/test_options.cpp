// linear_attention(): the kernels against the recurrence in float64, every option with every other, and its properties.
#include <gtest/gtest.h>

#include <cmath>

#include "linear_case.h"
#include "support/errors.h"

namespace attn::test {
namespace {

/// Every combination of the options, in shapes that end inside of a chunk, a group and a vector.
std::vector<LinearCase> cases(DType dtype) {
  std::vector<LinearCase> all;
  const LinearDims dims[] = {{2, 1, 2, 150, 24, 40}, {1, 2, 2, 70, 33, 17}, {1, 1, 3, 5, 8, 16}, {3, 1, 1, 3, 20, 9}};
  for (int bits = 0; bits < 1 << 5; ++bits)
    for (Decay decay : {Decay::none, Decay::head, Decay::token, Decay::row}) {
      LinearCase c{dims[(bits + static_cast<int>(decay)) % 4], dtype};
      c.delta = bits & 1;
      c.beta = bits & 2;
      c.l2norm = bits & 4;
      c.normalize = (bits & 8) && !c.delta;
      c.initial = bits & 16;
      c.decay = decay;
      all.push_back(c.draw(100 + all.size()));
    }
  for (Decay decay : {Decay::head, Decay::token, Decay::row}) {
    LinearCase packed{{1, 2, 4, 200, 16, 24}, dtype};
    packed.delta = packed.l2norm = true;
    packed.decay = decay;
    packed.cu_seqlens = {3, 3, 70, 71, 190};
    all.push_back(packed.draw(900));
  }
  return all;
}

void expect_like_reference(const LinearCase& c, const LinearResults& actual, const std::vector<Values>& reference,
                           const NaiveLinear<float>& naive) {
  const std::vector<Values> values = actual.values(), naive_values = naive.values();
  for (size_t n = 0; n < values.size(); ++n) {
    if (reference[n].empty()) continue;
    const bool is_decay = std::string_view(LinearResults::names[n]) == "dlog_decay";
    const Yardstick yardstick({naive_values[n]}, reference[n], 0, c.dims.B * c.dims.Hv,
                              is_decay ? naive.decay_magnitude() : 0);
    const double largest = max_abs(reference[n]);
    const double bound = c.dtype == DType::float64   ? float64_bound(yardstick, largest)
                         : c.dtype == DType::float32 ? float32_bound(yardstick, largest)
                                                     : low_precision_bound(yardstick, reference[n], c.dtype);
    EXPECT_LE(max_abs_error(values[n], reference[n]), bound)
        << LinearResults::names[n] << " of " << c.name() << ", largest " << largest;
  }
}

void expect_the_recurrence(DType dtype) {
  const std::vector<LinearCase> all = cases(dtype);
  const size_t step = effort() == Effort::quick ? 7 : 1;  // no divisor of the number of combinations
  for (size_t n = step == 1 ? 0 : static_cast<size_t>(dtype); n < all.size(); n += step) {
    const LinearCase& c = all[n];
    const std::vector<Values> reference = run_reference(c).values();
    const NaiveLinear<float> naive(c);
    for_each_isa([&](const std::string& isa) {
      SCOPED_TRACE(isa);
      expect_like_reference(c, run_kernels(c), reference, naive);
    });
  }
}

TEST(LinearOptions, InFloat32) { expect_the_recurrence(DType::float32); }
TEST(LinearOptions, InFloat64) { expect_the_recurrence(DType::float64); }
TEST(LinearOptions, InBfloat16) { expect_the_recurrence(DType::bfloat16); }
TEST(LinearOptions, InFloat16) { expect_the_recurrence(DType::float16); }

}  // namespace
}  // namespace attn::test
