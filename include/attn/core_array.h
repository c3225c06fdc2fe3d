// core: Array, a dense array whose element type and rank are known at run time. Layers, files and losses compute with
// arrays; the operators take views of them, and an array converts to a view.
//
// ```cpp
// #include "attn/core_array.h"
// int main() {
//   const attn::Array x({1.f, 2.f, 3.f, 4.f, 5.f, 6.f}, {2, 3});         // float32 [2, 3]
//   x.data<float>()[5] = 7;                                              // Error for another element type
//   const attn::View<2> column = x.view<2>().slice(1, 2, 3);             // [2, 1], in place; Error for another rank
//   const attn::Array sum({x.number(2) + x.number(5)}, {1});             // float64 [1]
//   return sum.item<double>() == 10 && column.size[0] == 2 ? 0 : 1;
// }
// ```
#pragma once

#include <algorithm>
#include <array>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attn/tensor.h"

#pragma GCC visibility push(default)
namespace attn {

/// A dense row-major array. An Array is a handle, as a std::shared_ptr is: copies refer to the same memory, which lives
/// as long as one of them. A const Array keeps its memory and shape; its elements can be written through data() and
/// views.
class Array {
 public:
  Array() = default;
  /// Zero-filled, or of undefined content if `zero` is false. Throws Error as count_of() does.
  Array(DType dtype, std::vector<int64_t> shape, bool zero = true);
  template <size_t Rank>
  Array(DType dtype, const std::array<int64_t, Rank>& shape)
      : Array(dtype, std::vector<int64_t>(shape.begin(), shape.end())) {}
  /// An array in the memory that `owner` points to and keeps alive.
  Array(DType dtype, std::vector<int64_t> shape, std::shared_ptr<void> owner);
  /// A copy of `values`, in row-major order, of T's element type. Throws Error unless their number is the shape's.
  template <class T>
  Array(std::span<T> values, std::vector<int64_t> shape)
      : Array(dtype_of<std::remove_const_t<T>>(), std::move(shape), false) {
    require_count(static_cast<int64_t>(values.size()));
    std::copy(values.begin(), values.end(), static_cast<std::remove_const_t<T>*>(data()));
  }
  template <class T>
  Array(const std::vector<T>& values, std::vector<int64_t> shape) : Array(std::span(values), std::move(shape)) {}
  template <class T>
  Array(std::initializer_list<T> values, std::vector<int64_t> shape) : Array(std::span(values), std::move(shape)) {}

  explicit operator bool() const { return memory_ != nullptr; }
  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t count() const { return count_; }
  int64_t width() const { return shape_.empty() ? 1 : shape_.back(); }  ///< extent of the last axis; 1 without axes
  void* data() const { return memory_.get(); }
  /// The elements in row-major order. Throws Error unless T is the element type.
  template <class T>
  T* data() const {
    require_type(dtype_of<T>());
    return static_cast<T*>(data());
  }
  /// The element of an array with one element. Throws Error for another count, and unless T is the element type.
  template <class T>
  T item() const {
    require_count(1);
    return *data<T>();
  }
  /// Element n in row-major order as a number. n, in [0, count()), is not checked.
  double number(int64_t n) const {
    if (dtype_ == DType::float32) return static_cast<const float*>(data())[n];
    return dtype_ == DType::float64 ? static_cast<const double*>(data())[n] : other_number(n);
  }
  /// All elements in row-major order, each converted to T.
  template <class T = double>
  std::vector<T> values() const {
    std::vector<T> all(static_cast<size_t>(count_));
    for (int64_t n = 0; n < count_; ++n) all[n] = static_cast<T>(number(n));
    return all;
  }

  /// The array as a view, to which it also converts. Throws Error unless it has Rank axes.
  template <int Rank>
  View<Rank> view() const {
    require_rank(Rank);
    Shape<Rank> size;
    std::copy_n(shape_.begin(), Rank, size.begin());
    return {data(), dtype_, size};
  }
  template <class Pointer, int Rank>
  operator BasicView<Pointer, Rank>() const {
    return view<Rank>();
  }
  /// The array as [R, C], C = width().
  View<2> rows() const;
  /// All elements as one row.
  View<2> flat() const { return {data(), dtype_, {1, count_}}; }
  View<1> vector() const { return {data(), dtype_, {count_}}; }
  /// The same memory in another shape. Throws Error unless the count is the same.
  Array reshaped(std::vector<int64_t> shape) const;
  void fill_zero();
  Array clone() const;
  /// "float32 [2, 3]"
  std::string describe() const;
  /// True if other handles share the memory.
  bool is_shared() const { return memory_.use_count() > 1; }

 private:
  void require_type(DType wanted) const;
  void require_rank(int wanted) const;
  void require_count(int64_t given) const;
  double other_number(int64_t n) const;
  DType dtype_ = DType::float32;
  std::vector<int64_t> shape_;
  int64_t count_ = 0;
  std::shared_ptr<void> memory_;
};

}  // namespace attn
#pragma GCC visibility pop
