// sharded_case: a Case of the table of options on ranks: shards of its arrays, and results that are whole again.
#pragma once

#include <string>
#include <vector>

#include "attn/cluster.h"
#include "support/checks.h"

namespace attn::test {

/// The rows (axis 2) of a rank.
template <int Rank>
Array<Rank> rows_of(const Array<Rank>& whole, const cluster::Placement& placement, int rank) {
  Shape<Rank> size = whole.size();
  size[2] = placement.tokens(rank);
  Array<Rank> shard(whole.dtype(), size);
  int64_t to = 0;
  const int64_t heads = size[0] * size[1], width = Rank == 4 ? size[Rank - 1] : 1;
  for (const cluster::TokenRange& range : placement.ranges(rank))
    for (int64_t i = range.begin; i < range.end; ++i, ++to)
      for (int64_t head = 0; head < heads; ++head)
        for (int64_t d = 0; d < width; ++d)
          shard.set((head * size[2] + to) * width + d, whole.get((head * placement.tokens() + i) * width + d));
  return shard;
}

/// The whole of shards [B, H, rows of the rank, ...], on every rank.
template <int Rank>
Array<Rank> gathered(cluster::Communicator& ranks, const cluster::Placement& placement, const Array<Rank>& shard) {
  Shape<Rank> size = shard.size();
  int64_t most = 0;
  for (int rank = 0; rank < ranks.size(); ++rank) most = std::max(most, placement.tokens(rank));
  const int64_t width = Rank == 4 ? size[Rank - 1] : 1, heads = size[0] * size[1];
  const int64_t bytes = heads * most * width * size_of(shard.dtype());
  std::vector<std::byte> mine(bytes), all(bytes * ranks.size());
  std::copy(shard.bytes().begin(), shard.bytes().end(), mine.begin());
  ranks.all_gather(mine.data(), bytes, all.data());
  size[2] = placement.tokens();
  Array<Rank> whole(shard.dtype(), size);
  for (int rank = 0; rank < ranks.size(); ++rank) {
    int64_t from = 0;
    for (const cluster::TokenRange& range : placement.ranges(rank))
      for (int64_t i = range.begin; i < range.end; ++i, ++from)
        for (int64_t head = 0; head < heads; ++head)
          for (int64_t d = 0; d < width; ++d)
            whole.set((head * size[2] + i) * width + d,
                      load_element(all.data() + rank * bytes, shard.dtype(),
                                   (head * placement.tokens(rank) + from) * width + d));
  }
  return whole;
}

inline cluster::Placement placement_of(int kind, int64_t tokens, int ranks, int64_t chunk) {
  using cluster::Placement;
  return kind == 0   ? Placement::contiguous(tokens, ranks, chunk)
         : kind == 1 ? Placement::zigzag(tokens, ranks, chunk)
                     : Placement::striped(tokens, ranks, chunk);
}

/// The results of a Case, computed by all `ranks`; whole on each of them.
inline Results run_sharded(cluster::Communicator& ranks, const Case& c, int kind, int64_t chunk,
                           cluster::Schedule schedule) {
  const int rank = ranks.rank();
  const cluster::Placement queries = placement_of(kind, c.dims.Lq, ranks.size(), chunk);
  const cluster::Placement keys = placement_of(kind, c.dims.Lk, ranks.size(), chunk);
  const cluster::Sharding sharding(queries, keys);
  Case mine = c;
  mine.dims.Lq = queries.tokens(rank);
  mine.dims.Lk = keys.tokens(rank);
  for (Array<4>* array : {&mine.q, &mine.dout}) *array = rows_of(*array, queries, rank);
  for (Array<4>* array : {&mine.k, &mine.v}) *array = rows_of(*array, keys, rank);
  mine.dlse = rows_of(c.dlse, queries, rank);
  for (Array<4>* array : {&mine.mask, &mine.bias})
    if (array->given() && array->size()[2] == c.dims.Lq && c.dims.Lq > 1) *array = rows_of(*array, queries, rank);
  AttentionOptions options = mine.options();
  if (c.mask.given()) options.mask = mine.mask.view();  // with its shape, where a rank has no rows
  if (c.bias.given()) options.bias = mine.bias.view();
  Results r = empty_results(mine, c.dtype, true);
  if (c.bias.given()) r.dbias = Array<4>(lse_type(c.dtype), mine.bias.size()).fill_with_nan();
  AttentionGradients to = gradients_of(r);
  if (c.bias.given()) to.dbias = r.dbias.view();
  cluster::attention(ranks, sharding, mine.q.view(), mine.k.view(), mine.v.view(), r.out.view(), r.lse.view(), options,
                     schedule);
  cluster::attention_backward(ranks, sharding, mine.q.view(), mine.k.view(), mine.v.view(), r.out.view(), r.lse.view(),
                              mine.dout.view(), to, options, mine.dlse.view(), schedule);
  for (Array<4>* array : {&r.out, &r.dq}) *array = gathered(ranks, queries, *array);
  for (Array<4>* array : {&r.dk, &r.dv}) *array = gathered(ranks, keys, *array);
  r.lse = gathered(ranks, queries, r.lse);
  if (c.bias.given() && c.bias.size()[2] == c.dims.Lq && c.dims.Lq > 1) r.dbias = gathered(ranks, queries, r.dbias);
  return r;
}

}  // namespace attn::test
