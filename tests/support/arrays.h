// arrays: dense arrays whose element type is chosen at run time, and the loop over instruction sets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "attn/attn.h"
#include "sample.h"

namespace attn::test {

// -------------------------------------------------------------------------------------------------------------- arrays

inline double load_element(const void* data, DType dtype, int64_t n) {
  switch (dtype) {
    case DType::float32: return static_cast<const float*>(data)[n];
    case DType::float64: return static_cast<const double*>(data)[n];
    case DType::bfloat16: return float{static_cast<const bfloat16*>(data)[n]};
    case DType::float16: return float{static_cast<const float16*>(data)[n]};
    case DType::boolean: return static_cast<const uint8_t*>(data)[n];
    case DType::int32: return static_cast<const int32_t*>(data)[n];
    case DType::int64: return static_cast<double>(static_cast<const int64_t*>(data)[n]);
  }
  return 0;
}

inline void store_element(void* data, DType dtype, int64_t n, double value) {
  switch (dtype) {
    case DType::float32: static_cast<float*>(data)[n] = static_cast<float>(value); break;
    case DType::float64: static_cast<double*>(data)[n] = value; break;
    case DType::bfloat16: static_cast<bfloat16*>(data)[n] = bfloat16(static_cast<float>(value)); break;
    case DType::float16: static_cast<float16*>(data)[n] = float16(static_cast<float>(value)); break;
    case DType::boolean: static_cast<uint8_t*>(data)[n] = value != 0; break;
    case DType::int32: static_cast<int32_t*>(data)[n] = static_cast<int32_t>(value); break;
    case DType::int64: static_cast<int64_t*>(data)[n] = static_cast<int64_t>(value); break;
  }
}

/// `value` as an element of this type holds it.
inline double rounded(double value, DType dtype) {
  double element = 0;  // eight bytes hold one element of any type
  store_element(&element, dtype, 0, value);
  return load_element(&element, dtype, 0);
}

/// A dense row-major array, zero at birth; a default-constructed one is "not given".
template <int Rank>
class Array {
 public:
  Array() = default;
  Array(DType dtype, const Shape<Rank>& size) : dtype_(dtype), size_(size) { bytes_.resize(count() * size_of(dtype)); }

  DType dtype() const { return dtype_; }
  const Shape<Rank>& size() const { return size_; }
  int64_t count() const { return ConstView<Rank>(nullptr, dtype_, size_).count(); }
  bool given() const { return !bytes_.empty(); }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  double get(int64_t n) const { return load_element(bytes_.data(), dtype_, n); }
  void set(int64_t n, double value) { store_element(bytes_.data(), dtype_, n, value); }
  int64_t index(const Shape<Rank>& at) const {
    int64_t n = 0;
    for (int axis = 0; axis < Rank; ++axis) {
      if (at[axis] < 0 || at[axis] >= size_[axis]) throw std::out_of_range("a test's array has no such element");
      n = n * size_[axis] + at[axis];
    }
    return n;
  }
  double get(const Shape<Rank>& at) const { return get(index(at)); }
  void set(const Shape<Rank>& at, double value) { set(index(at), value); }

  View<Rank> view() { return {bytes_.data(), dtype_, size_}; }
  ConstView<Rank> view() const { return {bytes_.data(), dtype_, size_}; }

  Array as(DType dtype) const {
    Array other(dtype, size_);
    for (int64_t n = 0; n < count(); ++n) other.set(n, get(n));
    return other;
  }
  std::vector<double> values() const {
    std::vector<double> all(count());
    for (size_t n = 0; n < all.size(); ++n) all[n] = get(n);
    return all;
  }

  /// All ones: NaN in every floating type, so that what is never written shows.
  Array& fill_with_nan() {
    std::fill(bytes_.begin(), bytes_.end(), std::byte{0xff});
    return *this;
  }
  Array& fill(double value) {
    for (int64_t n = 0; n < count(); ++n) set(n, value);
    return *this;
  }
  Array& fill_normal(Random& random, double deviation = 1) {
    for (int64_t n = 0; n < count(); ++n) set(n, deviation * random.normal());
    return *this;
  }

 private:
  DType dtype_ = DType::float32;
  Shape<Rank> size_{};
  std::vector<std::byte> bytes_;
};

/// `count` indices of one axis of a view, from `first` on.
template <class Pointer, int Rank>
BasicView<Pointer, Rank> part_of(BasicView<Pointer, Rank> view, int axis, int64_t first, int64_t count) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const std::byte, std::byte>;
  view.data = static_cast<Byte*>(view.data) + first * view.stride[axis] * size_of(view.dtype);
  view.size[axis] = count;
  return view;
}

template <int Rank>
bool same_bits(const Array<Rank>& a, const Array<Rank>& b) {
  return a.dtype() == b.dtype() && a.size() == b.size() && a.bytes() == b.bytes();
}

// ---------------------------------------------------------------------------------------------------- instruction sets

/// What is forced by ATTN_ISA, otherwise all that this machine can run.
inline std::vector<std::string> isas_under_test() {
  if (const char* forced = std::getenv("ATTN_ISA")) return {forced};
  return available_isas();
}

/// Runs `body(isa)` with each instruction set in force, then brings the first back.
inline void for_each_isa(const std::function<void(const std::string&)>& body) {
  const std::string before = active_isa();
  for (const std::string& isa : isas_under_test()) {
    set_isa(isa);
    body(isa);
  }
  set_isa(before);
}

}  // namespace attn::test
