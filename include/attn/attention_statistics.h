// attention_statistics: numbers that describe the attention matrix P, in one pass that never stores it.
//
//   P_ij = exp(s_ij - lse_i)   as attention_weights() gives it: exactly 0 where a pair is masked, before dropout
//
// Queries, keys and lse of a forward call are enough. The pass costs about as much as the forward, whatever is asked
// for, and O(Lq + Lk) memory; what is not asked for costs nothing. Results are bitwise equal for any number of threads.
// docs/operators/attention_statistics.md has formulas, costs and accuracy.
//
// Sources: entropy and distance as in Clark et al. 2019 (arXiv:1906.04341) and Vig & Belinkov 2019 (arXiv:1906.04284);
// factors of keys: the norms of Kobayashi et al. 2020 (arXiv:2004.10102).
#pragma once

#include <span>
#include <vector>

#include "attn/attention.h"

#pragma GCC visibility push(default)
namespace attn {

/// Consecutive keys: p_i + low .. p_i + high around where the query stands, or low .. high from the start of its
/// sequence. Both ends are included; keys that do not exist count nothing.
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

/// Sets of keys that a row's mass is asked for.
struct KeySets {
  std::span<const KeyBand> bands = {};  ///< at most 64
  ConstView<2> labels = {};             ///< int32/int64 [B|1, Lk]: the set of each key, from 0; negative = in none
  ConstView<2> query_token = {};        ///< int32/int64 [B|1, Lq]; with key_token: keys whose id is the query's
  ConstView<2> key_token = {};          ///< int32/int64 [B|1, Lk]
};

/// What there is of a row: [B, H, Lq], or its mean over the rows of a head with weight on a key: [B, H]. Views without
/// data are not computed. A row without allowed keys is 0 everywhere; a row whose lse is NaN or +infinity is NaN.
template <int Rank, class Pointer = void*>
struct RowStatistics {
  BasicView<Pointer, Rank> sum = {};            ///< sum_j P_ij: 1, less what a sink took
  BasicView<Pointer, Rank> entropy = {};        ///< - sum_j P_ij ln P_ij over the keys, in nats
  BasicView<Pointer, Rank> participation = {};  ///< 1 / sum_j P_ij^2: the effective number of keys, or rank
  BasicView<Pointer, Rank> maximum = {};        ///< max_j P_ij
  BasicView<Pointer, Rank> distance = {};       ///< sum_j P_ij |p_i - j|
  BasicView<Pointer, Rank> same_token = {};     ///< mass on the keys with the query's id
  BasicView<Pointer, Rank + 1> bands = {};      ///< mass on each of sets.bands: [..., bands]
  BasicView<Pointer, Rank + 1> labels = {};     ///< mass on each set of labels below sets: [..., sets], at most 64
};

/// P pooled: cell (r, c) is the mean, or the largest, of a rectangle of P. Of n rows that are shown in R bands, band r
/// has those with floor(row * R / n) = r; columns alike. Masked pairs count as 0.
struct AttentionPicture {
  View<4> cells = {};  ///< [B, H, R, C], R and C at most as many as there are rows and columns
  bool maximum = false;
  int64_t first_query = 0, queries = -1;  ///< the rows of P that are shown; -1 = to the end
  int64_t first_key = 0, keys = -1;       ///< the columns
};

/// Where the results go; a view without data is not computed. Values are of lse's type, keys are int64.
struct AttentionStatistics {
  RowStatistics<3> rows = {};
  RowStatistics<2> means = {};
  /// int64 [B, H, Lq]: the key of the row's maximum, the first of equals; -1: no weight above 0.
  View<3> position = {};
  View<4> top_weight = {};  ///< [B, H, Lq, n]: the n largest weights of a row, falling; n at most 256
  /// int64 [B, H, Lq, n]: their keys, rising among equals; -1 and weight 0 where there are fewer.
  View<4> top_key = {};
  View<3> column_mass = {};      ///< [B, H, Lk]: sum_i P_ij, times the key's factor
  View<3> column_position = {};  ///< [B, H, Lk]: sum_i P_ij p_i / sum_i P_ij, on the axis of keys; NaN: nobody looks
  AttentionPicture picture = {};

  KeySets sets = {};
  /// Not negative, of lse's type, [B|1, H|Hk|1, Lk]: multiplies P in column_mass and in the picture. ||v_j W_O|| makes
  /// them the norm-weighted attention of Kobayashi et al.
  ConstView<3> key_factor = {};
};

/// Memory for a result of lse's type, zero at birth, that is read as numbers.
template <int Rank>
class ResultTensor {
 public:
  ResultTensor(DType dtype, const Shape<Rank>& size)
      : memory_(count_of(size.data(), Rank, size_of(dtype)) * size_of(dtype), true),
        view_(memory_.data(), dtype, size) {}
  View<Rank> view() const { return view_; }
  operator View<Rank>() const { return view_; }
  double operator[](int64_t n) const {
    return view_.dtype == DType::float64 ? static_cast<const double*>(view_.data)[n]
                                         : static_cast<const float*>(view_.data)[n];
  }
  template <class T = double>
  std::vector<T> values() const {
    std::vector<T> values;
    for (int64_t n = 0; n < view_.count(); ++n) values.push_back(static_cast<T>((*this)[n]));
    return values;
  }

 private:
  Buffer memory_;
  View<Rank> view_;
};

/// Computes what `wanted` has views for.
///   q [B, H, Lq, D], k [B, Hk, Lk, D], lse [B, H, Lq] of attention(), options: those of that call.
/// Where distances, relative bands or column_position are asked for and Lq != Lk, the alignment must be named.
///
/// Rows that are walked must sum up to 1 with what the sink took, within what rounding can explain: an lse that does
/// not belong to q, k and options is an Error that names the first row, thrown after the pass: the results are then of
/// no use. Rows are walked unless a picture alone is asked for, which takes those that it shows.
void attention_statistics(ConstView<4> q, ConstView<4> k, ConstView<3> lse, const AttentionStatistics& wanted,
                          const AttentionOptions& options = {});

/// Gradients of a loss by statistics of rows: [B, H, Lq], [B, H, Lq, bands], [B, H, Lq, sets], of lse's type, to be
/// read.
using RowStatisticsGradients = RowStatistics<3, const void*>;

/// dq, dk, dbias and dsink of a loss L that is a function of statistics of rows, lse being that of q, k and options:
///   dS_ij = P_ij (g_ij - sum_j P_ij g_ij),   g_ij = dL / dP_ij
///   statistics: what attention_statistics() was given and has filled. Read are its sets, those of its rows whose
///   gradient `drows` has (but sum), and for the maximum its position.
/// Bitwise equal for any number of threads; O(Lq + Lk) memory. There are no values: gradients.dv is an Error.
void attention_statistics_backward(ConstView<4> q, ConstView<4> k, ConstView<3> lse,
                                   const AttentionStatistics& statistics, const RowStatisticsGradients& drows,
                                   const AttentionGradients& gradients, const AttentionOptions& options = {});

namespace reference {
/// The same as plain float64 loops; values may be of any floating type. Takes lse as it is.
void attention_statistics(ConstView<4> q, ConstView<4> k, ConstView<3> lse, const AttentionStatistics& wanted,
                          const AttentionOptions& options = {});
/// Takes nothing from the forward but its sets.
void attention_statistics_backward(ConstView<4> q, ConstView<4> k, ConstView<3> lse,
                                   const AttentionStatistics& statistics, const RowStatisticsGradients& drows,
                                   const AttentionGradients& gradients, const AttentionOptions& options = {});
}  // namespace reference

}  // namespace attn
#pragma GCC visibility pop
