// What the float64 references share: elements of any type as numbers, dense copies of views, and two sums.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attn/core.h"

namespace attn::reference {

template <class T>
T load(const void* data, DType dtype, int64_t offset) {
  switch (dtype) {
    case DType::float32: return static_cast<T>(static_cast<const float*>(data)[offset]);
    case DType::float64: return static_cast<T>(static_cast<const double*>(data)[offset]);
    case DType::bfloat16: return static_cast<T>(float{static_cast<const bfloat16*>(data)[offset]});
    case DType::float16: return static_cast<T>(float{static_cast<const float16*>(data)[offset]});
    case DType::boolean: return static_cast<T>(static_cast<const uint8_t*>(data)[offset] != 0);
    case DType::int32: return static_cast<T>(static_cast<const int32_t*>(data)[offset]);
    case DType::int64: return static_cast<T>(static_cast<const int64_t*>(data)[offset]);
  }
  return T{};
}

inline void store(void* data, DType dtype, int64_t offset, double value) {
  switch (dtype) {
    case DType::float32: static_cast<float*>(data)[offset] = static_cast<float>(value); break;
    case DType::float64: static_cast<double*>(data)[offset] = value; break;
    case DType::bfloat16: static_cast<bfloat16*>(data)[offset] = bfloat16(static_cast<float>(value)); break;
    case DType::float16: static_cast<float16*>(data)[offset] = float16(static_cast<float>(value)); break;
    case DType::int64: static_cast<int64_t*>(data)[offset] = static_cast<int64_t>(value); break;
    default: break;  // no result is of another type
  }
}

/// The element at an index; an axis of extent 1 is broadcast.
template <class T, int Rank>
T at(const ConstView<Rank>& view, const Shape<Rank>& index) {
  int64_t offset = 0;
  for (int axis = 0; axis < Rank; ++axis) offset += (view.size[axis] == 1 ? 0 : index[axis]) * view.stride[axis];
  return load<T>(view.data, view.dtype, offset);
}

/// Where the n-th element in row-major order is.
template <int Rank>
int64_t offset_of(int64_t n, const Shape<Rank>& size, const Shape<Rank>& stride) {
  int64_t offset = 0;
  for (int axis = Rank - 1; axis >= 0; --axis) {
    offset += n % size[axis] * stride[axis];
    n /= size[axis];
  }
  return offset;
}

/// Calls body(n, offset) for every element in row-major order.
template <int Rank, class Body>
void for_each_element(int64_t count, const Shape<Rank>& size, const Shape<Rank>& stride, Body body) {
  const int64_t row = size[Rank - 1];
  for (int64_t first = 0; first < count; first += row) {
    const int64_t offset = offset_of<Rank>(first, size, stride);
    for (int64_t n = 0; n < row; ++n) body(first + n, offset + n * stride[Rank - 1]);
  }
}

template <int Rank>
Tensor<double, Rank> read(const ConstView<Rank>& view) {
  if (!view) return {};
  Tensor<double, Rank> dense(view.size);
  for_each_element<Rank>(dense.count(), view.size, view.stride,
                         [&](int64_t n, int64_t offset) { dense[n] = load<double>(view.data, view.dtype, offset); });
  return dense;
}

template <int Rank>
void write(const Tensor<double, Rank>& dense, const View<Rank>& view) {
  if (!view) return;
  for_each_element<Rank>(dense.count(), view.size, view.stride,
                         [&](int64_t n, int64_t offset) { store(view.data, view.dtype, offset, dense[n]); });
}

/// The last axis of x[b, h, i, :].
template <class Dense>
auto* row_of(Dense& x, int64_t b, int64_t h, int64_t i) {
  const Shape<4>& size = x.size();
  return x.data() + ((b * size[1] + h) * size[2] + i) * size[3];
}

inline double dot(const double* a, const double* b, int64_t count) {
  double sum = 0;
  for (int64_t n = 0; n < count; ++n) sum += a[n] * b[n];
  return sum;
}

/// y += factor * x
inline void add_scaled(double* y, double factor, const double* x, int64_t count) {
  for (int64_t n = 0; n < count; ++n) y[n] += factor * x[n];
}

}  // namespace attn::reference
