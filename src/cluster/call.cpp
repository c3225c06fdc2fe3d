#include "cluster/call.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/numbers.h"

namespace attn::cluster {

RankChunks::RankChunks(const Placement& placement, int rank) : first_(placement.first_place(rank)) {
  const int64_t count = placement.first_place(rank + 1) - first_;
  offset_.resize(count);
  std::vector<int64_t> by_position(count);
  std::iota(by_position.begin(), by_position.end(), 0);
  const auto chunk = [&](int64_t n) { return placement.chunk(first_ + n); };
  std::sort(by_position.begin(), by_position.end(),
            [&](int64_t a, int64_t b) { return chunk(a).begin < chunk(b).begin; });
  int64_t rows = 0;
  for (const int64_t n : by_position) {
    offset_[n] = rows;
    rows += chunk(n).end - chunk(n).begin;
  }
}

// ----------------------------------------------------------------------------------------------------------- the whole

Whole::Whole(Checker& checker, const Sharding& sharding, const ClusterShape& shape, const AttentionOptions& options)
    : sharding_(sharding), shape_(shape), options_(options) {
  options_.mask = options_.bias = {};
  checker.require(sharding_.queries.ranks() == sharding_.keys.ranks(), [&] {
    return "queries are placed on " + std::to_string(sharding_.queries.ranks()) + " ranks and keys on " +
           std::to_string(sharding_.keys.ranks()) + ", must be as many";
  });
  const Shard& shard = options.shard;
  checker.require(shard.first_query == 0 && shard.first_key == 0 && shard.queries == 0 && shard.keys == 0,
                  "shard may say first_batch and first_head alone: the sharding says which queries and keys there are");
  problem_.B = shape.B;
  problem_.H = shape.H;
  problem_.Hk = shape.Hk;
  problem_.G = shape.Hk > 0 ? shape.H / shape.Hk : 1;
  problem_.Lq = sharding_.queries.tokens();
  problem_.Lk = sharding_.keys.tokens();
  problem_.D = shape.D;
  problem_.Dv = shape.Dv;
  detail::resolve_options(checker, problem_, options_);
  if (!checker.ok() || !options_.query_segment_ids) return;
  query_ids_ = ranges_of_ids(options_.query_segment_ids, shape.B, sharding_.queries);
  key_ids_ = ranges_of_ids(options_.key_segment_ids, shape.B, sharding_.keys);
}

bool Whole::visible_by_position(const TokenRange& queries, const TokenRange& keys) const {
  for (const detail::Sequence& s : problem_.sequences) {
    const int64_t first = std::max(queries.begin, s.query_begin);
    const int64_t end = std::min(queries.end, s.query_begin + s.query_count);
    if (first >= end) continue;
    const int64_t first_place = first - s.query_begin + s.shift, last_place = end - 1 - s.query_begin + s.shift;
    const int64_t low = std::max<int64_t>({0, saturating_sub(first_place, problem_.left), keys.begin - s.key_begin});
    const int64_t high =
        std::min({s.key_count, saturating_add(saturating_add(last_place, problem_.right), 1), keys.end - s.key_begin});
    if (low < high) return true;
  }
  return false;
}

std::vector<Whole::Range> Whole::ranges_of_ids(const ConstView<2>& ids, int64_t batch, const Placement& placement) {
  std::vector<Range> ranges;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t place = 0; place < placement.chunks(); ++place) {
      Range found = {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()};
      for (int64_t i = placement.chunk(place).begin; i < placement.chunk(place).end; ++i) {
        const int64_t id = detail::id_at(ids, b, i);
        found = {std::min(found.first, id), std::max(found.second, id)};
      }
      ranges.push_back(found);
    }
  return ranges;
}

bool Whole::visible_by_segment(int64_t query_place, int64_t key_place) const {
  if (!options_.query_segment_ids) return true;
  for (int64_t b = 0; b < shape_.B; ++b) {
    const Range& queries = query_ids_[b * sharding_.queries.chunks() + query_place];
    const Range& keys = key_ids_[b * sharding_.keys.chunks() + key_place];
    if (queries.first <= keys.second && keys.first <= queries.second) return true;
  }
  return false;
}

bool Whole::visible_by_block(const TokenRange& queries, const TokenRange& keys) const {
  const BlockLayout& blocks = options_.blocks;
  if (!blocks.given()) return true;
  const int64_t first_key = keys.begin / blocks.key_block, last_key = (keys.end - 1) / blocks.key_block;
  const Shape<4>& extent = blocks.allowed.size;
  const auto heads = [&](int axis) { return blocks.allowed ? extent[axis] : blocks.offsets.size[axis]; };
  const auto listed = [&](int64_t b, int64_t h, int64_t n) {
    const ConstView<3>& offsets = blocks.offsets;
    const auto* from = static_cast<const int64_t*>(offsets.data) + b * offsets.stride[0] + h * offsets.stride[1];
    for (int64_t t = from[n * offsets.stride[2]]; t < from[(n + 1) * offsets.stride[2]]; ++t) {
      const int64_t block = static_cast<const int64_t*>(blocks.indices.data)[t * blocks.indices.stride[0]];
      if (block >= first_key && block <= last_key) return true;
    }
    return false;
  };
  for (int64_t b = 0; b < heads(0); ++b)
    for (int64_t h = 0; h < heads(1); ++h)
      for (int64_t n = queries.begin / blocks.query_block; n <= (queries.end - 1) / blocks.query_block; ++n) {
        if (!blocks.allowed && listed(b, h, n)) return true;
        for (int64_t m = first_key; blocks.allowed && m <= last_key; ++m)
          if (*detail::at(blocks.allowed, b, h, n, m) != 0) return true;
      }
  return false;
}

bool Whole::visible(int64_t query_place, int64_t key_place) const {
  const TokenRange queries = sharding_.queries.chunk(query_place), keys = sharding_.keys.chunk(key_place);
  return visible_by_position(queries, keys) && visible_by_segment(query_place, key_place) &&
         visible_by_block(queries, keys);
}

std::vector<int64_t> Whole::needed(int to, int from) const {
  std::vector<int64_t> places;
  const Placement &queries = sharding_.queries, &keys = sharding_.keys;
  for (int64_t j = keys.first_place(from); j < keys.first_place(from + 1); ++j)
    for (int64_t i = queries.first_place(to); i < queries.first_place(to + 1); ++i)
      if (visible(i, j)) {
        places.push_back(j);
        break;
      }
  return places;
}

int64_t Whole::chunk_bytes(int64_t key_place) const {
  const TokenRange keys = sharding_.keys.chunk(key_place);
  return shape_.B * shape_.Hk * (keys.end - keys.begin) * (shape_.D + shape_.Dv) * size_of(shape_.dtype);
}

std::vector<RankNode> nodes_of_rank(const Placement& queries, int rank, const std::function<bool(int64_t)>& has_value) {
  FixedTree<bool> tree(queries.chunks());
  for (int64_t i = queries.first_place(rank); i < queries.first_place(rank + 1); ++i)
    tree.add({0, i}, has_value(i) ? std::optional(true) : std::nullopt, [](bool&, bool) {});
  std::vector<RankNode> nodes;
  for (const auto& [node, value] : tree.waiting()) nodes.push_back({node, value.has_value()});
  return nodes;
}

// ---------------------------------------------------------------------------------------------- pairs of chunks

std::unique_ptr<Transfer> start(Communicator& ranks, std::vector<Message> sent, std::vector<Message> received,
                                int tag) {
  for (std::vector<Message>* messages : {&sent, &received})
    std::erase_if(*messages, [](const Message& message) { return message.bytes == 0; });
  return ranks.start(sent, received, tag);
}

AttentionOptions pair_options(const Whole& whole, const AttentionOptions& rows, int64_t query_place, int64_t first_row,
                              int64_t key_place) {
  const Placement &of_queries = whole.sharding().queries, &of_keys = whole.sharding().keys;
  const TokenRange queries = of_queries.chunk(query_place), keys = of_keys.chunk(key_place);
  AttentionOptions o = whole.options();
  o.sink = {};
  o.shard = {o.shard.first_batch, o.shard.first_head, queries.begin, keys.begin, of_queries.tokens(), of_keys.tokens()};
  const auto pairs = [&](const ConstView<4>& view) {
    ConstView<4> part = view;
    if (part && part.size[2] != 1) part = part.slice(2, first_row, first_row + queries.end - queries.begin);
    if (part && part.size[3] != 1) part = part.slice(3, keys.begin, keys.end);
    return part;
  };
  o.mask = pairs(rows.mask);
  o.bias = pairs(rows.bias);
  if (o.query_segment_ids) {
    o.query_segment_ids = o.query_segment_ids.slice(1, queries.begin, queries.end);
    o.key_segment_ids = o.key_segment_ids.slice(1, keys.begin, keys.end);
  }
  return o;
}

}  // namespace attn::cluster
