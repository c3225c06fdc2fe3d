#include "attention/gradient_tile.h"

#include "attention/states.h"

namespace attn::detail {

void TileGradient::layout(Arena& arena, int64_t kept_keys, int64_t kept_values) {
  const int64_t keys = tk_.gradient_keys, acc_tile = keys * tk_.panel * tk_.acc_bytes;
  values_.layout(arena, p_, tk_.key_rows, tk_, keys, p_.Dv, kept_values);
  if (!tk_.one_format) {
    weights_ = arena.take(acc_tile);
    ds_values_ = arena.take(tk_.weights_bytes(keys, tk_.panel));
  }
  if (with_ds_) ds_ = arena.take(acc_tile);
  if (in_.loss) terms_ = arena.take(acc_tile);
  scores_.layout(arena, keys, true, kept_keys);
}

void TileGradient::layout_rows(Arena& arena, GradRows& rows) const {
  rows.query = arena.take(tk_.query_bytes(p_.D, tk_.panel));
  rows.dout = arena.take(tk_.query_bytes(p_.Dv, tk_.panel));
  rows.lse = arena.take(kernels::kMaxWidth * tk_.acc_bytes);
  rows.delta = arena.take(kernels::kMaxWidth * tk_.acc_bytes);
  if (in_.loss) rows.terms = arena.take(in_.loss->row_terms() * kernels::kMaxWidth * tk_.acc_bytes);
}

void TileGradient::layout_tile(Arena& arena, GradTile& tile) const {
  tile.weights = arena.take(tk_.weights_bytes(tk_.gradient_keys, tk_.panel));
  tile.ds = arena.take(tk_.weights_bytes(tk_.gradient_keys, tk_.panel));
}

void TileGradient::load(const Sequence& s, GradRows& rows) const {
  const Panel& panel = rows.panel;
  pack_query(tk_, p_.q, s, panel, score_scale(p_), rows.query);
  pack_query(tk_, in_.dout, s, panel, 1, rows.dout);
  load_lse(tk_, in_.lse, s, panel, rows.lse);
  if (in_.loss) in_.loss->load(tk_, s, panel, rows.terms, rows.delta);
  else load_deltas(s, rows);
}

void TileGradient::load_deltas(const Sequence& s, GradRows& rows) const {
  const Panel& panel = rows.panel;
  double delta[kernels::kMaxWidth];
  const PanelRows dout(in_.dout, s, panel), out(in_.out, s, panel);
  tk_.dot_rows(dout.with(nullptr, 0), out.with(nullptr, 0), delta);
  for (int r = 0; r < panel.rows; ++r) {
    if (in_.dlse) delta[r] -= load_row_value(in_.dlse, s.batch, panel.head[r], panel.query[r]);
    set(tk_, rows.delta, r, delta[r]);
  }
  for (int r = panel.rows; r < panel.width; ++r) set(tk_, rows.delta, r, 0);
}

void TileGradient::compute(const Sequence& s, const GradRows& rows, const Tile& tile, GradTile& result) {
  result.begin = tile.begin;
  result.count = tile.count;
  if (tk_.one_format) {
    weights_ = result.weights;
    ds_values_ = result.ds;
  }
  scores_.start_tile(s, tile);
  if (in_.loss) return compute_of_loss(s, rows, tile, result);
  scores_.probabilities(rows.query, rows.lse, weights_);
  kernels::ScoresArgs dp = score_args(p_, tk_, *tile.panel, rows.dout, values_.run(tile.begin, tile.count));
  dp.depth = p_.Dv;
  dp.scale = 1;
  dp.highest = kInfinity;
  tk_.grad({.in = dp,
            .weights = weights_,
            .delta = rows.delta,
            .allowed = tile.allowed,
            .keep = scores_.options().keep(),
            .keep_scale = scores_.options().keep_scale(),
            .factor = scores_.softcap_slope(),
            .weights_outer = result.weights,
            .ds = ds_,
            .ds_values = ds_values_,
            .ds_outer = result.ds});
}

void TileGradient::compute_of_loss(const Sequence& s, const GradRows& rows, const Tile& tile, GradTile& result) {
  const int width = tile.panel->width;
  scores_.masked_scores(rows.query, weights_);
  const void* other = in_.loss->fill(tk_, s, tile, rows.terms, terms_) ? terms_ : nullptr;
  tk_.statistics_grad({.scores = weights_,
                       .width = width,
                       .count = tile.count,
                       .lse = rows.lse,
                       .entropy = StatisticsLoss::entropy(rows.terms),
                       .square = StatisticsLoss::square(tk_, rows.terms, width),
                       .other = other,
                       .delta = rows.delta,
                       .factor = scores_.softcap_slope(),
                       .ds = ds_,
                       .ds_values = ds_values_,
                       .ds_outer = result.ds});
}

}  // namespace attn::detail
