// tensor: strided views, and tensors that own their memory, of the element types in attn/core_dtype.h.
//
// ```cpp
// #include "attn/tensor.h"
// int main() {
//   attn::Tensor<float, 3> x({2, 100, 64});                        // owns its memory, zero-initialised
//   const attn::View<3> half = x.view().slice(1, 0, 50);           // [2, 50, 64], in place
//   const attn::View<2> first = half.select(0, 0);                 // [50, 64]
//   const attn::View<2> transposed(first.data, first.dtype, {64, 50}, {1, 64});
//   return transposed.count() == 3200 ? 0 : 1;
// }
// ```
//
// A view is a pointer, sizes and strides. It owns nothing and copies nothing; its memory must outlive it. Strides count
// elements and may be zero (broadcast) or negative. Shapes are written as in the glossary: q is [B, H, Lq, D].
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "attn/core_dtype.h"

#pragma GCC visibility push(default)
namespace attn {

// ------------------------------------------------------------------------------------------------------------ views

template <int Rank>
using Shape = std::array<int64_t, Rank>;

/// Throws Error that says what is wrong with this shape.
[[noreturn]] void refuse_shape(const int64_t* size, int rank);

/// The number of elements of an array of this shape. Throws Error for a negative extent and where the bytes, counted
/// without axes of extent 0, do not fit in 63 bits.
constexpr int64_t count_of(const int64_t* size, int rank, int64_t element_bytes = 1) {
  int64_t count = 1, bytes = element_bytes;
  for (int axis = 0; axis < rank; ++axis) {
    if (size[axis] < 0 || __builtin_mul_overflow(bytes, size[axis] == 0 ? 1 : size[axis], &bytes))
      refuse_shape(size, rank);
    count *= size[axis];
  }
  return count;
}
template <size_t Rank>
constexpr int64_t count_of(const std::array<int64_t, Rank>& size) {
  return count_of(size.data(), static_cast<int>(Rank));
}

/// The strides, in elements, of a dense row-major array of this shape. Throws Error where one does not fit in 63 bits.
template <size_t Rank>
constexpr std::array<int64_t, Rank> contiguous_strides(const std::array<int64_t, Rank>& size) {
  std::array<int64_t, Rank> stride{};
  int64_t next = 1;
  for (size_t axis = Rank; axis-- > 0;) {
    stride[axis] = next;
    if (axis > 0 && __builtin_mul_overflow(next, size[axis], &next)) refuse_shape(size.data(), static_cast<int>(Rank));
  }
  return stride;
}

/// The bytes from the first element of an array to the first element of indices begin .. end - 1 of an axis; 0 where
/// begin = end. Throws Error for an axis outside the rank, and unless 0 <= begin <= end <= extent.
int64_t offset_of_slice(const int64_t* size, const int64_t* stride, int rank, DType dtype, int axis, int64_t begin,
                        int64_t end);
/// Throws Error unless `axes` has each of 0 .. rank - 1 once.
void require_permutation(const int* axes, int rank);
/// columns / heads. Throws Error unless that is a whole number and heads is positive.
int64_t width_of_heads(int64_t columns, int64_t heads);

/// A typed, strided view of memory that somebody else owns. A view without data means "not given".
template <class Pointer, int Rank>
struct BasicView {
  Pointer data = nullptr;
  DType dtype = DType::float32;
  Shape<Rank> size{};
  Shape<Rank> stride{};  // elements

  BasicView() = default;
  BasicView(Pointer data_, DType dtype_, const Shape<Rank>& size_, const Shape<Rank>& stride_)
      : data(data_), dtype(dtype_), size(size_), stride(stride_) {}
  BasicView(Pointer data_, DType dtype_, const Shape<Rank>& size_)
      : BasicView(data_, dtype_, size_, contiguous_strides(size_)) {}
  /// A dense row-major view; the element type is that of the pointer.
  template <class T, class = std::enable_if_t<std::is_convertible_v<T*, Pointer> && !std::is_void_v<T>>>
  BasicView(T* data_, const Shape<Rank>& size_)
      : BasicView(data_, dtype_of<std::remove_cv_t<T>>(), size_, contiguous_strides(size_)) {}
  /// A writable view converts to a read-only one.
  template <class Other, class = std::enable_if_t<std::is_convertible_v<Other, Pointer>>>
  BasicView(const BasicView<Other, Rank>& other) : BasicView(other.data, other.dtype, other.size, other.stride) {}

  explicit operator bool() const { return data != nullptr; }
  int64_t count() const { return count_of(size); }
  /// True if an extent is 0.
  bool empty() const { return std::find(size.begin(), size.end(), 0) != size.end(); }

  /// Indices begin .. end - 1 of an axis, without a copy: keys.slice(2, 0, length). Throws Error as offset_of_slice().
  BasicView slice(int axis, int64_t begin, int64_t end) const {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
    const int64_t offset = offset_of_slice(size.data(), stride.data(), Rank, dtype, axis, begin, end);
    BasicView part = *this;
    if (data) part.data = static_cast<Byte*>(data) + offset;
    part.size[axis] = end - begin;
    return part;
  }
  /// One index of an axis, without a copy and without that axis: keys.select(0, b) is [Hk, Lk, D]. Throws Error as
  /// slice().
  BasicView<Pointer, Rank - 1> select(int axis, int64_t index) const requires(Rank > 1) {
    const BasicView one = slice(axis, index, index < INT64_MAX ? index + 1 : index);
    BasicView<Pointer, Rank - 1> rest;
    rest.data = one.data;
    rest.dtype = dtype;
    for (int from = 0, to = 0; from < Rank; ++from) {
      if (from == axis) continue;
      rest.size[to] = size[from];
      rest.stride[to++] = stride[from];
    }
    return rest;
  }
  /// The axes in another order, without a copy: [B, L, H, D], the order of PyTorch's projections, becomes [B, H, L, D]
  /// by permute({0, 2, 1, 3}). Throws Error unless each axis is there once.
  BasicView permute(const std::array<int, Rank>& axes) const {
    require_permutation(axes.data(), Rank);
    BasicView result = *this;
    for (int axis = 0; axis < Rank; ++axis) {
      result.size[axis] = size[axes[axis]];
      result.stride[axis] = stride[axes[axis]];
    }
    return result;
  }
  /// The heads in the last axis, without a copy: [B, L, H D] becomes [B, H, L, D]; head h has the columns h D .. h D +
  /// D - 1. Throws Error unless `count`, H, divides the columns.
  BasicView<Pointer, 4> heads(int64_t count) const requires(Rank == 3) {
    const int64_t width = width_of_heads(size[2], count);
    return {data, dtype, {size[0], count, size[1], width}, {stride[0], width * stride[2], stride[1], stride[2]}};
  }
};

template <int Rank>
using View = BasicView<void*, Rank>;
template <int Rank>
using ConstView = BasicView<const void*, Rank>;

/// "[2, 8, 1024, 64]"
std::string to_string(const int64_t* size, int rank);
template <size_t Rank>
std::string to_string(const std::array<int64_t, Rank>& size) {
  return to_string(size.data(), static_cast<int>(Rank));
}

// ---------------------------------------------------------------------------------------------------------- tensors

/// Owns 64-byte aligned memory, zero-filled on request; data() is null where bytes() is 0. Throws Error for a negative
/// size and std::bad_alloc where the memory cannot be had.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t bytes, bool zero = false);
  void* data() const { return memory_.get(); }
  int64_t bytes() const { return memory_.get_deleter().bytes; }

 private:
  struct Free {
    int64_t bytes;  // 0 in an empty unique_ptr, which value-initialises it
    void operator()(void* pointer) const;
  };
  std::unique_ptr<void, Free> memory_;
};

/// Owns a dense row-major array, zero-initialised; copies copy the elements. operator[] takes the index in memory order
/// and does not check it. Construction throws as count_of() and `new` do.
template <class T, int Rank>
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(const Shape<Rank>& size)
      : size_(size), count_(count_of(size.data(), Rank, int64_t{sizeof(T)})), values_(allocate(count_)) {}
  Tensor(const Tensor& other) : size_(other.size_), count_(other.count_), values_(allocate(count_)) {
    std::copy(other.begin(), other.end(), begin());
  }
  Tensor(Tensor&& other) noexcept { swap(other); }
  Tensor& operator=(Tensor other) noexcept {
    swap(other);
    return *this;
  }
  void swap(Tensor& other) noexcept {
    std::swap(size_, other.size_);
    std::swap(count_, other.count_);
    std::swap(values_, other.values_);
  }

  const Shape<Rank>& size() const { return size_; }
  T* data() { return values_.get(); }
  const T* data() const { return values_.get(); }
  int64_t count() const { return count_; }
  T& operator[](int64_t index) { return values_[static_cast<size_t>(index)]; }
  const T& operator[](int64_t index) const { return values_[static_cast<size_t>(index)]; }
  /// x(b, h, i, d): one index per axis, not checked.
  template <class... Index>
  T& operator()(Index... index) requires(sizeof...(Index) == Rank) {
    return values_[static_cast<size_t>(place(index...))];
  }
  template <class... Index>
  const T& operator()(Index... index) const requires(sizeof...(Index) == Rank) {
    return values_[static_cast<size_t>(place(index...))];
  }
  T* begin() { return data(); }
  T* end() { return data() + count_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + count_; }
  View<Rank> view() { return {data(), size_}; }
  ConstView<Rank> view() const { return {data(), size_}; }
  operator View<Rank>() { return view(); }
  operator ConstView<Rank>() const { return view(); }

 private:
  template <class... Index>
  int64_t place(Index... index) const {
    int64_t n = 0, axis = 0;
    ((n = n * size_[axis++] + static_cast<int64_t>(index)), ...);
    return n;
  }
  static std::unique_ptr<T[]> allocate(int64_t count) {  // not a vector: that of bool has no elements to point to
    return count > 0 ? std::make_unique<T[]>(static_cast<size_t>(count)) : nullptr;
  }

  Shape<Rank> size_{};
  int64_t count_ = 0;
  std::unique_ptr<T[]> values_;
};

}  // namespace attn
#pragma GCC visibility pop
