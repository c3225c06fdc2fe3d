// The conditions of check.h, and when two strided arrays share memory.
#include "ops/check.h"

#include <algorithm>

namespace attn::ops {
namespace {

template <size_t Rank>
std::string describe(DType dtype, const std::array<int64_t, Rank>& size) {
  return std::string(name_of(dtype)) + " " + to_string(size);
}

template <int Rank>
bool is_addressable(const ConstView<Rank>& x) {
  int64_t span = 0, bytes = 0;
  for (int axis = 0; axis < Rank; ++axis) {
    const int64_t steps = std::max<int64_t>(x.size[axis] - 1, 0);
    if (__builtin_mul_overflow(steps, x.stride[axis], &bytes)) return false;
    if (bytes < 0 ? __builtin_sub_overflow(span, bytes, &span) : __builtin_add_overflow(span, bytes, &span))
      return false;
  }
  return !__builtin_mul_overflow(span, int64_t{8}, &bytes);
}

template <int Rank>
bool require_form(Checker& checker, const std::string& name, const ConstView<Rank>& x, DType dtype,
                  const Shape<Rank>& size) {
  const bool natural = std::all_of(x.size.begin(), x.size.end(), [](int64_t n) { return n >= 0; });
  checker.require(natural, [&] { return name + " has the negative size " + to_string(x.size); });
  const bool fits = x.dtype == dtype && x.size == size;
  checker.require(fits,
                  [&] { return name + " is " + describe(x.dtype, x.size) + ", must be " + describe(dtype, size); });
  if (!natural || !fits || x.empty()) return false;
  checker.require(x.data != nullptr, [&] { return name + " has no data"; });
  checker.require(x.stride[Rank - 1] == 1 || x.size[Rank - 1] == 1,
                  [&] { return name + " has last stride " + std::to_string(x.stride[Rank - 1]) + ", must be 1"; });
  return checker.require(is_addressable<Rank>(x), [&] { return name + " has strides beyond 64-bit offsets"; });
}

/// Bytes from the first element in memory to the end of the last.
struct AddressRange {
  intptr_t begin, end;
};

AddressRange range_of(const ConstView<2>& x) {
  const intptr_t first = reinterpret_cast<intptr_t>(x.data), span = (x.size[0] - 1) * x.stride[0] * size_of(x.dtype);
  return {first + std::min<intptr_t>(span, 0), first + std::max<intptr_t>(span, 0) + x.size[1] * size_of(x.dtype)};
}

bool is_same(const ConstView<2>& a, const ConstView<2>& b) {
  return a.data == b.data && a.dtype == b.dtype && (a.stride[0] == b.stride[0] || a.size[0] <= 1);
}

/// Equal row strides are side by side if the columns do; other arrays must not even be entangled.
bool are_apart(const ConstView<2>& a, const ConstView<2>& b) {
  if (a.empty() || b.empty()) return true;
  const AddressRange in_a = range_of(a), in_b = range_of(b);
  if (in_a.end <= in_b.begin || in_b.end <= in_a.begin) return true;
  const int64_t stride = std::abs(a.stride[0] * size_of(a.dtype));
  if (stride == 0 || a.stride[0] * size_of(a.dtype) != b.stride[0] * size_of(b.dtype)) return false;
  const int64_t offset = ((in_b.begin - in_a.begin) % stride + stride) % stride;
  return offset >= a.size[1] * size_of(a.dtype) && offset + b.size[1] * size_of(b.dtype) <= stride;
}

}  // namespace

void require_function(Checker& checker, Activation f) {
  checker.require(f >= Activation::relu && f <= Activation::tanh, [&] {
    return "unknown activation " + std::to_string(static_cast<int>(f)) +
           "; known are: relu, gelu, gelu_tanh, silu, tanh";
  });
}

void require_input(Checker& checker, const char* name, const ConstView<2>& x, DType dtype, const Shape<2>& size) {
  require_form<2>(checker, name, x, dtype, size);
}

void require_factor(Checker& checker, const char* name, const ConstView<2>& x) {
  checker.require(x.size[0] >= 0 && x.size[1] >= 0,
                  [&] { return std::string(name) + " has the negative size " + to_string(x.size); });
  checker.require(x.data || x.empty(), [&] { return std::string(name) + " has no data"; });
  const auto lies_along = [&](int unit) {
    const int other = 1 - unit;
    return (x.stride[unit] == 1 || x.size[unit] <= 1) && (x.size[other] <= 1 || x.stride[other] >= x.size[unit]);
  };
  checker.require((lies_along(0) || lies_along(1)) && is_addressable<2>(x), [&] {
    return std::string(name) + " has strides " + to_string(x.stride) + " for size " + to_string(x.size) +
           ", must be 1 along one axis, and along the other at least that axis's extent";
  });
}

void require_output(Checker& checker, const char* name, const ConstView<2>& y, DType dtype, const Shape<2>& size) {
  if (!require_form<2>(checker, name, y, dtype, size)) return;
  checker.require(y.size[0] == 1 || std::abs(y.stride[0]) >= y.size[1], [&] {
    return std::string(name) + " has row stride " + std::to_string(y.stride[0]) + ", its rows of " +
           std::to_string(y.size[1]) + " overlap";
  });
}

void require_vector(Checker& checker, const char* name, const ConstView<1>& x, DType dtype, int64_t size) {
  require_form<1>(checker, name, x, dtype, {size});
}

ConstView<2> as_row(const ConstView<1>& x) { return {x.data, x.dtype, {1, x.size[0]}, {x.size[0], 1}}; }

void require_apart(Checker& checker, const char* name, const ConstView<2>& y, const char* other_name,
                   const ConstView<2>& other, Sharing allowed) {
  if (!checker.ok()) return;  // ranges mean nothing where shapes are wrong
  checker.require((allowed == Sharing::same && is_same(y, other)) || are_apart(y, other), [&] {
    return std::string(name) + " overlaps " + other_name + (allowed == Sharing::same ? " without being the same" : "");
  });
}

}  // namespace attn::ops
