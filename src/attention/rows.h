// Panels: which rows sit in the lanes, in place in memory, and which keys each of them may see.
#pragma once

#include "attention/arithmetic.h"
#include "attention/key_lists.h"
#include "attention/problem.h"
#include "core/caches.h"
#include "core/numbers.h"

namespace attn::detail {

/// Up to kMaxWidth rows of one sequence and key/value head. Kilobytes: it is filled in place, never copied.
struct Panel {
  int rows, width;
  int64_t query[kernels::kMaxWidth];  // i, absolute
  int64_t head[kernels::kMaxWidth];   // h
  int64_t place[kernels::kMaxWidth];  // p_i, inside the sequence
  int64_t begin[kernels::kMaxWidth];  // allowed keys by length, causal and window, inside the sequence
  int64_t end[kernels::kMaxWidth];
  int64_t low, high;            // union of the intervals
  int64_t full_low, full_high;  // their intersection
  KeyLists lists;               // of key blocks, which allow some of them
};

/// Rows first .. first + rows of the sequence.
void fill_panel(Panel& panel, const Problem& p, const Sequence& s, int64_t kv_head, int64_t first, int64_t rows,
                int lanes);
/// The same for `rows` consecutive queries of one head, whatever shares its keys.
void fill_head_panel(Panel& panel, const Problem& p, const Sequence& s, int64_t head, int64_t first_query, int64_t rows,
                     int lanes);

/// The kernels for the rows of a sequence, whatever its neighbours,
inline const TileKernels& row_kernels(const Problem& p, const Sequence& s) {
  return row_kernels(p.q.dtype, p.rows(s), *p.options);
}
/// those of its backward,
inline const TileKernels& gradient_kernels(const Problem& p, const Sequence& s) {
  return gradient_kernels(p.q.dtype, p.rows(s), *p.options);
}
/// those of its forward,
inline const TileKernels& forward_kernels(const Problem& p, const Sequence& s) {
  return forward_kernels(p.q.dtype, p.rows(s), *p.options, p.storage == KVStorage::int8);
}
/// and for what is not done sequence by sequence.
inline const TileKernels& row_kernels(const Problem& p) { return row_kernels(p.q.dtype, p.Lq * p.G, *p.options); }
inline const TileKernels& gradient_kernels(const Problem& p) {
  return gradient_kernels(p.q.dtype, p.Lq * p.G, *p.options);
}

/// Rows of a full panel: as many as the kernels take or, where blocks of queries have keys of their own, the most whole
/// vectors that divide a block, so that no panel has rows of two blocks and visits the keys of both.
inline int64_t panel_rows(const Problem& p, const TileKernels& tk) {
  const BlockLayout& blocks = p.options->blocks;
  const int64_t block = blocks.given() ? saturating_mul(blocks.query_block, p.G) : 0;
  for (int64_t rows = tk.panel; rows >= tk.lanes; rows -= tk.lanes)
    if (block % rows == 0) return rows;
  return tk.panel;
}

/// The lane mask of a panel in which everybody is allowed.
inline uint64_t all_lanes(int rows) { return rows >= 64 ? ~uint64_t{0} : (uint64_t{1} << rows) - 1; }

/// `count` rows of n elements; the caller adds the dense side.
inline kernels::RowsArgs rows_args(void* const* rows, int64_t count, int64_t stride, int type, int64_t n) {
  kernels::RowsArgs args{};
  args.row = rows;
  args.rows = count;
  args.stride = stride;
  args.type = type;
  args.n = n;
  args.scale = 1;
  return args;
}
inline kernels::RowsArgs rows_args(void* const* rows, int64_t count, int64_t stride, DType dtype, int64_t n) {
  return rows_args(rows, count, stride, static_cast<int>(dtype), n);
}

/// Rows of arrays of so many bytes are taken to be beyond the second-level cache: three others come with them. Asking
/// for rows that it does hold costs 3 to 7 % of a call (0.75 MiB: sequences of 8); not asking where it does not, up to
/// half (1.5 MiB and more, [B, L, H, D]; Zen 4, whose second level has 1 MiB).
inline int64_t far_array_bytes() { return caches().second; }

/// `count` rows of a view, each over its last axis.
template <class Pointer>
kernels::RowsArgs view_rows_args(void* const* rows, int64_t count, const BasicView<Pointer, 4>& view) {
  const Shape<4>& n = view.size;
  kernels::RowsArgs args = rows_args(rows, count, n[3] == 1 ? 1 : view.stride[3], view.dtype, n[3]);
  // Elements that repeat (stride 0) may be more than 64 bits can count.
  const int64_t elements = saturating_mul(saturating_mul(n[0], n[1]), saturating_mul(n[2], n[3]));
  args.far = elements >= far_array_bytes() / size_of(view.dtype);
  return args;
}

/// The rows of a panel in a [B, H, Lq, n] tensor, as kernels take them.
class PanelRows {
 public:
  template <class Pointer>
  PanelRows(const BasicView<Pointer, 4>& view, const Sequence& s, const Panel& panel) {
    for (int r = 0; r < panel.rows; ++r)
      row_[r] = const_cast<char*>(static_cast<const char*>(at(view, s.batch, panel.head[r], panel.query[r])));
    args_ = view_rows_args(row_, panel.rows, view);
  }
  PanelRows(const PanelRows&) = delete;
  PanelRows& operator=(const PanelRows&) = delete;

  /// To or from `dense`, in the layout that the kernel names; every element is multiplied by `scale`.
  kernels::RowsArgs with(void* dense, int64_t dense_stride, double scale = 1) const {
    kernels::RowsArgs args = args_;
    args.dense = dense;
    args.dense_stride = dense_stride;
    args.scale = scale;
    return args;
  }

 private:
  void* row_[kernels::kMaxWidth];
  kernels::RowsArgs args_;
};

}  // namespace attn::detail
