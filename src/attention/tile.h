// One tile, panel x keys: its scores, with every option on them, and P = 2^(S - lse). What becomes of them is the
// business of the epilogue that walks: softmax and values, gradients, a stored rectangle.
#pragma once

#include <utility>

#include "attention/operands.h"
#include "attention/options.h"

namespace attn::detail {

/// Packs the panel's rows of q (or of dout, whose product with the values has no scale) as `scores` wants them.
void pack_query(const TileKernels& tk, const ConstView<4>& q, const Sequence& s, const Panel& panel, double scale,
                void* packed);

/// What products of q and k are multiplied by: scores in the arithmetic's unit.
inline double score_scale(const Problem& p) { return p.scale * kScoreUnit; }

/// The arguments of the scores kernel for a run of keys; the caller adds where scores and their maxima go.
kernels::ScoresArgs score_args(const Problem& p, const TileKernels& tk, const Panel& panel, const void* query,
                               const KeyRun& run);

/// The arguments of the values kernel for a run of the tile's keys, as in add_product().
kernels::ValuesArgs product_args(const Problem& p, const TileKernels& tk, const KeyRun& run, int64_t n,
                                 const Tile& tile, const void* weights, void* accumulator);

/// accumulator += rows^T weights over the tile's keys: O^T += V^T P, or dQ^T += K^T dS. `rows` are values, or keys, of
/// n elements; weights begin at the tile's first key. A masked pair must not meet what is not finite: 0 * NaN is NaN.
void add_product(const Problem& p, const TileKernels& tk, BlockOperand& rows, int64_t n, const Tile& tile,
                 const void* weights, void* accumulator);

/// add_product() of one tile that may wait for the next tile's scores, where the kernels do both in one pass. What it
/// was given stays as it is meanwhile.
class LateProduct {
 public:
  /// As add_product().
  void set(const Problem& p, const TileKernels& tk, BlockOperand& rows, int64_t n, const Tile& tile,
           const void* weights, void* accumulator);
  /// For who will add it; null if there is none.
  const kernels::ValuesArgs* take() { return std::exchange(waits_, false) ? &args_ : nullptr; }
  void add(const TileKernels& tk) {
    if (const kernels::ValuesArgs* args = take()) tk.values(*args);
  }

 private:
  kernels::ValuesArgs args_ = {};
  bool waits_ = false;
};

class TileScores {
 public:
  TileScores(const Problem& p, const TileKernels& tk) : p_(p), tk_(tk), options_(p, tk) {}

  /// Scratch for blocks of at most `keys` keys; softcap_slope: probabilities() keep d softcap / d score.
  /// kept: as BlockOperand::layout().
  void layout(Arena& arena, int64_t keys, bool softcap_slope, int64_t kept = 0);
  /// What belongs to a key/value head of a sequence.
  void start_block(const KeyRows& keys, int64_t begin, int64_t end) { keys_.start(keys, begin, end); }
  void start_tile(const Sequence& s, const Tile& tile) {
    tile_ = tile;
    options_.start(s, tile);
  }

  const Tile& tile() const { return tile_; }
  TileOptions& options() { return options_; }
  BlockOperand& keys() { return keys_; }

  /// Scores of `count` keys, `done` keys after the tile's first, before the options; their maxima, if wanted.
  void scores(const void* query, int64_t done, int64_t count, void* scores, void* maximum);
  /// Scores of the whole tile with every option on them, -infinity where a pair is masked.
  void masked_scores(const void* query, void* scores);
  /// P of the whole tile, exactly 0 where a pair is masked. lse: from load_lse().
  void probabilities(const void* query, const void* lse, void* weights);
  /// Of the tile's softcap, after probabilities(); null without one.
  const void* softcap_slope() const { return softcap_slope_; }

 private:
  const Problem& p_;
  const TileKernels& tk_;
  TileOptions options_;
  BlockOperand keys_;
  Tile tile_;
  void* softcap_slope_ = nullptr;  // acc [count][width]
};

}  // namespace attn::detail
