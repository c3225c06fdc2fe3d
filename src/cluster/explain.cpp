// explain(): what each rank sends and computes, from the same plan as the calls.
#include <algorithm>

#include "cluster/exchange.h"
#include "core/checker.h"

namespace attn::cluster {
namespace {

/// Gradients of keys that a rank sends to another, as nodes of the trees over its queries.
int64_t gradient_bytes(const Whole& whole, int from, int to) {
  const Placement &queries = whole.sharding().queries, &keys = whole.sharding().keys;
  const int64_t element = size_of(sum_type(whole.shape().dtype));
  int64_t bytes = 0;
  for (int64_t j = keys.first_place(to); j < keys.first_place(to + 1); ++j)
    for (const RankNode& node : nodes_of_rank(queries, from, [&](int64_t i) { return whole.visible(i, j); }))
      if (node.has_value) bytes += whole.chunk_bytes(j) / size_of(whole.shape().dtype) * element;
  return bytes;
}

double pair_flops(const Whole& whole, int64_t i, int64_t j, bool backward) {
  static const char kNothing[8] = {};  // of which nothing is read
  const ClusterShape& s = whole.shape();
  const auto tensor = [&](int64_t heads, const TokenRange& range, int64_t n) {
    return ConstView<4>(kNothing, s.dtype, {s.B, heads, range.end - range.begin, n}, {0, 0, 0, 0});
  };
  const TokenRange queries = whole.sharding().queries.chunk(i), keys = whole.sharding().keys.chunk(j);
  const AttentionOptions options = pair_options(whole, {}, i, 0, j);
  const ConstView<4> q = tensor(s.H, queries, s.D), k = tensor(s.Hk, keys, s.D), v = tensor(s.Hk, keys, s.Dv);
  return (backward ? attn::explain_backward(q, k, v, options) : attn::explain(q, k, v, options)).flops;
}

}  // namespace

ClusterPlan explain(const Sharding& sharding, const ClusterShape& shape, const AttentionOptions& options, bool backward,
                    Schedule schedule) {
  Checker checker("cluster::explain");
  const Whole whole(checker, sharding, shape, options);
  checker.done();
  const int ranks = whole.ranks();
  ClusterPlan plan;
  plan.bytes_sent.resize(ranks);
  plan.flops.resize(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    for (int other = 0; other < ranks; ++other) {
      if (other != rank)
        for (const int64_t place : whole.needed(other, rank)) plan.bytes_sent[rank] += whole.chunk_bytes(place);
      if (other != rank && backward) plan.bytes_sent[rank] += gradient_bytes(whole, rank, other);
    }
    for (int64_t i = sharding.queries.first_place(rank); i < sharding.queries.first_place(rank + 1); ++i)
      for (int64_t j = 0; j < sharding.keys.chunks(); ++j)
        if (whole.visible(i, j)) plan.flops[rank] += pair_flops(whole, i, j, backward);
    const int64_t bytes = KeyExchange::buffer_bytes(whole, rank, steps_ahead(schedule, ranks));
    plan.buffer_bytes = std::max(plan.buffer_bytes, bytes);
  }
  return plan;
}

}  // namespace attn::cluster
