// attention_layouts: the block-sparse layouts of papers, as lists of key blocks for AttentionOptions::blocks.
//
// ```cpp
// #include "attn/attention.h"
// #include "attn/attention_layouts.h"
// int main() {
//   const attn::Tensor<float, 4> q({1, 8, 1000, 64}), k({1, 2, 1000, 64}), v({1, 2, 1000, 64});
//   attn::Tensor<float, 4> out({1, 8, 1000, 64});
//   const attn::BlockLists layout = attn::layouts::bigbird(1000, 64, {.side = 1, .global = 1, .random = 2, .seed = 7});
//   attn::attention(q, k, v, out, {.causal = true, .blocks = layout});
// }
// ```
//
// Each function takes `length`, the tokens of a sequence that attends to itself (Lq = Lk), and `block`, the tokens of a
// block; the last block may be short. n is the number of a query block, m of a key block, both from 0. With block = 1
// they are positions of tokens, and a layout is that of its paper token by token. Add causal = true to the options for
// the causal variant. Time and memory grow with the listed blocks. docs/operators/sparse_attention.md has a picture of
// each. Every function throws attn::Error with every reason.
//
// Sources: Child et al. 2019 (arXiv:1904.10509), Beltagy et al. 2020 (Longformer, arXiv:2004.05150), Zaheer et al. 2020
// (BigBird, arXiv:2007.14062), Raffel et al. 2019 (prefix, arXiv:1910.10683).
#pragma once

#include <span>

#include "attn/attention_options.h"
#include "attn/tensor.h"

#pragma GCC visibility push(default)
namespace attn {

/// A block-sparse layout that owns its lists of key blocks; members as those of BlockLayout.
struct BlockLists {
  int64_t query_block = 0, key_block = 0;
  Tensor<int64_t, 3> offsets = {};  ///< [B|1, H|1, query blocks + 1]
  Tensor<int64_t, 1> indices = {};  ///< [listed blocks]

  /// The layout as an option. It borrows the lists: they must outlive the call.
  operator BlockLayout() const { return {{}, query_block, key_block, offsets, indices}; }
};

namespace layouts {

/// Sliding window, in blocks: n - left <= m <= n + right. -1 sets no limit on that side.
BlockLists local(int64_t length, int64_t block, Window window);

/// Dilated sliding window (Longformer, section 3.1): m = n + t dilation for -side <= t <= side.
BlockLists dilated(int64_t length, int64_t block, int64_t side, int64_t dilation);

/// Strided (Child et al., section 4.2), both heads of the paper in one: |n - m| <= stride, or stride divides n - m. The
/// paper's separate heads are local(length, block, {stride, stride}) and dilated(length, block, length, stride), in
/// by_head().
BlockLists strided(int64_t length, int64_t block, int64_t stride);

/// Fixed (Child et al., section 4.2), both heads of the paper in one: n / stride = m / stride, or m is one of the last
/// `summary` blocks of its stride: m mod stride >= stride - summary. `summary` is the paper's c.
BlockLists fixed(int64_t length, int64_t block, int64_t stride, int64_t summary);

/// Sliding window and global blocks (Longformer): |n - m| <= side, or n or m is one of `global`. The paper's window w
/// is 2 side. Its separate projections for global tokens are the caller's.
BlockLists longformer(int64_t length, int64_t block, int64_t side, std::span<const int64_t> global);

struct BigBirdOptions {
  int64_t side = 1;    ///< blocks of the window on each side; the paper's w is 2 side + 1
  int64_t global = 2;  ///< the first blocks, which attend to all and to which all attend; the paper's g
  int64_t random = 3;  ///< further blocks of each query block; the paper's r
  uint64_t seed = 0;   ///< of the random blocks, which depend on (seed, head, n), `length` and `block` only
  int64_t heads = 1;   ///< H; each head draws its own blocks
};
/// BigBird (ITC): |n - m| <= side, or n < global, or m < global, or m is one of `random` blocks that are drawn from the
/// others without repetition.
BlockLists bigbird(int64_t length, int64_t block, const BigBirdOptions& options = {});

/// Blocks that attend to themselves only: n = m.
BlockLists block_diagonal(int64_t length, int64_t block);

/// Prefix, in blocks: m < prefix, or m <= n. Inside the block n = m, and inside the prefix, a query attends to later
/// keys too. The lists are those of half the matrix; with block = 1 this is the mask of prefix language models.
BlockLists prefix(int64_t length, int64_t block, int64_t prefix);

/// One layout for each head, from layouts of one head each and of equal sizes: lists [1, H].
BlockLists by_head(std::span<const BlockLists> heads);

}  // namespace layouts
}  // namespace attn
#pragma GCC visibility pop
