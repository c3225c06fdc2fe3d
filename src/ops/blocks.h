// How an operation is cut into tasks: by its shape alone, so that results do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstring>

#include "attn/core.h"
#include "core/numbers.h"
#include "core/scratch.h"
#include "core/subnormals.h"
#include "kernels/dispatch.h"
#include "kernels/elements_table.h"

namespace attn::ops {

/// Elements of a task: 2 to 20 us, next to 2 us that waking the threads costs.
constexpr int64_t kBlock = 16384;

/// The kernels of the arithmetic that belongs to a storage type.
inline const kernels::ElementKernels& kernels_for(DType dtype) {
  const kernels::Isa& isa = active_kernels();
  return dtype == DType::float64 ? *isa.f64_elements : *isa.f32_elements;
}

/// Rows row .. row + rows - 1, columns column .. column + columns - 1; the task of this number.
struct RowBlock {
  int64_t row = 0, rows = 0, column = 0, columns = 0, task = 0;
};

/// A view without data stays one.
inline kernels::ConstRows rows_at(const ConstView<2>& x, const RowBlock& b) {
  if (!x.data) return {nullptr, 0, 0};
  const int64_t offset = (b.row * x.stride[0] + b.column) * size_of(x.dtype);
  return {static_cast<const char*>(x.data) + offset, x.stride[0], static_cast<int>(x.dtype)};
}
inline kernels::Rows rows_at(const View<2>& x, const RowBlock& b) {
  const kernels::ConstRows rows = rows_at(ConstView<2>(x), b);
  return {const_cast<void*>(rows.data), rows.stride, rows.type};
}

/// Zeros, which all floating types write as zero bytes.
inline void fill_zero(const View<2>& x, const RowBlock& b) {
  for (int64_t r = 0; r < b.rows; ++r)
    std::memset(rows_at(x, {.row = b.row + r, .column = b.column}).data, 0,
                static_cast<size_t>(b.columns * size_of(x.dtype)));
}

/// Element n of a dense vector; null for a view without data.
template <class Pointer>
Pointer element_at(const BasicView<Pointer, 1>& x, int64_t n) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  return x.data ? static_cast<Byte*>(x.data) + n * size_of(x.dtype) : nullptr;
}

/// True if rows follow each other without gaps.
inline bool is_dense(const ConstView<2>& x) { return x.size[0] <= 1 || x.stride[0] == x.size[1]; }

/// Rows of a task.
inline int64_t rows_a_task(int64_t columns) { return std::max<int64_t>(1, kBlock / std::max<int64_t>(1, columns)); }

/// Groups of whole rows.
template <class Body>
void for_row_blocks(int64_t rows, int64_t columns, const Body& body) {
  const int64_t step = rows_a_task(columns);
  parallel_for_flushed(div_up(rows, step), [&](int64_t task) {
    body(RowBlock{task * step, std::min(step, rows - task * step), 0, columns, task});
  });
}

/// For what treats all elements alike: where every array is dense, one long row is cut.
template <class Body>
void for_blocks(const Shape<2>& size, bool dense, const Body& body) {
  if (!dense) return for_row_blocks(size[0], size[1], body);
  const int64_t total = size[0] * size[1];
  parallel_for_flushed(div_up(total, kBlock), [&](int64_t task) {
    body(RowBlock{0, 1, task * kBlock, std::min(kBlock, total - task * kBlock), task});
  });
}

/// How many blocks for_blocks() makes.
inline int64_t count_blocks(const Shape<2>& size, bool dense) {
  return dense ? div_up(size[0] * size[1], kBlock) : div_up(size[0], rows_a_task(size[1]));
}

// ------------------------------------------------------------------------------------------------- sums over the rows

/// Adds up `Vectors` vectors of `columns` elements of the arithmetic of `dtype`, over all rows: every slab of rows has
/// partial sums of its own, which are added to the totals in order.
class ColumnSums {
 public:
  /// Uses the calling thread's scratch until finish(): tasks must not ask for scratch.
  ColumnSums(int64_t rows, int64_t columns, DType dtype, int vectors)
      : rows_(rows), columns_(columns), stride_((columns + 15) / 16 * 16), vectors_(vectors), dtype_(dtype) {
    // At least 32 rows, so that a partial sum costs little next to them, and at most 64 slabs, so that adding them
    // does.
    slab_ = std::max({int64_t{32}, div_up(rows, 64), kBlock / std::max<int64_t>(1, columns)});
    memory_ = static_cast<char*>(thread_scratch(slabs() * slab_bytes()));
  }

  int64_t slabs() const { return div_up(rows_, slab_); }
  RowBlock slab(int64_t n) const { return {n * slab_, std::min(slab_, rows_ - n * slab_), 0, columns_}; }
  /// Called by the task of slab n.
  void clear(int64_t n) const { std::memset(memory_ + n * slab_bytes(), 0, static_cast<size_t>(slab_bytes())); }
  void* partial(int64_t n, int vector) const { return memory_ + n * slab_bytes() + vector * stride_ * size_of(dtype_); }
  /// total += the partial sums of one vector.
  void finish(int vector, void* total) const {
    constexpr int64_t kColumns = 2048;
    if (rows_ == 0) return;
    parallel_for(div_up(columns_, kColumns), [&](int64_t task) {
      const int64_t first = task * kColumns, offset = first * size_of(dtype_);
      kernels_for(dtype_).add_rows(
          {.rows = slabs(),
           .columns = std::min(kColumns, columns_ - first),
           .x = {static_cast<char*>(partial(0, vector)) + offset, stride_ * vectors_, static_cast<int>(dtype_)},
           .total = static_cast<char*>(total) + offset});
    });
  }

 private:
  int64_t slab_bytes() const { return vectors_ * stride_ * size_of(dtype_); }

  int64_t rows_, columns_, stride_, slab_ = 0;
  int vectors_;
  DType dtype_;
  char* memory_ = nullptr;
};

}  // namespace attn::ops
