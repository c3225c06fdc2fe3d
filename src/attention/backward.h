// The backward schedule and its plan.
#pragma once

#include "attention/gradient_tile.h"
#include "attn/profile.h"

namespace attn::detail {

/// How a backward call is cut up. Depends on shapes alone.
struct BackwardPlan {
  struct Slab {  // one unit of work: rows of one sequence and key/value head, with its own dK and dV
    int32_t sequence = 0;
    int64_t kv_head = 0;
    int64_t first_row = 0, rows = 0;
    int64_t partial = 0;  // first row of its partial dK, dV where a unit has several slabs
  };
  std::vector<Slab> slabs;
  int64_t slabs_per_unit = 1;
  int64_t thread_bytes = 0;
  int64_t key_stride = 0, value_stride = 0;  // padded D and Dv
  int64_t accumulator_bytes = 0;             // dK and dV of the longest sequence, for one slab
  int64_t partial_bytes = 0;                 // of all slabs where units have several
};

/// Of `in` it counts alone whether there is a loss.
BackwardPlan plan_backward(const Problem& p, const BackwardInputs& in, const AttentionGradients& gradients);
/// All gradients that are wanted.
void run_backward(const Problem& p, const BackwardInputs& in, const AttentionGradients& gradients);

OperationWork backward_work(const Problem& p, const BackwardInputs& in, const AttentionGradients& gradients);

/// dbias summed over broadcast axes, tile by tile, recomputing dS: O(tile) memory beside dbias itself.
void run_bias_gradient(const Problem& p, const BackwardInputs& in, const View<4>& dbias);
/// Scratch a thread of run_bias_gradient.
int64_t bias_gradient_bytes(const Problem& p, const BackwardInputs& in);
/// True if every element of dbias belongs to one pair, so that the main pass can store it.
bool bias_is_dense(const Problem& p);

}  // namespace attn::detail
