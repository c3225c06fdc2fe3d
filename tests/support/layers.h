// layers: what tests of layers and models share. Random arrays, numbers out of arrays, gradients against differences.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "attn/nn.h"
#include "tolerance.h"

namespace attn::test {

using autograd::Tape;
using autograd::Value;

inline attn::Array random_array(DType dtype, std::vector<int64_t> shape, uint64_t seed, double factor = 1) {
  attn::Array wide(DType::float64, shape), array(dtype, shape);
  Random random(seed);
  for (int64_t n = 0; n < wide.count(); ++n) static_cast<double*>(wide.data())[n] = factor * random.normal();
  ops::convert(wide.flat(), array.flat());
  return array;
}

inline Values numbers(const attn::Array& array) {
  Values result(static_cast<size_t>(array.count()));
  ops::convert(array.flat(), View<2>(result.data(), {1, array.count()}));
  return result;
}

inline Values gradient_of(const Value& value) {
  return value.gradient_is_empty() ? Values(static_cast<size_t>(value.data().count()), 0) : numbers(value.gradient());
}

/// Gradients of sum(r f(inputs)), r random, for float64 leaves: against central differences at `samples` elements of
/// each. f is called anew for every value; it must not draw random numbers but through the tape.
inline void expect_gradients(const std::string& what, const std::vector<std::pair<std::string, Value>>& leaves,
                             const std::function<Value(Tape&)>& f, int64_t samples = 12) {
  const autograd::TapeOptions training = {.record = true, .training = true, .seed = 7};
  for (auto [name, leaf] : leaves) leaf.clear_gradient();  // a copy of a handle
  Tape tape(training);
  const Value y = f(tape);
  ASSERT_TRUE(y.wants_gradient()) << what;
  const attn::Array r = random_array(DType::float64, y.shape(), 99);
  tape.add_gradient(y, r);
  tape.backward();

  const Values factor = numbers(r);
  const auto values = [&] {
    autograd::TapeOptions options = training;
    options.record = false;
    Tape again(options);
    return numbers(f(again).data());
  };
  for (const auto& [name, leaf] : leaves) {
    const Values analytic = gradient_of(leaf);
    double* element = static_cast<double*>(leaf.data().data());
    const int64_t count = leaf.data().count(), stride = std::max<int64_t>(1, count / samples);
    for (int64_t n = 0; n < count; n += stride) {
      const double value = element[n];
      element[n] = value + kDifferenceStep;
      const Values above = values();
      element[n] = value - kDifferenceStep;
      const Values below = values();
      element[n] = value;
      double numeric = 0;
      for (size_t i = 0; i < factor.size(); ++i) numeric += factor[i] * (above[i] - below[i]);
      numeric /= 2 * kDifferenceStep;
      EXPECT_LE(std::abs(analytic[n] - numeric), difference_bound(numeric))
          << what << ": gradient of " << name << "[" << n << "] is " << analytic[n] << ", the difference quotient "
          << numeric;
    }
  }
}

/// The leaves of a layer: its input, if it is given, and all parameters.
inline std::vector<std::pair<std::string, Value>> leaves_of(const nn::Parameters& parameters, const Value& x = {}) {
  std::vector<std::pair<std::string, Value>> leaves;
  if (x) leaves.emplace_back("x", x);
  for (const nn::Parameter& parameter : parameters.all()) leaves.emplace_back(parameter.name, parameter.value);
  return leaves;
}

/// Small numbers instead of zeros and ones, so that every gradient matters.
inline void stir(nn::Parameters& parameters, double factor = 0.3) {
  uint64_t seed = 1000;
  for (const nn::Parameter& parameter : parameters.all()) {
    const attn::Array noise = random_array(parameter.master.dtype(), parameter.master.shape(), ++seed, factor);
    ops::add(parameter.master.flat(), noise.flat(), parameter.master.flat());
  }
  parameters.refresh();
}

}  // namespace attn::test
