// What a page is given to compute weights with, as base 64 (RFC 4648) of little-endian numbers.
//
//   w_ij = exp(cap(scale <q_i, k_j>) + added_ij - lse_i)       cap(s) = softcap tanh(s / softcap) where there is one
#pragma once

#include <span>

#include "view/weights.h"

namespace attn::view {

/// Rows [n, D] of q or k: the largest magnitude m of each row as float64 [n], then elements of 24 bits [n, D], where
/// 2^23 + round((2^23 - 1) x / m) means x. A row that is not finite has m = NaN: no weight but 0 comes of it.
std::string pack_vectors(const ConstView<4>& x, int64_t head);
/// The largest m of finite rows.
double largest_magnitude(const ConstView<4>& x, int64_t head);

/// lse of one head as float64 [n].
std::string pack_lse(const ConstView<3>& lse, int64_t head);

/// Weights [count] in 24 bits: round((2^24 - 1) w).
std::string pack_weights(const std::vector<float>& weights);

/// What the options add to the scores of each of these heads, -infinity where a pair is not allowed: words of 32 bits,
/// in turn a count of numbers that are as predicted, a count of others, and these as float32. Row by row, a number
/// is predicted to be the one before it on its diagonal; in the first column the one above, in the first row the one
/// before, and at the beginning 0. So causal masks, windows and ALiBi cost nothing that counts.
std::vector<std::string> pack_added(const RecordedAttention& layer, int64_t index, const std::vector<int64_t>& heads);

}  // namespace attn::view
