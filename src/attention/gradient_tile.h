// P and dS of one tile, recomputed from q, k, v, dout and lse.
//
//   S = K Q^T;  options and mask;  P = 2^(S - lse)
//   dP = V dO^T;  dS = P (dP keep / (1 - p) - delta);  delta_i = <dout_i, out_i> - dlse_i
// or, of a loss that is a function of P itself, dS = P (g - delta) with g and delta as statistics_loss.h has them.
// Both the gradient pass and the pass for a broadcast bias are built on it.
#pragma once

#include "attention/statistics_loss.h"
#include "attention/tile.h"

namespace attn::detail {

struct BackwardInputs {
  ConstView<4> out, dout;
  ConstView<3> lse, dlse;
  const StatisticsLoss* loss = nullptr;  // in place of out and dout: there are no values then, Dv = 0
};

/// What a panel of rows brings to every tile.
struct GradRows {
  Panel panel;
  void *query = nullptr, *dout = nullptr;  // packed as the scores kernel wants its query
  void *lse = nullptr, *delta = nullptr;   // acc [width]; lse from load_lse()
  void* terms = nullptr;                   // of a loss
};

/// P and dS of a panel and the keys from `begin` on, as the `outer` kernel wants them; P is dropped.
struct GradTile {
  int64_t begin = 0, count = 0;
  void *weights = nullptr, *ds = nullptr;
};

class TileGradient {
 public:
  /// with_ds: ds() is wanted.
  TileGradient(const Problem& p, const BackwardInputs& in, const TileKernels& tk, bool with_ds)
      : p_(p), in_(in), tk_(tk), with_ds_(with_ds), scores_(p, tk) {}

  /// kept: how many keys, and values, stay packed; as BlockOperand::layout().
  void layout(Arena& arena, int64_t kept_keys = 0, int64_t kept_values = 0);
  /// Another sequence comes.
  void reset() {
    scores_.keys().reset();
    values_.reset();
  }
  void layout_rows(Arena& arena, GradRows& rows) const;
  void layout_tile(Arena& arena, GradTile& tile) const;
  /// Fills the lanes from rows.panel.
  void load(const Sequence& s, GradRows& rows) const;

  void start_block(const KeyRows& keys, const KeyRows& values, int64_t begin, int64_t end) {
    scores_.start_block(keys, begin, end);
    values_.start(values, begin, end);
  }
  /// P and dS of the rows' tile.
  void compute(const Sequence& s, const GradRows& rows, const Tile& tile, GradTile& result);

  BlockOperand& keys() { return scores_.keys(); }

  // Of the tile that was computed last:
  const void* ds_values() const { return ds_values_; }  // dS in the weight format
  const void* ds() const { return ds_; }  // acc [count][width], before the softcap factor: the gradient of the bias

 private:
  /// delta of the rows: with their dout in the caches, and nothing kept beside them.
  void load_deltas(const Sequence& s, GradRows& rows) const;
  void compute_of_loss(const Sequence& s, const GradRows& rows, const Tile& tile, GradTile& result);

  const Problem& p_;
  const BackwardInputs& in_;
  const TileKernels& tk_;
  const bool with_ds_;
  TileScores scores_;
  BlockOperand values_;                             // as the scores kernel takes them: dP = V dO^T
  void *weights_ = nullptr, *ds_values_ = nullptr;  // the result's own where there is one format
  void* ds_ = nullptr;
  void* terms_ = nullptr;  // of a loss, acc [count][width]
};

}  // namespace attn::detail
