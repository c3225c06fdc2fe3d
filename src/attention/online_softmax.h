// The weights of a tile against a reference that follows the maximum of the scores, and the sums that go with it.
//
//   reference <- a row's maximum where it has outgrown the reference by more than kReferenceSlack; then the row's sum
//                and output so far are rescaled by 2^(2 (old - new))
//   w = 2^(2 (s - reference));  sum += w;  w' = keep ? w / (1 - p) : 0
// Kernels that go `by_sums` keep no maxima where a call has nothing but masks. A row's first reference is the maximum
// over the first keys that it sees, those of one slice, and a reference moves where the row's sum has outgrown
// kLargestSum.
#pragma once

#include "attention/tile.h"

namespace attn::detail {

// A row's reference may lag its maximum so that weights reach 2^8: far from overflow, and blocks after the first are
// almost never redone.
constexpr double kReferenceSlack = 4;
// Rows of a chunk whose maximum comes late reach it with 8 bits more than the first slice had on the average. Weights
// stay inside float16.
constexpr double kLargestSum = 0x1p15;

// Slices of a tile that options pass over: 32 keys x 48 floats are 6 KiB, and stay in a 32 KiB first-level cache with
// their bias.
constexpr int64_t kSliceKeys = 32;

/// What the forward knows of a panel: its packed queries, and what it has gathered over the keys so far.
struct PanelState {
  Panel panel;
  void* query = nullptr;
  void* out = nullptr;                        // the kernels' accumulator
  void *reference = nullptr, *sum = nullptr;  // acc [width]
  uint64_t waiting = 0;                       // rows without a reference: none of their keys came yet

  void layout(Arena& arena, const Problem& p, const TileKernels& tk);
  /// Nothing gathered.
  void reset(const Problem& p, const TileKernels& tk);
  /// References move up to the maxima of the next scores where they have to. alpha: acc [width], scratch.
  void follow(const Problem& p, const TileKernels& tk, const void* maximum, void* alpha);
  /// Where sums say so, maxima are for some rows alone, and lose those of others: rows that wait begin at theirs,
  void begin(const Problem& p, const TileKernels& tk, void* maximum, void* alpha);
  /// rows whose sum would outgrow its limit are raised to theirs.
  void raise(const Problem& p, const TileKernels& tk, const void* sums, void* maximum, void* alpha);
};

class OnlineSoftmax {
 public:
  OnlineSoftmax(const Problem& p, const TileKernels& tk)
      : p_(p), tk_(tk), by_sums_(tk.by_sums && masks_alone(*p.options)) {}

  /// Scratch for blocks of at most `keys` keys.
  void layout(Arena& arena, int64_t keys);
  /// The weights of the tile that `tile` was started with, for the panel of `state`. What `late` has is added.
  void run(TileScores& tile, PanelState& state, LateProduct& late);
  /// Of the tile that run() saw last; those of the tile before are still there if the kernels have `late_values`.
  const void* weights() const { return weights_; }

 private:
  void by_sums(TileScores& tile, PanelState& state, LateProduct& late);
  void maxima(TileScores& tile, const PanelState& state, int64_t done, int64_t count);
  void in_two_passes(TileScores& tile, PanelState& state);
  bool in_slices(TileScores& tile, PanelState& state);
  bool fused(TileScores& tile, PanelState& state, LateProduct& late, double limit);
  void* scores_at(int64_t done) const { return static_cast<char*>(scores_) + done * width_ * tk_.acc_bytes; }
  kernels::SoftmaxArgs softmax_args(TileScores& tile, const PanelState& state, int64_t done, int64_t count,
                                    void* sum) const;

  const Problem& p_;
  const TileKernels& tk_;
  const bool by_sums_;
  int width_ = 0;
  void *maximum_ = nullptr, *alpha_ = nullptr, *trial_sum_ = nullptr;  // acc [width]
  void *scores_ = nullptr, *weights_ = nullptr, *other_weights_ = nullptr;
};

}  // namespace attn::detail
