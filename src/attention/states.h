// States: what is known of rows over a set of keys. A state is the normalised output of a row and its sum of weights;
// states over disjoint keys merge into the state over their union, see kernels::MergeArgs.
#pragma once

#include "attention/rows.h"
#include "core/scratch.h"

namespace attn::detail {

/// The states of a block of rows.
struct RowStates {
  void* out = nullptr;  // acc [rows][stride]
  double* reference = nullptr;
  double* sum = nullptr;

  static RowStates take(Arena& arena, int64_t rows, int64_t stride, int acc_bytes) {
    RowStates states;
    states.out = arena.take(rows * stride * acc_bytes);
    states.reference = arena.take<double>(rows * int64_t{sizeof(double)});
    states.sum = arena.take<double>(rows * int64_t{sizeof(double)});
    return states;
  }
  /// What take() takes.
  static int64_t bytes(int64_t rows, int64_t stride, int acc_bytes) {
    Arena arena(nullptr);
    take(arena, rows, stride, acc_bytes);
    return arena.used();
  }
};

/// Elements from row to row of states: whole vectors.
inline int64_t state_stride(const TileKernels& tk, int64_t depth) {
  return round_up(std::max<int64_t>(depth, 1), tk.lanes);
}

/// a += b for `rows` rows.
void merge_states(const TileKernels& tk, const RowStates& a, const RowStates& b, int64_t rows, int64_t depth);

/// The natural log of sum * 2^(2 reference). The largest float means a score of +infinity.
double natural_lse(const TileKernels& tk, double reference, double sum);

/// lse of the panel's rows as kernels take it, acc [width] in the unit of scores; +infinity, which gives every weight
/// 0, for rows that see nothing and for lanes without a row.
void load_lse(const TileKernels& tk, const ConstView<3>& lse, const Sequence& s, const Panel& panel, void* dense);

}  // namespace attn::detail
