// nn: causal attention that selects its keys by content, as mixers of blocks and models: MoBA and native sparse
// attention (NSA).
//
// ```cpp
// #include "attn/autograd_operations.h"
// #include "attn/nn_selected.h"
// using namespace attn;
// int main() {
//   nn::Parameters parameters({.seed = 1});
//   const nn::MobaAttention layer(nn::Scope(parameters) / "mixer", 64, {.heads = 4, .block = 16, .count = 3});
//   autograd::Tape tape({.record = true});
//   const nn::Value x(Array(DType::float32, {2, 100, 64}));
//   tape.backward(autograd::sum(tape, layer(tape, x)));
// }
// ```
//
// The tokens of a sequence are in blocks, the last of which may be short; packed sequences have blocks of their own. A
// query selects whole blocks of earlier tokens. Scores of blocks are compared in float64, and of equal scores the lower
// block is selected. The gradients are those of attention with the selected keys: none flows through the selection. x
// is [B, L, C]; layers own what they keep, and throw Error as all layers do.
//
// The states grow with the text, unlike those of linear attention, and each call copies them: a token of generation
// costs O(n) after n tokens. docs/operators/sparse_attention.md has the formulas and a picture.
//
// Sources: MoBA, Lu et al. 2025 (arXiv:2502.13189); NSA, Yuan et al. 2025 (arXiv:2502.11089).
#pragma once

#include "attn/nn_mixers.h"

#pragma GCC visibility push(default)
namespace attn::nn {

struct MobaOptions {
  int64_t heads = 1;                     ///< H
  int64_t kv_heads = 0;                  ///< Hk, which divides H; 0 = heads
  int64_t head_dim = 0;                  ///< D, at most 1024; 0 = C / heads, which must be whole
  int64_t block = 64;                    ///< tokens of a block
  int64_t count = 4;                     ///< k: blocks that a query attends to, its own among them
  bool bias = false;                     ///< of the projections
  ops::RopeOptions rope = {.theta = 0};  ///< of queries and keys; theta 0 = no rotary positions
};

/// MoBA: each query of each head attends to its own block, up to itself, and to the k - 1 earlier blocks of the largest
/// <query, mean of the block's keys>. Time grows with L k block, and with L^2 / block for the scores of blocks.
class MobaAttention : public Mixer {
 public:
  MobaAttention() : Mixer("MobaAttention") {}
  MobaAttention(const Scope& scope, int64_t width, const MobaOptions& options);
  Value operator()(Tape& tape, const Value& x, const MixerInputs& inputs = {}) const override;
  /// Keys, after rotation, and values of all n tokens, [B, n, 2 Hk D] in the layer's type; n begins at 0.
  MixerState new_state(int64_t B) const override;

  Linear qkv, output;  ///< [(H + 2 Hk) D, C], [C, H D]
  MobaOptions options;

 private:
  Value attend(Tape& tape, const Value& x, MixerState* state) const;
};

struct NativeSparseOptions {
  int64_t heads = 1;                     ///< H
  int64_t kv_heads = 0;                  ///< Hk, which divides H; 0 = heads
  int64_t head_dim = 0;                  ///< D, at most 1024; 0 = C / heads, which must be whole
  int64_t block = 64;                    ///< tokens of a block, both for compression and for selection
  int64_t count = 16;                    ///< blocks that a query selects, its own and the first among them; at least 2
  int64_t window = 512;                  ///< tokens of the sliding window, the query's own included
  bool bias = false;                     ///< of the projections and gates
  ops::RopeOptions rope = {.theta = 0};  ///< of queries and keys; theta 0 = no rotary positions
};

/// NSA: the sum of three branches, each with keys and values of its own and multiplied by sigmoid(W x), a number a
/// head:
///   compressed  attention to a compressed key and value for each whole block that ends at or before the query;
///   selected    attention to the tokens of `count` blocks: the query's own, the first, and those with the largest
///               weights in the compressed branch, summed over the G query heads that share a key/value head;
///   window      attention to the last `window` tokens.
/// A block's compressed key is a learned linear map of its keys, concatenated and not rotated, so that each place in
/// the block has weights of its own; it is then rotated to the position of the block's first token. Values have another
/// map. Blocks do not overlap: they are the paper's case l = d = l', in which importance is the compressed weight. The
/// call uses L H (L / block) numbers for these weights while it selects, and the tape keeps L^2 / block bytes of mask.
class NativeSparseAttention : public Mixer {
 public:
  NativeSparseAttention() : Mixer("NativeSparseAttention") {}
  NativeSparseAttention(const Scope& scope, int64_t width, const NativeSparseOptions& options);
  Value operator()(Tape& tape, const Value& x, const MixerInputs& inputs = {}) const override;
  /// Keys and values [B, m, 2 Hk D] in the layer's type, after n tokens: of the selected branch, m = n; of the window,
  /// m = min(n, window - 1); of the compressed blocks, m = n / block; of the open block before compression, m = n mod
  /// block.
  MixerState new_state(int64_t B) const override;

  /// q and the keys and values of the branches, [(H + 6 Hk) D, C]: columns q, keys of selected and window, values of
  /// selected and window, keys and values to compress. gate [3 H, C], in the order of branches above; output [C, H D].
  Linear qkv, gate, output;
  Linear compress_key, compress_value;  ///< [D, block D], with biases
  NativeSparseOptions options;

 private:
  Value compressed(Tape& tape, const Value& raw, int64_t first_block) const;
  Value blocks_so_far(Tape& tape, const Value& rows, MixerState* state) const;
  Value attend(Tape& tape, const Value& x, MixerState* state) const;
};

}  // namespace attn::nn
#pragma GCC visibility pop
