// merge(): the public function over the one kernel that joins two states of attention.
#include <algorithm>

#include "attention/states.h"

namespace attn {

void merge(View<4> out, View<3> lse, ConstView<4> out_b, ConstView<3> lse_b) {
  using namespace detail;
  Checker checker("merge");
  checker.require(is_floating(out.dtype),
                  [&] { return "out is " + std::string(name_of(out.dtype)) + ", must be a floating type"; });
  checker.require(out_b.dtype == out.dtype, "out_b must have out's type");
  check_tensor(checker, "out", out, out.size);
  check_tensor(checker, "out_b", out_b, out.size);
  Problem shape;
  shape.q = out;
  shape.B = out.size[0];
  shape.H = out.size[1];
  shape.Lq = out.size[2];
  check_row_values(checker, "lse", lse, shape);
  check_row_values(checker, "lse_b", lse_b, shape);
  checker.require((out.data && lse.data && out_b.data && lse_b.data) || out.empty(),
                  "out, lse, out_b and lse_b must have data");
  if (checker.ok())
    check_overlap(checker, {region("out", out), region("lse", lse)}, {region("out_b", out_b), region("lse_b", lse_b)});
  checker.done();

  const TileKernels& tk = row_kernels(out.dtype == DType::float64 ? DType::float64 : DType::float32, 1, {});
  const int64_t H = out.size[1], Lq = out.size[2], Dv = out.size[3];
  constexpr int64_t kRows = 16;
  const int64_t blocks = div_up(Lq, kRows);
  const int64_t stride = state_stride(tk, Dv), bytes = RowStates::bytes(kRows, stride, tk.acc_bytes);
  parallel_for(out.size[0] * H * blocks, [&](int64_t task) {
    const int64_t b = task / (H * blocks), h = task / blocks % H, first = task % blocks * kRows;
    const int64_t rows = std::min(kRows, Lq - first);
    Arena arena(thread_scratch(2 * bytes));
    void* pointers[kRows];
    const auto load = [&](const ConstView<4>& view, const ConstView<3>& values) {
      const RowStates states = RowStates::take(arena, kRows, stride, tk.acc_bytes);
      for (int64_t r = 0; r < rows; ++r) {
        pointers[r] = const_cast<char*>(at(view, b, h, first + r));
        const double value = load_row_value(values, b, h, first + r);
        states.reference[r] = value * kScoreUnit;
        states.sum[r] = value == -kInfinity ? 0 : 1;
      }
      kernels::RowsArgs args = view_rows_args(pointers, rows, view);
      args.dense = states.out;
      args.dense_stride = stride;
      tk.load_rows(args);
      return states;
    };
    const RowStates b_states = load(out_b, lse_b), a_states = load(out, lse);
    merge_states(tk, a_states, b_states, rows, Dv);
    kernels::RowsArgs args = view_rows_args(pointers, rows, out);
    args.dense = a_states.out;
    args.dense_stride = stride;
    tk.store_rows(args);
    for (int64_t r = 0; r < rows; ++r) {
      // The empty state is the identity, to the bit: no detour by base 2.
      const double mine = load_row_value(lse, b, h, first + r), other = load_row_value(lse_b, b, h, first + r);
      if (other == -kInfinity) continue;
      const double joint = natural_lse(tk, a_states.reference[r], a_states.sum[r]);
      store_row_value(lse, b, h, first + r, mine == -kInfinity ? other : joint);
    }
  });
}

}  // namespace attn
