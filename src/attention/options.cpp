#include "attention/options.h"

#include <algorithm>
#include <cmath>

namespace attn::detail {

void TileOptions::layout(Arena& arena, int64_t keys) {
  const AttentionOptions& o = *p_.options;
  if (o.bias) bias_ = arena.take(keys * tk_.panel * tk_.acc_bytes);
  if (!o.alibi_slopes.empty()) {
    slope_ = arena.take(kernels::kMaxWidth * tk_.acc_bytes);
    position_ = arena.take(kernels::kMaxWidth * tk_.acc_bytes);
  }
  if (o.dropout > 0) keep_ = arena.take<uint64_t>(keys * int64_t{sizeof(uint64_t)});
}

void TileOptions::start(const Sequence& s, const Tile& tile) {
  const AttentionOptions& o = *p_.options;
  s_ = &s;
  tile_ = tile;
  plain_ = !tile.allowed && o.softcap == 0 && !o.bias && o.alibi_slopes.empty();
  if (slope_) load_slopes();
  if (o.bias) load_bias();
  if (o.dropout > 0) draw_dropout();
}

void TileOptions::load_slopes() {
  const Panel& panel = *tile_.panel;
  for (int r = 0; r < panel.width; ++r)
    set(tk_, slope_, r, r < panel.rows ? p_.options->alibi_slopes[panel.head[r]] * kScoreUnit : 0.0);
}

void TileOptions::load_bias() {
  const Panel& panel = *tile_.panel;
  const ConstView<4>& bias = p_.options->bias;
  void* rows[kernels::kMaxWidth];
  const int64_t key = (s_->pages.keys ? s_->pages.bias_key : s_->key_begin) + tile_.begin;
  for (int r = 0; r < panel.rows; ++r)
    rows[r] = const_cast<char*>(at(bias, s_->batch, panel.head[r], panel.query[r], key));
  const int64_t stride = last_stride(bias);
  kernels::RowsArgs args = rows_args(rows, panel.rows, stride, bias.dtype, tile_.count);
  args.scale = kScoreUnit;
  args.dense = bias_;
  args.dense_stride = panel.width;
  tk_.pack_panel(args);
  if (stride != 1) return;
  // The rows of the next tile are far apart in memory: ask for them while this one is computed.
  const int64_t ahead =
      std::min(tile_.count, s_->key_count - tile_.begin - tile_.count) * static_cast<int64_t>(size_of(bias.dtype));
  for (int r = 0; r < panel.rows; ++r)
    for (int64_t byte = 0; byte < ahead; byte += 64)
      __builtin_prefetch(static_cast<const char*>(rows[r]) + tile_.count * size_of(bias.dtype) + byte, 0, 2);
}

void TileOptions::draw_dropout() {
  const AttentionOptions& o = *p_.options;
  const Panel& panel = *tile_.panel;
  int64_t query[kernels::kMaxWidth], head[kernels::kMaxWidth];
  for (int r = 0; r < panel.rows; ++r) {
    query[r] = o.shard.first_query + panel.query[r];
    head[r] = o.shard.first_head + panel.head[r];
  }
  tk_.dropout({.seed = o.seed,
               .query = query,
               .head = head,
               .batch = o.shard.first_batch + s_->batch,
               .first_key = o.shard.first_key + s_->key_begin + tile_.begin,
               .count = tile_.count,
               .threshold = static_cast<uint64_t>(std::floor(o.dropout * 0x1p32)),
               .width = panel.rows,
               .keep = keep_});
}

kernels::TransformArgs TileOptions::transform(void* scores, int64_t done, int64_t count, void* factor, void* maximum) {
  const AttentionOptions& o = *p_.options;
  const Panel& panel = *tile_.panel;
  kernels::TransformArgs args{};
  args.scores = scores;
  args.width = panel.width;
  args.count = count;
  args.softcap = o.softcap * kScoreUnit;
  args.allowed = tile_.allowed ? tile_.allowed + done : nullptr;
  args.factor = factor;
  args.maximum = maximum;
  if (o.bias) args.bias = static_cast<const char*>(bias_) + done * panel.width * tk_.acc_bytes;
  if (slope_) {
    for (int r = 0; r < panel.width; ++r)
      set(tk_, position_, r, r < panel.rows ? static_cast<double>(panel.place[r] - tile_.begin - done) : 0.0);
    args.slope = slope_;
    args.position = position_;
  }
  return args;
}

}  // namespace attn::detail
