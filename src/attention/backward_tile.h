// P and dS of one panel of rows and one range of keys, recomputed from q, k, v, dout and lse.
//
//   S = K Q^T;  options and mask;  P = 2^(S - lse)
//   dP = V dO^T;  dS = P (dP keep / (1 - p) - delta);  delta_i = <dout_i, out_i> - dlse_i
// Both the gradient pass and the pass for a broadcast bias are built on it.
#pragma once

#include "attention/panel.h"

namespace attn::detail {

// 128 keys: K, V, dK, dV and the three tiles of a block stay in a 1 MiB L2 up to D = 128.
constexpr int64_t kGradBlockKeys = 128;

struct BackwardInputs {
  ConstView<4> out, dout;
  ConstView<3> lse, dlse;
  const double* delta = nullptr;  // [B, H, Lq]
};

/// What a panel of rows brings to every tile.
struct GradRows {
  Panel panel;
  void *query = nullptr, *dout = nullptr;  // packed as the scores kernel wants its query
  void *lse = nullptr, *delta = nullptr;   // acc [width]; lse in log2 units, +infinity for rows that see nothing
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
      : p_(p), in_(in), tk_(tk), with_ds_(with_ds) {}

  void layout(Arena& arena);
  void layout_rows(Arena& arena, GradRows& rows) const;
  void layout_tile(Arena& arena, GradTile& tile) const;
  /// Fills the lanes from rows.panel.
  void load(const Sequence& s, GradRows& rows) const;

  /// Starts a block of at most kGradBlockKeys keys; operands are packed when first used.
  void start_block(const Sequence& s, const KeyReader& reader, int64_t begin, int64_t end);
  /// P and dS of rows x the part of the block that they see; false if no pair is allowed.
  bool compute(const GradRows& rows, GradTile& tile);

  // Of the tile that was computed last:
  const void* ds_values() const { return ds_values_; }  // dS in the weight format
  const void* ds() const { return ds_; }  // acc [count][width], before the softcap factor: the gradient of the bias
  /// Null if every pair is allowed.
  const uint64_t* allowed() const { return masked_ ? allowed_ : nullptr; }

 private:
  kernels::ScoresArgs product(const GradRows& rows, const GradTile& tile, bool of_values);
  void probabilities(const GradRows& rows, const GradTile& tile, bool full);
  const void* operand(bool of_values, int64_t begin, int64_t& stride);
  /// P and dS in the arithmetic's own type serve all products.
  bool one_format() const { return tk_.weight_bytes == tk_.acc_bytes; }

  const Problem& p_;
  const BackwardInputs& in_;
  const TileKernels& tk_;
  const bool with_ds_;
  const Sequence* s_ = nullptr;
  const KeyReader* reader_ = nullptr;
  int64_t key_depth_ = 0, value_depth_ = 0;  // D and Dv in whole steps
  int64_t block_ = 0, block_end_ = 0;
  bool keys_packed_ = false, values_packed_ = false, masked_ = false;
  void *keys_ = nullptr, *values_ = nullptr;
  void *weights_ = nullptr, *ds_values_ = nullptr;  // the tile's own if there is one format
  void *ds_ = nullptr, *factor_ = nullptr;
  uint64_t* allowed_ = nullptr;
  TileOptions options_;
};

}  // namespace attn::detail
