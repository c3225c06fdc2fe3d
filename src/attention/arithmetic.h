// The arithmetic of a call: which kernels compute it, the unit of its scores, single numbers of its arrays.
#pragma once

#include <cstdint>
#include <limits>
#include <numbers>

#include "attn/core.h"
#include "kernels/table.h"

namespace attn::detail {

using kernels::TileKernels;

/// The kernels for a call: few = the decode variant.
const TileKernels& select_kernels(DType dtype, bool few);
/// Rows up to which the decode kernels serve: up to 8 of 16 lanes they beat the panel kernels on Zen 4.
int64_t few_rows(DType dtype);

// Scores are kept as kScoreUnit * score, so that a weight is 2^(2 (s - reference)). The whole log2(e) would be the
// simpler unit, but a finite score beyond 2.3e38 would overflow in it; doubling the difference costs no multiplication.
constexpr double kScoreUnit = std::numbers::log2e / 2;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A score of +infinity is computed as the largest finite number, so that it wins alone instead of giving inf - inf.
inline double highest_score(const TileKernels& tk) {
  return tk.acc_bytes == 8 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
}

/// The type of the arithmetic.
inline DType acc_type(const TileKernels& tk) { return tk.acc_bytes == 8 ? DType::float64 : DType::float32; }

/// Element i of an array of the arithmetic's type.
inline double get(const TileKernels& tk, const void* array, int64_t i) {
  return tk.acc_bytes == 8 ? static_cast<const double*>(array)[i] : static_cast<const float*>(array)[i];
}
inline void set(const TileKernels& tk, void* array, int64_t i, double value) {
  if (tk.acc_bytes == 8) static_cast<double*>(array)[i] = value;
  else static_cast<float*>(array)[i] = static_cast<float>(value);
}

}  // namespace attn::detail
