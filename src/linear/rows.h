// Rows of user memory into matrices of a kernel set's arithmetic and back.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attn/core.h"
#include "kernels/dispatch.h"
#include "kernels/linear_table.h"

namespace attn::linear {

constexpr int64_t kChunkTokens = 64;  // tokens of a chunk

/// The kernels of an arithmetic, float or double.
template <class T>
const kernels::LinearKernels& linear_kernels() {
  const kernels::Isa& isa = active_kernels();
  return std::is_same_v<T, double> ? *isa.f64_linear : *isa.f32_linear;
}
template <class T>
const kernels::TileKernels& row_kernels() {
  const kernels::Isa& isa = active_kernels();
  return std::is_same_v<T, double> ? *isa.f64 : *isa.f32;
}

/// A matrix in scratch, as the kernels take it.
template <class T>
struct Matrix {
  T* data = nullptr;
  int64_t row = 0;

  T* operator[](int64_t r) const { return data + r * row; }
  Matrix from(int64_t r, int64_t c = 0) const { return {data + r * row + c, row}; }
  operator kernels::Matrix() const { return {data, row}; }
  operator kernels::ConstMatrix() const { return {data, row}; }
};

/// Elements from row to row: an odd number of cache lines, so that rows are in all sets of a cache.
template <class T>
int64_t row_stride(int64_t columns) {
  constexpr int64_t line = 64 / sizeof(T);
  return ((columns + line - 1) / line | 1) * line;
}

/// Up to kChunkTokens rows of a view, one after the other on axis 2.
class UserRows {
 public:
  template <class Pointer>
  UserRows(const BasicView<Pointer, 4>& x, int64_t b, int64_t h, int64_t first, int64_t count) {
    const int64_t bytes = size_of(x.dtype);
    const auto index = [&](int axis, int64_t i) { return x.size[axis] == 1 ? 0 : i * x.stride[axis] * bytes; };
    char* base = static_cast<char*>(const_cast<void*>(static_cast<const void*>(x.data)));
    base += index(0, b) + index(1, h);
    for (int64_t r = 0; r < count; ++r) row_[r] = base + index(2, first + r);
    args_.row = row_;
    args_.rows = count;
    args_.stride = x.stride[3];
    args_.type = static_cast<int>(x.dtype);
    args_.n = x.size[3];
    args_.scale = 1;
  }
  UserRows(const UserRows&) = delete;
  UserRows& operator=(const UserRows&) = delete;

  /// Rows of a matrix, each with zeros up to `columns`.
  template <class T>
  void load(const Matrix<T>& to, double scale = 1) {
    args_.scale = scale;
    args_.dense = to.data;
    args_.dense_stride = to.row;
    row_kernels<T>().load_rows(args_);
  }
  template <class T>
  void store(const Matrix<T>& from, double scale = 1) {
    args_.scale = scale;
    args_.dense = from.data;
    args_.dense_stride = from.row;
    row_kernels<T>().store_rows(args_);
  }
  double largest() const { return active_kernels().f32_linear->largest(args_); }

 private:
  void* row_[kChunkTokens];
  kernels::RowsArgs args_{};
};

}  // namespace attn::linear
