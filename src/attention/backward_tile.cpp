#include "attention/backward_tile.h"

#include <algorithm>
#include <cmath>

namespace attn::detail {

void TileGradient::layout(Arena& arena) {
  key_depth_ = round_up(p_.D, tk_.depth_multiple);
  value_depth_ = round_up(p_.Dv, tk_.depth_multiple);
  const int64_t tile = kGradBlockKeys * tk_.panel;
  keys_ = arena.take(kGradBlockKeys * key_depth_ * tk_.operand_bytes);
  values_ = arena.take(kGradBlockKeys * value_depth_ * tk_.operand_bytes);
  if (!one_format()) {
    weights_ = arena.take(tile * tk_.acc_bytes);
    ds_values_ = arena.take((tile + tk_.panel) * tk_.weight_bytes);
  }
  if (with_ds_) ds_ = arena.take(tile * tk_.acc_bytes);
  if (p_.options->softcap != 0) factor_ = arena.take(tile * tk_.acc_bytes);
  allowed_ = arena.take<uint64_t>(kGradBlockKeys * int64_t{sizeof(uint64_t)});
  options_.layout(arena, p_, tk_);
}

void TileGradient::layout_rows(Arena& arena, GradRows& rows) const {
  rows.query = arena.take(key_depth_ * tk_.panel * tk_.operand_bytes);
  rows.dout = arena.take(value_depth_ * tk_.panel * tk_.operand_bytes);
  rows.lse = arena.take(kernels::kMaxWidth * tk_.acc_bytes);
  rows.delta = arena.take(kernels::kMaxWidth * tk_.acc_bytes);
}

void TileGradient::layout_tile(Arena& arena, GradTile& tile) const {
  const int64_t weights = kGradBlockKeys * tk_.panel;
  tile.weights = arena.take(weights * tk_.weight_bytes);
  tile.ds = arena.take((weights + tk_.panel) * tk_.weight_bytes);
}

void TileGradient::load(const Sequence& s, GradRows& rows) const {
  const Panel& panel = rows.panel;
  void* pointers[kernels::kMaxWidth];
  row_pointers(p_.q, s, panel, pointers);
  kernels::RowsArgs args = rows_args(pointers, panel.rows, p_.D == 1 ? 1 : p_.q.stride[3], p_.q.dtype, p_.D);
  args.scale = tk_.scale_in_scores ? 1 : p_.scale * kScoreUnit;
  args.dense = rows.query;
  args.dense_stride = panel.width;
  tk_.pack_query(args);
  row_pointers(in_.dout, s, panel, pointers);
  args = rows_args(pointers, panel.rows, p_.Dv == 1 ? 1 : in_.dout.stride[3], in_.dout.dtype, p_.Dv);
  args.dense = rows.dout;
  args.dense_stride = panel.width;
  tk_.pack_query(args);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (int r = 0; r < panel.width; ++r) {
    double lse = kInfinity, delta = 0;
    if (r < panel.rows) {
      lse = load_row_value(in_.lse, s.batch, panel.head[r], panel.query[r]) * kScoreUnit;
      if (lse == -kInfinity) lse = kInfinity;
      delta = in_.delta[(s.batch * p_.H + panel.head[r]) * p_.Lq + panel.query[r]];
    }
    set(tk_, rows.lse, r, lse);
    set(tk_, rows.delta, r, delta);
  }
}

void TileGradient::start_block(const Sequence& s, const KeyReader& reader, int64_t begin, int64_t end) {
  s_ = &s;
  reader_ = &reader;
  block_ = begin;
  block_end_ = end;
  keys_packed_ = values_packed_ = false;
}

/// The keys (or values) of the block as rows for the scores kernel, from key `begin` on.
const void* TileGradient::operand(bool of_values, int64_t begin, int64_t& stride) {
  const int64_t depth = of_values ? p_.Dv : p_.D;
  const int64_t element_stride = of_values ? reader_->value_stride() : reader_->key_stride();
  if (element_stride == 1 && static_cast<int>(p_.k.dtype) == tk_.operand && depth % tk_.depth_multiple == 0) {
    stride = of_values ? reader_->value_row_stride() : reader_->key_row_stride();
    return of_values ? reader_->value(begin) : reader_->key(begin);
  }
  stride = of_values ? value_depth_ : key_depth_;
  void* dense = of_values ? values_ : keys_;
  bool& packed = of_values ? values_packed_ : keys_packed_;
  if (!packed) {
    void* rows[kGradBlockKeys];
    if (of_values) reader_->value_rows(block_, block_end_, rows);
    else reader_->key_rows(block_, block_end_, rows);
    kernels::RowsArgs args = rows_args(rows, block_end_ - block_, element_stride, p_.k.dtype, depth);
    args.dense = dense;
    args.dense_stride = stride;
    tk_.pack_keys(args);
    packed = true;
  }
  return static_cast<const char*>(dense) + (begin - block_) * stride * tk_.operand_bytes;
}

kernels::ScoresArgs TileGradient::product(const GradRows& rows, const GradTile& tile, bool of_values) {
  kernels::ScoresArgs args{};
  args.query = of_values ? rows.dout : rows.query;
  args.width = rows.panel.width;
  args.rows = rows.panel.rows;
  args.keys = operand(of_values, tile.begin, args.key_stride);
  args.count = tile.count;
  args.depth = of_values ? value_depth_ : key_depth_;
  args.scale = of_values || !tk_.scale_in_scores ? 1 : p_.scale * kScoreUnit;
  args.highest = of_values ? std::numeric_limits<double>::infinity() : highest_score(tk_);
  return args;
}

void TileGradient::probabilities(const GradRows& rows, const GradTile& tile, bool full) {
  kernels::ScoresArgs scores = product(rows, tile, false);
  if (full && !masked_ && TileOptions::plain(p_)) {
    tk_.scores_probabilities(scores, rows.lse, weights_);
    return;
  }
  scores.scores = weights_;
  tk_.scores(scores);
  tk_.transform(
      options_.transform(tk_, weights_, tile.begin, tile.count, masked_ ? allowed_ : nullptr, factor_, nullptr));
  kernels::SoftmaxArgs softmax{};
  softmax.scores = softmax.weights = weights_;
  softmax.width = rows.panel.width;
  softmax.count = tile.count;
  softmax.reference = rows.lse;
  tk_.probabilities(softmax);
}

bool TileGradient::compute(const GradRows& rows, GradTile& tile) {
  const Panel& panel = rows.panel;
  const int64_t begin = std::max(block_, panel.low / 8 * 8);
  const int64_t end = std::min(block_end_, round_up(std::min(panel.high, block_end_), tk_.key_pair));
  if (begin >= end) return false;
  const int64_t count = end - begin;
  const TileKind kind = tile_mask(p_, *s_, panel, tk_, begin, end, allowed_);
  if (kind == TileKind::empty) return false;
  options_.set_panel(p_, *s_, panel, tk_);
  options_.start_tile(tk_, begin, count);
  masked_ = kind == TileKind::mixed || p_.options->bias;
  if (kind == TileKind::full && masked_) std::fill(allowed_, allowed_ + count, all_lanes(panel.rows));
  tile.begin = begin;
  tile.count = count;
  if (one_format()) {
    weights_ = tile.weights;
    ds_values_ = tile.ds;
  }
  probabilities(rows, tile, kind == TileKind::full);
  tk_.grad({.in = product(rows, tile, true),
            .weights = weights_,
            .delta = rows.delta,
            .allowed = allowed(),
            .keep = options_.dropout(tk_, begin, count),
            .keep_scale = options_.keep_scale(),
            .factor = factor_,
            .weights_outer = tile.weights,
            .ds = ds_,
            .ds_values = ds_values_,
            .ds_outer = tile.ds});
  return true;
}

}  // namespace attn::detail
