// tolerance: the only place where the tests say how close is close enough. Formulas, no constants chosen by eye.
//
// The measure is the naive algorithm (naive.h): what plain loops in the same precision get wrong on the same input.
// Every comparison is written so that a NaN, a missing value or a wrong size fails it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "arrays.h"

namespace attn::test {

using Values = std::vector<double>;

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInf = std::numeric_limits<double>::infinity();

// ------------------------------------------------------------------------------------------------------------ measures

/// |a - b|, where equal infinities are no distance apart.
inline double distance(double a, double b) { return a == b ? 0 : std::abs(a - b); }

/// Largest distance; NaN if there is a NaN in either, infinity if the sizes differ.
inline double max_abs_error(const Values& actual, const Values& reference) {
  if (actual.size() != reference.size()) return kInf;
  double worst = 0;
  for (size_t n = 0; n < actual.size(); ++n) {
    const double error = distance(actual[n], reference[n]);
    if (std::isnan(error)) return kNaN;
    worst = std::max(worst, error);
  }
  return worst;
}

/// The worst of several, none of which may be NaN.
inline double worst_of(const Values& errors) { return max_abs_error(errors, Values(errors.size(), 0)); }

/// Largest finite magnitude.
inline double max_abs(const Values& values) {
  double largest = 0;
  for (double value : values)
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  return largest;
}

/// Mean squared error over mean square of the reference; 0 / 0 is no error.
inline double normalized_error(const Values& actual, const Values& reference) {
  if (actual.size() != reference.size()) return kInf;
  double error = 0, energy = 0;
  for (size_t n = 0; n < actual.size(); ++n) {
    const double difference = distance(actual[n], reference[n]);
    error += difference * difference;
    if (std::isfinite(reference[n])) energy += reference[n] * reference[n];
  }
  return error == 0 ? 0 : error / energy;
}

// --------------------------------------------------------------------------------------------------------- the formulas

inline constexpr double kFloat32Factor = 2;            // times the error of the naive algorithm in float32
inline constexpr double kFloat32Floor = 0x1p-22;       // times max |reference|, for inputs where naive is exact by luck
inline constexpr double kFloat32Nmse = 1e-10;          // four times the worst a blocked float32 kernel was measured at
inline constexpr double kFloat64OverFloat32 = 0x1p-29;  // ratio of the two unit roundoffs

inline double float32_bound(double naive_error, double reference_max) {
  return kFloat32Factor * naive_error + kFloat32Floor * reference_max;
}

/// The float32 rule scaled to float64, twice: the oracle's own rounding is as large as the kernel's.
inline double float64_bound(double naive_float32_error, double reference_max) {
  return 2 * kFloat64OverFloat32 * float32_bound(naive_float32_error, reference_max);
}

/// FlashAttention's rule for 16-bit storage: twice the error of a low-precision implementation, plus a floor that is
/// what two additions in that type do to the reference itself.
inline double low_precision_bound(double naive_error, const Values& reference, DType dtype) {
  double floor = 0;
  for (double value : reference)
    if (std::isfinite(value))
      floor = std::max(floor, std::abs(rounded(rounded(value + 0.3, dtype) - 0.3, dtype) - value));
  return 2 * naive_error + 2 * floor;
}

/// Central differences in float64: the step balances a truncation error of step^2 against rounding of unit / step.
inline constexpr double kDifferenceStep = 0x1p-17;
inline constexpr double kDifferenceRelative = 1e-6;
inline constexpr double kDifferenceAbsolute = 1e-8;

inline double difference_bound(double gradient) { return kDifferenceAbsolute + kDifferenceRelative * std::abs(gradient); }

/// Two algorithms in different precisions mean the same thing; any mistake of meaning is larger by orders of magnitude.
inline constexpr double kSameMeaningNmse = 1e-8;

/// Weights of a row add up to 1 to this: 1e-6 in float32; with 16-bit storage a weight and a result are each rounded once.
inline double row_sum_bound(DType dtype) {
  if (dtype == DType::bfloat16) return 0x1p-8;
  if (dtype == DType::float16) return 0x1p-11;
  return dtype == DType::float64 ? 1e-6 * kFloat64OverFloat32 : 1e-6;
}

/// A rate measured over `count` draws lies within 4 standard deviations of its probability.
inline double rate_bound(double probability, int64_t count) {
  return 4 * std::sqrt(probability * (1 - probability) / static_cast<double>(count));
}

/// Two float64 computations of the same sums in different order.
inline double reordering_bound(double reference_max) { return 0x1p-40 * reference_max; }

// ---------------------------------------------------------------------------------------------------------- comparators

inline testing::AssertionResult report(bool good, double error, double bound, double nmse) {
  auto result = good ? testing::AssertionSuccess() : testing::AssertionFailure();
  return result << "max abs error " << error << ", bound " << bound << ", NMSE " << nmse;
}

/// `actual`, computed in arithmetic of `dtype`, against the float64 oracle; `naive_error` is max_abs_error() of the naive
/// algorithm on the same input.
inline testing::AssertionResult close(const Values& actual, const Values& reference, double naive_error, DType dtype) {
  const double error = max_abs_error(actual, reference), nmse = normalized_error(actual, reference);
  switch (dtype) {
    case DType::float32: {
      const double bound = float32_bound(naive_error, max_abs(reference));
      return report(error <= bound && nmse <= kFloat32Nmse, error, bound, nmse);
    }
    case DType::float64: {
      const double bound = float64_bound(naive_error, max_abs(reference));
      return report(error <= bound, error, bound, nmse);
    }
    case DType::bfloat16:
    case DType::float16: {
      const double bound = low_precision_bound(naive_error, reference, dtype);
      return report(error <= bound, error, bound, nmse);
    }
    default: return testing::AssertionFailure() << "no rule for " << name_of(dtype);
  }
}

/// Two float64 computations of the same thing.
inline testing::AssertionResult close_float64(const Values& actual, const Values& reference) {
  const double error = max_abs_error(actual, reference), bound = reordering_bound(max_abs(reference));
  return report(error <= bound, error, bound, normalized_error(actual, reference));
}

/// NaN at exactly the same places, numbers everywhere else.
inline testing::AssertionResult same_nans(const Values& actual, const Values& reference) {
  if (actual.size() != reference.size()) return testing::AssertionFailure() << "sizes differ";
  for (size_t n = 0; n < actual.size(); ++n)
    if (std::isnan(actual[n]) != std::isnan(reference[n]))
      return testing::AssertionFailure() << "element " << n << " is " << actual[n] << ", not " << reference[n];
  return testing::AssertionSuccess();
}

}  // namespace attn::test
