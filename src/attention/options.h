// The element-wise options of a call on one tile: softcap, bias, ALiBi, mask, dropout.
#pragma once

#include "attention/walk.h"
#include "core/scratch.h"

namespace attn::detail {

class TileOptions {
 public:
  TileOptions(const Problem& p, const TileKernels& tk) : p_(p), tk_(tk) {}

  /// Scratch for tiles of at most `keys` keys.
  void layout(Arena& arena, int64_t keys);
  /// Brings what the tile needs into scratch.
  void start(const Sequence& s, const Tile& tile);

  /// True if the tile needs no work between the two products: every pair counts, by its score alone.
  bool plain() const { return plain_; }
  /// softcap, bias, ALiBi and mask on the scores of `count` keys of the tile, `done` keys after its first.
  kernels::TransformArgs transform(void* scores, int64_t done, int64_t count, void* factor, void* maximum);
  /// Lane masks of dropout for the tile's keys, or null without dropout.
  const uint64_t* keep() const { return p_.options->dropout == 0 ? nullptr : keep_; }
  double keep_scale() const { return 1 / (1 - p_.options->dropout); }

 private:
  void load_slopes();
  void load_bias();
  void draw_dropout();

  const Problem& p_;
  const TileKernels& tk_;
  const Sequence* s_ = nullptr;
  Tile tile_;
  bool plain_ = false;
  void *bias_ = nullptr, *slope_ = nullptr, *position_ = nullptr;
  uint64_t* keep_ = nullptr;
};

}  // namespace attn::detail
