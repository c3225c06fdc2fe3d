// The mask of a tile as one lane mask a key: the AND of every kind that is set.
//
// Intervals (length, causal, window) are events on the key axis; boolean masks are gathered as 64 keys x 64 rows of
// bits and transposed; documents and blocks touch each key or each block once. All of it is O(rows + keys) words a
// tile, which is 1 to 2 % of the tile's arithmetic at D = 64.
#include <algorithm>

#include "attention/walk.h"

namespace attn::detail {
namespace {

constexpr int kBits = 64;

void boolean_mask(const ConstView<4>& mask, const Sequence& s, const Panel& panel, const TileKernels& tk, int64_t begin,
                  int64_t end, uint64_t* allowed) {
  const int64_t stride = last_stride(mask);
  const bool one_head = std::all_of(panel.head, panel.head + panel.rows, [&](int64_t h) { return h == panel.head[0]; });
  const bool same_row = mask.size[2] == 1 && (mask.size[1] == 1 || one_head);
  const int rows = same_row ? 1 : panel.rows;
  const void* row[kernels::kMaxWidth];
  for (int r = 0; r < rows; ++r) row[r] = at(mask, s.batch, panel.head[r], panel.query[r], s.key_begin + begin);
  for (int64_t done = 0; done < end - begin; done += kBits) {
    const int64_t n = std::min<int64_t>(kBits, end - begin - done);
    uint64_t lanes[kBits] = {};
    if (stride == 1) {
      tk.mask({.row = row, .rows = rows, .keys = n, .allowed = lanes});
      for (int r = 0; r < rows; ++r) row[r] = static_cast<const char*>(row[r]) + kBits;
    } else {
      for (int r = 0; r < rows; ++r)
        for (int64_t j = 0; j < n; ++j)
          lanes[j] |= static_cast<uint64_t>(static_cast<const char*>(row[r])[(done + j) * stride] != 0) << r;
    }
    for (int64_t j = 0; j < n; ++j) {
      if (same_row && lanes[j]) lanes[j] = ~uint64_t{0};
      allowed[done + j] &= lanes[j];
    }
  }
  if (stride != 1) return;
  // The rows of the next tile are far apart in memory: ask for them while this one is computed.
  const int64_t last = std::min(s.key_count, end + tk.block_keys);
  for (int r = 0; r < rows; ++r) {
    const char* next = at(mask, s.batch, panel.head[r], panel.query[r], s.key_begin + end);
    for (int64_t byte = 0; byte < last - end; byte += 64) __builtin_prefetch(next + byte, 0, 2);
  }
}

void documents(const AttentionOptions& o, const Sequence& s, const Panel& panel, int64_t begin, int64_t end,
               uint64_t* allowed) {
  int64_t ids[kernels::kMaxWidth];
  uint64_t lanes[kernels::kMaxWidth];
  int distinct = 0;
  for (int r = 0; r < panel.rows; ++r) {
    const int64_t id = id_at(o.query_segment_ids, s.batch, panel.query[r]);
    const int at_id = static_cast<int>(std::find(ids, ids + distinct, id) - ids);
    if (at_id == distinct) {
      ids[distinct] = id;
      lanes[distinct++] = 0;
    }
    lanes[at_id] |= uint64_t{1} << r;
  }
  for (int64_t key = begin; key < end; ++key) {
    const int64_t id = id_at(o.key_segment_ids, s.batch, s.key_begin + key);
    const int at_id = static_cast<int>(std::find(ids, ids + distinct, id) - ids);
    allowed[key - begin] &= at_id < distinct ? lanes[at_id] : 0;
  }
}

void block_layout(const BlockLayout& blocks, const Shard& shard, const Sequence& s, const Panel& panel, int64_t begin,
                  int64_t end, uint64_t* allowed) {
  const int64_t first = shard.first_key + s.key_begin;
  for (int64_t key = begin; key < end;) {
    const int64_t block = (first + key) / blocks.key_block;
    const int64_t next = std::min(end, (block + 1) * blocks.key_block - first);
    uint64_t bits = 0;
    for (int r = 0; r < panel.rows; ++r) {
      const int64_t query_block = (shard.first_query + panel.query[r]) / blocks.query_block;
      const char* allowed_pair = at(blocks.allowed, s.batch, panel.head[r], query_block, block);
      bits |= static_cast<uint64_t>(*allowed_pair != 0) << r;
    }
    for (; key < next; ++key) allowed[key - begin] &= bits;
  }
}

}  // namespace

void interval_masks(const int64_t* first, const int64_t* last, int rows, int64_t begin, int64_t end,
                    uint64_t* allowed) {
  uint64_t opens[kernels::kMaxBlockKeys + 1], closes[kernels::kMaxBlockKeys + 1];
  std::fill_n(opens, end - begin + 1, 0);
  std::fill_n(closes, end - begin + 1, 0);
  uint64_t now = 0;
  for (int r = 0; r < rows; ++r) {
    const int64_t from = std::clamp(first[r], begin, end), to = std::clamp(last[r], begin, end);
    opens[from - begin] |= uint64_t{1} << r;
    closes[to - begin] |= uint64_t{1} << r;
  }
  for (int64_t key = 0; key < end - begin; ++key) {
    now = (now | opens[key]) & ~closes[key];
    allowed[key] = now;
  }
}

TileKind tile_mask(const Problem& p, const Sequence& s, const Panel& panel, const TileKernels& tk, int64_t begin,
                   int64_t end, uint64_t* allowed) {
  if (begin >= end || begin >= panel.high || end <= panel.low) return TileKind::empty;
  const bool inside = panel.full_low <= begin && end <= panel.full_high;
  if (inside && !p.has_key_masks()) return TileKind::full;
  const uint64_t everyone = all_lanes(panel.rows);
  if (inside) std::fill(allowed, allowed + (end - begin), everyone);
  else interval_masks(panel.begin, panel.end, panel.rows, begin, end, allowed);
  const AttentionOptions& o = *p.options;
  if (o.mask) boolean_mask(o.mask, s, panel, tk, begin, end, allowed);
  if (o.query_segment_ids) documents(o, s, panel, begin, end, allowed);
  if (o.blocks.allowed) block_layout(o.blocks, o.shard, s, panel, begin, end, allowed);
  if (panel.lists.given()) panel.lists.mask(begin, end, allowed);
  uint64_t any = 0, all = everyone;
  for (int64_t key = 0; key < end - begin; ++key) {
    any |= allowed[key];
    all &= allowed[key];
  }
  if (any == 0) return TileKind::empty;
  return all == everyone ? TileKind::full : TileKind::mixed;
}

}  // namespace attn::detail
