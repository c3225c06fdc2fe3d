// tensor: element types, strided views, owning tensors: the part of core that arrays are made of.
//
// A view is a pointer, sizes and strides; it owns nothing and copies nothing. Strides count elements and may be zero
// (broadcast) or negative. Shapes are written as in the glossary: q is [B, H, Lq, D].
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace attn {

// ---------------------------------------------------------------------------------------------------- element types

enum class DType : uint8_t { float32, float64, bfloat16, float16, boolean, int32, int64 };

/// Bytes of one element.
int64_t size_of(DType dtype);
/// "float32", "bfloat16", ...
std::string_view name_of(DType dtype);
/// True for the four types that attention computes on.
bool is_floating(DType dtype);

/// The upper half of a float32: 8 exponent bits, 7 fraction bits. Conversion from float rounds to nearest even.
struct bfloat16 {
  uint16_t bits = 0;
  bfloat16() = default;
  explicit bfloat16(float value);
  operator float() const;
};

/// IEEE 754 binary16. Conversion from float rounds to nearest even; beyond 65504 it becomes infinity.
struct float16 {
  uint16_t bits = 0;
  float16() = default;
  explicit float16(float value);
  operator float() const;
};

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::float32;
  else if constexpr (std::is_same_v<T, double>) return DType::float64;
  else if constexpr (std::is_same_v<T, bfloat16>) return DType::bfloat16;
  else if constexpr (std::is_same_v<T, float16>) return DType::float16;
  else if constexpr (std::is_same_v<T, bool>) return DType::boolean;
  else if constexpr (std::is_same_v<T, int32_t>) return DType::int32;
  else {
    static_assert(std::is_same_v<T, int64_t>, "attn has no such element type");
    return DType::int64;
  }
}

// ------------------------------------------------------------------------------------------------------------ views

template <int Rank>
using Shape = std::array<int64_t, Rank>;

/// Elements of an array of this shape.
template <size_t Rank>
constexpr int64_t count_of(const std::array<int64_t, Rank>& size) {
  int64_t product = 1;
  for (int64_t extent : size) product *= extent;
  return product;
}

/// Strides of a dense row-major array of this shape, in elements.
template <int Rank>
constexpr Shape<Rank> contiguous_strides(const Shape<Rank>& size) {
  Shape<Rank> stride{};
  int64_t next = 1;
  for (int axis = Rank - 1; axis >= 0; --axis) {
    stride[axis] = next;
    next *= size[axis];
  }
  return stride;
}

/// A typed, strided window on memory that somebody else owns. A view without data means "not given".
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
      : BasicView(data_, dtype_, size_, contiguous_strides<Rank>(size_)) {}
  /// A dense row-major view of elements whose type C++ knows.
  template <class T, class = std::enable_if_t<std::is_convertible_v<T*, Pointer> && !std::is_void_v<T>>>
  BasicView(T* data_, const Shape<Rank>& size_)
      : BasicView(data_, dtype_of<std::remove_cv_t<T>>(), size_, contiguous_strides<Rank>(size_)) {}
  /// A writable view reads like a constant one.
  template <class Other, class = std::enable_if_t<std::is_convertible_v<Other, Pointer>>>
  BasicView(const BasicView<Other, Rank>& other) : BasicView(other.data, other.dtype, other.size, other.stride) {}

  explicit operator bool() const { return data != nullptr; }
  int64_t count() const { return count_of(size); }
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

/// 64-byte aligned memory that it owns, zero-filled on request. Throws std::bad_alloc.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t bytes, bool zero = false);
  void* data() const { return memory_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* pointer) const;
  };
  std::unique_ptr<void, Free> memory_;
  int64_t bytes_ = 0;
};

/// An owning, dense, row-major array, zero at birth.
template <class T, int Rank>
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(const Shape<Rank>& size) : size_(size), values_(static_cast<size_t>(count_of(size)), T{}) {}

  const Shape<Rank>& size() const { return size_; }
  T* data() { return values_.data(); }
  const T* data() const { return values_.data(); }
  int64_t count() const { return static_cast<int64_t>(values_.size()); }
  T& operator[](int64_t index) { return values_[index]; }
  const T& operator[](int64_t index) const { return values_[index]; }
  View<Rank> view() { return {data(), size_}; }
  ConstView<Rank> view() const { return {data(), size_}; }
  operator View<Rank>() { return view(); }
  operator ConstView<Rank>() const { return view(); }

 private:
  Shape<Rank> size_{};
  std::vector<T> values_;
};

}  // namespace attn
