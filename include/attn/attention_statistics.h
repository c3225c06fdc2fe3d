// attention_statistics: numbers that describe the attention matrix P, in one pass that never stores it.
//
//   P_ij = exp(s_ij - lse_i)   as attention_weights() gives it: exactly 0 where a pair is masked, before dropout
//
// It needs the queries, keys and lse of a forward call. The pass takes about the time of the forward and O(Lq + Lk)
// memory. Results are bitwise equal for any number of threads. docs/operators/attention_statistics.md has formulas,
// costs and accuracy.
//
// ```cpp
// #include "attn/attention_statistics.h"
// int main() {
//   attn::Tensor<float, 4> q({1, 8, 100, 64}), k({1, 8, 100, 64}), v({1, 8, 100, 64}), out({1, 8, 100, 64});
//   attn::Random random(1);
//   for (attn::Tensor<float, 4>* x : {&q, &k, &v}) attn::fill_normal(*x, random);
//   attn::Tensor<float, 3> lse({1, 8, 100}), entropy({1, 8, 100});  // the entropy of each row
//   attn::attention(q, k, v, out, lse, {.causal = true});
//   attn::attention_statistics(q, k, lse, {.rows = {.entropy = entropy}}, {.causal = true});
// }
// ```
//
// Sources: entropy and distance as in Clark et al. 2019 (arXiv:1906.04341) and Vig & Belinkov 2019 (arXiv:1906.04284);
// factors of keys: the norms of Kobayashi et al. 2020 (arXiv:2004.10102).
#pragma once

#include <span>
#include <vector>

#include "attn/attention.h"

#pragma GCC visibility push(default)
namespace attn {

/// Consecutive keys: p_i + low to p_i + high, around the query's position, or low to high, from the start of its
/// sequence. Both ends are included; keys outside the sequence add nothing.
struct KeyBand {
  int64_t low = 0;
  int64_t high = 0;
  bool relative = true;
};
namespace key_bands {
inline constexpr KeyBand first = {0, 0, false};
inline constexpr KeyBand self = {0, 0};
inline constexpr KeyBand previous = {-1, -1};
inline constexpr KeyBand next = {1, 1};
}  // namespace key_bands

/// Sets of keys whose mass, the sum of their attention weights in a row, is computed.
struct KeySets {
  std::span<const KeyBand> bands = {};  ///< at most 64
  ConstView<2> labels = {};             ///< int32/int64 [B|1, Lk]: the set of each key, from 0; negative: in no set
  ConstView<2> query_token_ids = {};    ///< int32/int64 [B|1, Lq]: for same_token, keys with the query's id
  ConstView<2> key_token_ids = {};      ///< int32/int64 [B|1, Lk]
};

/// Statistics of one attention row, [B, H, Lq], or their mean over the rows of a head that have an allowed key, [B, H].
/// Views without data are not computed. Statistics of an empty row are 0; those of a row whose lse is NaN or +infinity
/// are NaN.
template <int Rank, class Pointer = void*>
struct RowStatistics {
  BasicView<Pointer, Rank> sum = {};            ///< sum_j P_ij: 1 minus the sink's share
  BasicView<Pointer, Rank> entropy = {};        ///< - sum_j P_ij ln P_ij, in nats
  BasicView<Pointer, Rank> participation = {};  ///< 1 / sum_j P_ij^2: the effective number of keys
  BasicView<Pointer, Rank> maximum = {};        ///< max_j P_ij
  BasicView<Pointer, Rank> distance = {};       ///< sum_j P_ij |p_i - j|
  BasicView<Pointer, Rank> same_token = {};     ///< mass of the keys with the query's id
  BasicView<Pointer, Rank + 1> bands = {};      ///< mass of each of sets.bands: [..., bands]
  BasicView<Pointer, Rank + 1> labels = {};     ///< mass of each label 0 .. sets - 1: [..., sets], sets at most 64
};

/// A pooled picture of P: cell (r, c) is the mean, or the maximum, of a rectangle of P. Of n rows shown in R cells,
/// cell r has the rows with floor(row * R / n) = r; columns alike. Masked pairs count as 0.
struct AttentionPicture {
  View<4> cells = {};  ///< [B, H, R, C]; R and C at most the rows and columns shown
  bool maximum = false;
  int64_t first_query = 0, queries = -1;  ///< rows of P that are shown; -1 = to the end
  int64_t first_key = 0, keys = -1;       ///< columns of P that are shown
};

/// The results of attention_statistics(). A view without data is not computed. Values have lse's type, keys are int64.
struct AttentionStatistics {
  RowStatistics<3> rows = {};
  RowStatistics<2> means = {};
  /// int64 [B, H, Lq]: the key of the row's maximum, the first of equals; -1 where no weight is above 0.
  View<3> argmax_key = {};
  View<4> top_weight = {};  ///< [B, H, Lq, n]: the n largest weights of a row, descending; n at most 256
  /// int64 [B, H, Lq, n]: their keys, ascending among equals; -1 and weight 0 where there are fewer.
  View<4> top_key = {};
  View<3> column_mass = {};      ///< [B, H, Lk]: key_factor_j sum_i P_ij
  View<3> column_position = {};  ///< [B, H, Lk]: sum_i P_ij p_i / sum_i P_ij; NaN where the sum is 0
  AttentionPicture picture = {};

  KeySets sets = {};
  /// Factors on P in column_mass and in the picture, not negative, of lse's type, [B|1, H|Hk|1, Lk]. With ||v_j W_O||
  /// these are the norm-weighted attention of Kobayashi et al.
  ConstView<3> key_factor = {};
};

/// Computes every statistic that has a view in `wanted`, in one pass over the pairs.
///   q [B, H, Lq, D], k [B, Hk, Lk, D], lse [B, H, Lq] of attention(), options: those of that call.
/// Distances, relative bands and column_position need options.alignment where Lq != Lk.
///
/// The function checks that each row sums up to 1, the sink's share included, within rounding. An lse that does not
/// belong to q, k and options is an Error that names the first such row; it is thrown after the pass, and the results
/// are then undefined. Where `wanted` has only a picture, the rows outside it are neither computed nor checked.
void attention_statistics(ConstView<4> q, ConstView<4> k, ConstView<3> lse, const AttentionStatistics& wanted,
                          const AttentionOptions& options = {});

/// Gradients of a loss with respect to row statistics, of lse's type: [B, H, Lq], [B, H, Lq, bands] and
/// [B, H, Lq, sets].
using RowStatisticsGradients = RowStatistics<3, const void*>;

/// Computes dq, dk, dbias and dsink of a loss L that depends on row statistics; lse is that of q, k and options:
///   dS_ij = P_ij (g_ij - sum_j P_ij g_ij),   g_ij = dL / dP_ij
///   statistics: what attention_statistics() has filled. The function reads its key sets; for every member of `drows`
///   that has data, the same member of `rows` (except `sum`); and argmax_key if drows.maximum is given.
/// Bitwise equal for any number of threads; O(Lq + Lk) memory. Statistics do not depend on v: gradients.dv is an Error.
void attention_statistics_backward(ConstView<4> q, ConstView<4> k, ConstView<3> lse,
                                   const AttentionStatistics& statistics, const RowStatisticsGradients& drows,
                                   const AttentionGradients& gradients, const AttentionOptions& options = {});

namespace reference {
/// The same as plain float64 loops, of any floating type. It does not check lse.
void attention_statistics(ConstView<4> q, ConstView<4> k, ConstView<3> lse, const AttentionStatistics& wanted,
                          const AttentionOptions& options = {});
/// It recomputes the statistics and reads only the key sets of `statistics`.
void attention_statistics_backward(ConstView<4> q, ConstView<4> k, ConstView<3> lse,
                                   const AttentionStatistics& statistics, const RowStatisticsGradients& drows,
                                   const AttentionGradients& gradients, const AttentionOptions& options = {});
}  // namespace reference

}  // namespace attn
#pragma GCC visibility pop
