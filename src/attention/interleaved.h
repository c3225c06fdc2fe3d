// Decode where heads are between each other, as in [B, L, H, D]: a block of keys is read in the order of memory.
//
//   for each few keys of the block, for each head     S = K Q^T;  P = 2^(S - reference), as in OnlineSoftmax at once
//   for each head                                     or, where a maximum outgrows its reference, P only now
//   for each few keys of the block, for each head     O += V^T P
// Head by head a block would be read a piece here and a piece there. What a head computes, and in which order, is the
// same: where rows are changes no bit. Kernels that have `scores_of_heads` make the few keys' loop themselves, for keys
// that the caches hold for the most part.
#pragma once

#include "attention/online_softmax.h"

namespace attn::detail {

class InterleavedHeads {
 public:
  static constexpr int kMost = 32;  // heads at once, as scratch is kept for each

  InterleavedHeads(const Problem& p, const TileKernels& tk) : p_(p), tk_(tk) {}

  /// True if the rows of a sequence may be taken for several heads at once, and should.
  static bool suits(const Problem& p, const Sequence& s, const TileKernels& tk);

  /// Scratch for `heads` heads and blocks of at most `keys` keys.
  void layout(Arena& arena, int64_t heads, int64_t keys);
  /// Head i of those to come.
  void set(int i, const KeyRows& keys, const KeyRows& values, PanelState& state);
  const KeyRows& keys(int i) const { return heads_[i].keys; }
  const KeyRows& values(int i) const { return heads_[i].values; }

  /// The tile of keys that all rows of the first `count` heads see: their states after it.
  void run(int count, const Tile& tile);

 private:
  struct Head {
    KeyRows keys, values;
    PanelState* state = nullptr;
    // Of several heads: the tile's maxima, scores and weights, and what their sum would be.
    void *maximum = nullptr, *scores = nullptr, *weights = nullptr, *trial_sum = nullptr;
  };

  // As in OnlineSoftmax: the weights of all heads, against references as they are if no maximum outgrows one.
  bool has_references(int count) const;
  bool in_one_pass(int count, const Tile& tile, double limit) const;
  void in_two_passes(int count, const Tile& tile) const;
  void by_sums(int count, const Tile& tile) const;
  void begin(const Head& head, const Tile& tile) const;
  kernels::ScoresArgs scores_args(const Head& head, const Tile& tile, int64_t done, int64_t count) const;
  void scores(int count, const Tile& tile) const;
  void softmax(const Head& head, int64_t count) const;
  void values(int count, const Tile& tile) const;
  template <class Work>
  void for_pieces(const KeyRows& lowest, const KeyRows& highest, int count, const Tile& tile, const Work& work) const;

  size_t sum_bytes(const Head& head) const { return static_cast<size_t>(head.state->panel.width * tk_.acc_bytes); }

  const Problem& p_;
  const TileKernels& tk_;
  Head* heads_ = nullptr;
  void* alpha_ = nullptr;  // acc [width]
};

}  // namespace attn::detail
