#include "attention/states.h"

#include <cmath>

namespace attn::detail {

void merge_states(const TileKernels& tk, const RowStates& a, const RowStates& b, int64_t rows, int64_t depth) {
  tk.merge({.out = a.out,
            .reference = a.reference,
            .sum = a.sum,
            .out_b = b.out,
            .reference_b = b.reference,
            .sum_b = b.sum,
            .rows = rows,
            .depth = depth,
            .stride = state_stride(tk, depth)});
}

double natural_lse(const TileKernels& tk, double reference, double sum) {
  if (sum == 0) return -kInfinity;
  return reference == highest_score(tk) ? kInfinity : reference / kScoreUnit + std::log(sum);
}

void load_lse(const TileKernels& tk, const ConstView<3>& lse, const Sequence& s, const Panel& panel, void* dense) {
  for (int r = 0; r < panel.width; ++r) {
    double value = kInfinity;
    if (r < panel.rows) value = load_row_value(lse, s.batch, panel.head[r], panel.query[r]) * kScoreUnit;
    set(tk, dense, r, value == -kInfinity ? kInfinity : value);
  }
}

}  // namespace attn::detail
