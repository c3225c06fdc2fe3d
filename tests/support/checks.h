// checks: a Case held against the oracle, and its gradients against central differences.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "naive.h"
#include "tolerance.h"

namespace attn::test {

/// A Case with what it should give and how far off the naive algorithm is.
class Oracle {
 public:
  explicit Oracle(Case c, bool backward = true);
  void expect(const Results& actual, const std::string& isa) const;
  /// Every instruction set must be close.
  void expect_on_every_isa() const;

 private:
  /// One of the results.
  struct Expected {
    const char* what;
    std::function<Values(const Results&)> values_of;
    Values values;
    Yardstick yardstick;
    DType dtype;
  };

  const Case c_;
  const bool backward_;
  std::vector<Expected> expected_;
};

/// Calls body(case) for every option, small shape and element type; an eighth of them in a quick run.
template <class Body>
void sample_every_option(uint64_t first_seed, const Body& body) {
  const DType dtypes[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16};
  const std::vector<Dims> dims = small_dims();
  const int64_t each = 4 * static_cast<int64_t>(dims.size()), grid = feature_count() * each;
  sample(grid, {.quick = grid / 8, .normal = grid, .seconds = 60},
         [&](int64_t n) { body(make_case(features()[n / each], dims[n % each / 4], dtypes[n % 4], first_seed + n)); });
}

/// All results, bit for bit.
testing::AssertionResult same_results(const Results& a, const Results& b);

/// What computes a Case: run() or run_reference().
using Engine = Results (*)(const Case&, bool backward);

/// Compares gradients of L = <dout, out> + <dlse, lse> with differences of L, one input element at a time: about
/// `samples` elements of each input, spread evenly, the first one by the seed of the run.
void check_gradients(const Case& c, Engine engine, int64_t samples);

}  // namespace attn::test
