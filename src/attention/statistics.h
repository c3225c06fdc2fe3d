// What attention_statistics() does, with keys in arrays or in KV pages, and its checks, which the reference shares.
#pragma once

#include "attention/problem.h"
#include "attn/attention_statistics.h"

namespace attn::detail {

inline constexpr int64_t kMaxKeySets = 64;  // bands, and sets of labels
inline constexpr int64_t kMaxLargest = 256;

/// Sets of labels that some result wants.
inline int64_t label_count(const AttentionStatistics& wanted) {
  return wanted.rows.labels ? wanted.rows.labels.size[3] : wanted.means.labels ? wanted.means.labels.size[2] : 0;
}

/// What the picture shows.
inline Rectangle shown(const AttentionPicture& picture, const Problem& p) {
  const int64_t queries = picture.queries < 0 ? p.Lq - picture.first_query : picture.queries;
  const int64_t keys = picture.keys < 0 ? p.Lk - picture.first_key : picture.keys;
  return {picture.first_query, picture.first_query + queries, picture.first_key, picture.first_key + keys};
}

/// The element of key_factor.
double key_factor_at(const ConstView<3>& factor, int64_t b, int64_t h, int64_t j);

enum class ValueTypes { of_lse, any };

/// Everything that is wanted has its shape and type and what it needs; lse is given; nothing overlaps.
void check_statistics(Checker& checker, const Problem& p, const ConstView<3>& lse, const AttentionStatistics& wanted,
                      ValueTypes types);
/// Checks of attention_statistics_backward() beside those of the forward, for the kernels and for the reference.
void check_statistics_backward(Checker& checker, const Problem& p, const ConstView<3>& lse,
                               const AttentionStatistics& statistics, const RowStatisticsGradients& drows,
                               const AttentionGradients& gradients, ValueTypes types);
/// attention_statistics() of a problem that `checker` has seen.
void make_statistics(Checker& checker, const Problem& p, const ConstView<3>& lse, const AttentionStatistics& wanted);

}  // namespace attn::detail
