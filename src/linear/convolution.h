// A checked call of causal_convolution(), and how it is cut: by its shape alone, so that sums have the same bits for
// any number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/linear_convolution.h"
#include "attn/profile.h"
#include "linear/arrays.h"

namespace attn::linear {

constexpr int64_t kMaxTaps = 8;
// Tokens of a block. Its gradients need those of W - 1 more tokens: 5 % more work at W = 4, and the sums of a block are
// in the cache of the core.
constexpr int64_t kBlockTokens = 64;
constexpr int64_t kTileChannels = 512;  // channels of a tile: seven rows of float32 are in the first-level cache

struct Convolution {
  ConstView<3> x;
  ConstView<2> weight;
  const CausalConvolutionOptions* options;
  int64_t B, L, C, W;
  std::vector<TokenRange> sequences = {};
  ConstView<3> initial_state = {};  // the W - 1 tokens that are read

  Shape<3> states() const { return {static_cast<int64_t>(sequences.size()), C, W - 1}; }
};

/// Checks what forward and backward share and fills the problem; violated conditions go to `checker`.
Convolution make_convolution(Checker& checker, const ConstView<3>& x, const ConstView<2>& weight,
                             const CausalConvolutionOptions& options);
/// Checks the arguments of the forward, and of the backward. The oracle takes results of any floating type.
void check_convolution(Checker& checker, const Convolution& c, const View<3>& out, const View<3>& final_state,
                       bool any_type);
void check_convolution_backward(Checker& checker, const Convolution& c, const ConstView<3>& dout,
                                const CausalConvolutionGradients& gradients, const ConstView<3>& dfinal_state);

/// What a call reports to a profile: `passes` times its multiply-adds, the bytes of its inputs and of `others`.
inline OperationWork work_of(const Convolution& c, double passes, double others) {
  return {{c.B, c.L, c.C, c.W},
          2 * passes * static_cast<double>(c.B * c.L) * static_cast<double>(c.C * c.W),
          bytes_of(c.x) + bytes_of(c.weight) + others};
}

/// Tokens first .. first + count - 1 of a sequence.
struct ConvolutionBlock {
  int64_t sequence, first, count;
};

/// Slabs of blocks, and tiles of channels; a task is a slab and a group of tiles.
struct ConvolutionPlan {
  std::vector<ConvolutionBlock> blocks = {};
  std::vector<int64_t> slab_starts = {};  // of each slab in `blocks`, then the end
  int64_t tile_channels = 0, tiles = 0, tiles_a_task = 1;

  explicit ConvolutionPlan(const Convolution& c);
  int64_t slabs() const { return static_cast<int64_t>(slab_starts.size()) - 1; }
  int64_t tile_groups() const { return (tiles + tiles_a_task - 1) / tiles_a_task; }
};

/// Calls body(slab, tile) for all of them, each slab of a tile in one task.
void for_convolution_tiles(const ConvolutionPlan& plan, TaskRef body);

/// Zeros for the tokens of no sequence.
void clear_tokens_of_none(const Convolution& c, const View<3>& y);

}  // namespace attn::linear
