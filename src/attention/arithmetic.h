// The arithmetic of a call: which kernels compute it, the unit of its scores, single numbers of its arrays.
#pragma once

#include <cstdint>
#include <limits>
#include <numbers>

#include "attn/attention.h"
#include "kernels/table.h"

namespace attn::detail {

using kernels::TileKernels;

/// The kernels of weights and statistics for `rows` rows that share their keys.
const TileKernels& row_kernels(DType dtype, int64_t rows, const AttentionOptions& options);
/// The same for the backward, which few rows take elsewhere.
const TileKernels& gradient_kernels(DType dtype, int64_t rows, const AttentionOptions& options);
/// The same for the forward, which has variants for decode, one of them for keys and values of 8 bits.
const TileKernels& forward_kernels(DType dtype, int64_t rows, const AttentionOptions& options, bool is_int8 = false);
/// True if a score is its product, and a pair counts or does not.
bool masks_alone(const AttentionOptions& options);
/// True if a score is its product, and every key of a row's interval counts.
bool plain_scores(const AttentionOptions& options);
/// True if that is the variant.
bool is_few(DType dtype, int64_t rows, const AttentionOptions& options);

// Scores are kept as kScoreUnit * score, so that a weight is 2^(2 (s - reference)). The whole log2(e) would be the
// simpler unit, but a finite score beyond 2.3e38 would overflow in it; doubling the difference costs no multiplication.
constexpr double kScoreUnit = std::numbers::log2e / 2;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A score of +infinity is computed as the largest finite number, so that it wins alone instead of giving inf - inf.
inline double highest_score(const TileKernels& tk) {
  return tk.acc_bytes == 8 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
}

/// Where the scores of key `keys` of a tile begin: scores and weights are one where their format is.
inline int64_t scores_bytes(const TileKernels& tk, int64_t keys, int width) {
  return tk.one_format ? tk.weights_bytes(keys, width) : keys * width * tk.acc_bytes;
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
inline void set_all(const TileKernels& tk, void* array, int64_t n, double value) {
  for (int64_t i = 0; i < n; ++i) set(tk, array, i, value);
}

}  // namespace attn::detail
