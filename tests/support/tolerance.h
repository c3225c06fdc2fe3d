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

// -------------------------------------------------------------------------------------------------------- the formulas

inline constexpr double kUnit32 = 0x1p-24;  // relative error of one rounding
inline constexpr double kUnit64 = 0x1p-53;
inline constexpr double kRoundings = 4;        // roundings of the largest result, for where naive is exact by luck
inline constexpr double kFloat32Nmse = 1e-10;  // four times the worst a blocked float32 kernel was measured at

inline constexpr double unit_of(DType dtype) {
  if (dtype == DType::bfloat16) return 0x1p-8;
  if (dtype == DType::float16) return 0x1p-11;
  return dtype == DType::float64 ? kUnit64 : kUnit32;
}

/// What plain loops make of numbers up to `largest`, rounded so many times.
inline double rounding_bound(DType dtype, double largest, double roundings) {
  return roundings * unit_of(dtype) * largest;
}

inline constexpr int64_t kLuckySamples = 4;  // so few errors of the naive algorithm may all be nearly zero

/// Twice the error of the naive algorithm. That compares two maxima: over few samples they are a matter of luck, which
/// is given three standard deviations, for there are a million comparisons in the long sweeps.
inline double naive_factor(int64_t samples) {
  return 2 * (1 + 3 / std::sqrt(static_cast<double>(std::max<int64_t>(samples, 1))));
}

/// Normalised square error of rows of normal numbers that are rounded to multiples of max |x| / 127: the error is
/// uniform in half a step on both sides, and the largest of up to 1024 normal numbers is at most 3.5 standard
/// deviations.
inline constexpr double kInt8RowsNmse = 1 / (127.0 * 127.0);

/// What the naive algorithm gets wrong on the same input, the worst of several ways to write it.
struct Yardstick {
  double max_abs = 0, nmse = 0;
  double score;      // magnitude of the exponents of the weights, 0 where no weights are involved
  int64_t samples;   // rows that err independently
  double cancelled;  // sum of magnitudes after a result that is a signed sum itself (a score), 0 for the rest

  Yardstick(const std::vector<Values>& naive, const Values& reference, double score_, int64_t samples_,
            double cancelled_ = 0)
      : score(score_), samples(samples_), cancelled(cancelled_) {
    Values errors, nmses;
    for (const Values& way : naive) {
      errors.push_back(max_abs_error(way, reference));
      nmses.push_back(normalized_error(way, reference));
    }
    max_abs = worst_of(errors);
    nmse = worst_of(nmses);
  }
};

/// Error allowed in float32. A score is known to score * unit only, and exp() turns that into a relative error of a
/// weight, in every kernel; naive.score counts every rounded number of that size in the exponent. In a signed sum
/// of such weights the errors are relative to its terms.
inline double float32_bound(const Yardstick& naive, double reference_max) {
  const double rounded = std::max(reference_max, naive.cancelled);
  return naive_factor(naive.samples) * naive.max_abs + kUnit32 * (kRoundings + naive.score) * rounded;
}

/// The float32 rule scaled to float64, twice: the oracle's own rounding is as large as the kernel's.
inline double float64_bound(const Yardstick& naive_float32, double reference_max) {
  return 2 * kUnit64 / kUnit32 * float32_bound(naive_float32, reference_max);
}

/// Where scores are so large that a weight is not known to the fixed number: the rule of float32_bound, squared. A mean
/// over few samples says no more than the largest error.
inline double float32_nmse_bound(const Yardstick& naive) {
  if (naive.samples <= kLuckySamples) return kInf;
  const double weight = (kRoundings + naive.score) * kUnit32;
  return std::max(kFloat32Nmse,
                  naive_factor(naive.samples) * naive_factor(naive.samples) * (naive.nmse + weight * weight));
}

/// FlashAttention's rule for 16-bit storage: twice the error of a low-precision implementation, plus a floor that is
/// what two additions in that type do to the reference itself, or one rounding to the terms that cancel in it.
inline double low_precision_bound(const Yardstick& naive, const Values& reference, DType dtype) {
  double floor = 0;
  for (double value : reference)
    if (std::isfinite(value))
      floor = std::max(floor, std::abs(rounded(rounded(value + 0.3, dtype) - 0.3, dtype) - value));
  return naive_factor(naive.samples) * naive.max_abs + std::max(2 * floor, unit_of(dtype) * naive.cancelled);
}

/// The same layers in this type of 16 bits and in bfloat16, whose error is known: errors are roundings, in proportion
/// to the units of both.
inline double other_half_bound(double bfloat16_error, DType dtype, int64_t samples, double reference_max) {
  const double ratio = unit_of(dtype) / unit_of(DType::bfloat16);
  return naive_factor(samples) * ratio * bfloat16_error + kRoundings * unit_of(dtype) * reference_max;
}

/// How far the means of two groups of trainings may be apart if they differ in nothing but luck: four standard
/// deviations of that difference, by the spread of one group over its seeds.
inline double seeds_bound(const Values& losses) {
  const double n = static_cast<double>(losses.size());
  double mean = 0, squares = 0;
  for (double loss : losses) mean += loss / n;
  for (double loss : losses) squares += (loss - mean) * (loss - mean);
  return 4 * std::sqrt(squares / (n - 1) * 2 / n);
}

/// Central differences in float64: the step balances a truncation error of step^2 against rounding of unit / step.
inline constexpr double kDifferenceStep = 0x1p-17;
inline constexpr double kDifferenceRelative = 1e-6;
inline constexpr double kDifferenceAbsolute = 1e-8;

inline double difference_bound(double gradient) {
  return kDifferenceAbsolute + kDifferenceRelative * std::abs(gradient);
}

/// Two algorithms in different precisions mean the same thing; any mistake of meaning is larger by orders of magnitude.
inline constexpr double kSameMeaningNmse = 1e-8;

/// Weights of a row add up to 1 to this: 1e-6 in float32; with 16-bit storage a weight and a result are each rounded
/// once.
inline double row_sum_bound(DType dtype) {
  if (size_of(dtype) == 2) return unit_of(dtype);
  return dtype == DType::float64 ? 1e-12 : 1e-6;
}

/// A single weight exp(score - lse), at most 1, where score and lse are rounded.
inline double weight_bound(double score, DType dtype) {
  return (kRoundings + 2 * score) * (dtype == DType::float64 ? 4 * kUnit64 : 4 * kUnit32);
}

/// Relative error of sums of weights and of what they multiply, all of one sign. Weights below 1 / keys^4, whose scores
/// are known less well, add up to nothing beside kLostWeights; tiles add up 512 keys in the arithmetic's type at most.
inline double statistic_bound(double lse, int64_t keys, DType dtype) {
  const double smallest = 4 * std::log(static_cast<double>(keys) + 1);
  return weight_bound(lse + smallest, dtype) + 512 * (dtype == DType::float64 ? kUnit64 : kUnit32);
}
inline constexpr double kLostWeights = 1e-6;

/// The same of gradients through them, relative to the magnitudes of the terms that add up, which has P in it twice; a
/// term enters the products in the type of the call, and `terms` of them add up in the type of sums.
inline double statistic_gradient_bound(double lse, int64_t terms, DType dtype) {
  const DType sums = dtype == DType::float64 ? DType::float64 : DType::float32;
  return 2 * statistic_bound(lse, terms, sums) + static_cast<double>(terms) * unit_of(sums) +
         (size_of(dtype) == 2 ? unit_of(dtype) : 0);
}

/// A weight that a page computes, as a part of itself: what its 24 bits do to q and k, which the page says (view.h),
/// and rounding on both sides.
inline double page_weight_bound(double said, double score, DType dtype) {
  return std::expm1(said) + 2 * weight_bound(score, dtype == DType::float64 ? dtype : DType::float32);
}
/// Below, the library's float32 has 0 where a page, which computes in float64, may have something.
inline constexpr double kPageLeastWeight = std::numeric_limits<float>::min();
/// What a page may say of scores as small as the samples'.
inline constexpr double kPageMostSaid = 1e-4;
/// The same with the five digits that it shows.
inline double shown_weight_bound(double said, double score, DType dtype) {
  return page_weight_bound(said, score, dtype) + 0.5e-4;
}
/// What a page rounds to six digits.
inline constexpr double kSixDigits = 1e-5;
/// A weight that a pooled page keeps by its logarithm: half a step of `range` powers of two in `bits` bits, to both
/// sides, and what statistics are off by.
inline double log_code_bound(int bits, int range, double statistic) {
  return std::exp2(0.5 * range / (std::exp2(bits) - 2)) - 1 + statistic;
}
/// A weight of a thumbnail, in 24 bits of a float.
inline constexpr double kPageThumbnailStep = 0.5 / (0x1p24 - 1) + kUnit32;

/// A rate measured over `count` draws is within 4 standard deviations of its probability.
inline double rate_bound(double probability, int64_t count) {
  return 4 * std::sqrt(probability * (1 - probability) / static_cast<double>(count));
}

/// Two float64 computations of the same sums in different order.
inline double reordering_bound(double reference_max) { return 0x1p-40 * reference_max; }

/// exp, erf and their like are computed to so many roundings; 16 ulp at the worst, of the derivative of the tanh form
/// of gelu.
inline constexpr double kFunctionRoundings = 32;
inline constexpr double kLastFloat16 = 0x1p-24;  // the smallest subnormal number

/// A number stored as `dtype` after `roundings` more steps of arithmetic on terms of this magnitude. What is not a
/// normal number may become 0, before factors of up to 2^16; float16 keeps its subnormal numbers.
inline double element_bound(double value, double magnitude, double roundings, DType dtype) {
  const bool is_double = dtype == DType::float64;
  const double arithmetic = (is_double ? 2 * kUnit64 : kUnit32) * (kFunctionRoundings + roundings) * magnitude;
  const double stored = size_of(dtype) == 2 ? unit_of(dtype) * (std::abs(value) + arithmetic) : 0;
  const double lost = dtype == DType::float16 ? kLastFloat16 / 2 : is_double ? 0x1p-1006 : 0x1p-110;
  return arithmetic + stored + lost;
}

/// Of two ways to sum, by their errors on one input. One chain in the tiles is five times worse.
inline constexpr double kLikeAccuracy = 1.5;

/// What a product of float32 numbers may lose, next to the magnitudes of its terms, where they enter as fewer parts of
/// eight bits than three: the rest of both factors, and with two parts the product of the second ones.
inline constexpr double lost_by(Float32Precision precision) {
  constexpr double part = 0x1p-8;
  if (precision == Float32Precision::full) return 0;
  return precision == Float32Precision::high ? 3 * part * part : 2 * part + part * part;
}

// --------------------------------------------------------------------------------------------------------- comparators

inline testing::AssertionResult report(bool good, double error, double bound, double nmse) {
  auto result = good ? testing::AssertionSuccess() : testing::AssertionFailure();
  return result << "max abs error " << error << ", bound " << bound << ", NMSE " << nmse;
}

/// `actual`, computed in arithmetic of `dtype`, against the float64 oracle.
inline testing::AssertionResult close(const Values& actual, const Values& reference, const Yardstick& naive,
                                      DType dtype) {
  const double error = max_abs_error(actual, reference), nmse = normalized_error(actual, reference);
  double bound = kNaN, nmse_bound = kInf;
  if (dtype == DType::float32) {
    bound = float32_bound(naive, max_abs(reference));
    nmse_bound = float32_nmse_bound(naive);
  } else if (dtype == DType::float64) {
    bound = float64_bound(naive, max_abs(reference));
  } else {
    bound = low_precision_bound(naive, reference, dtype);
  }
  return report(error <= bound && nmse <= nmse_bound, error, bound, nmse);
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

// -------------------------------------------------------------------------------------------------------------- memory

/// What a process takes beside arrays: code that products are compiled to, stacks of threads, the allocator's own.
inline constexpr double kProcessBytes = 24e6;
/// Arrays of the tape come in eight sizes to a doubling and in whole huge pages, and which of them are in use at the
/// same time at the peak is counted to within two of a kind of some ten a layer.
inline constexpr double kMemoryFactor = 1.2;

inline testing::AssertionResult at_most_memory(double measured, double bytes) {
  if (measured <= kMemoryFactor * bytes + kProcessBytes) return testing::AssertionSuccess();
  return testing::AssertionFailure() << measured << " bytes were taken, at most " << bytes << " are needed";
}

/// An estimate and what was measured.
inline testing::AssertionResult close_memory(double estimate, double measured) {
  if (estimate <= kMemoryFactor * measured && measured <= kMemoryFactor * estimate + kProcessBytes)
    return testing::AssertionSuccess();
  return testing::AssertionFailure() << "estimated " << estimate << " bytes, measured " << measured;
}

}  // namespace attn::test
