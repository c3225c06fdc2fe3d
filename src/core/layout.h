// Strided memory: where its elements are must be something that 64 bits can say.
#pragma once

#include <string>

#include "core/checker.h"

namespace attn::detail {

/// Checks that sizes are not negative and every element is addressable with 64-bit offsets.
inline bool check_layout(Checker& checker, const char* name, const int64_t* size, const int64_t* stride, int rank,
                         int64_t element) {
  int64_t low = 0, high = 0;
  for (int axis = 0; axis < rank; ++axis) {
    if (!checker.require(size[axis] >= 0,
                         [&] { return std::string(name) + " has a negative size: " + to_string(size, rank); }))
      return false;
  }
  for (int axis = 0; axis < rank; ++axis) {
    int64_t span = 0;
    if (size[axis] == 0) return true;
    const bool overflow = __builtin_mul_overflow(size[axis] - 1, stride[axis], &span) ||
                          __builtin_mul_overflow(span, element, &span) ||
                          __builtin_add_overflow(span < 0 ? low : high, span, span < 0 ? &low : &high);
    if (!checker.require(!overflow, [&] { return std::string(name) + " has strides beyond 64-bit offsets"; }))
      return false;
  }
  return true;
}
template <class Pointer, int Rank>
bool check_layout(Checker& checker, const char* name, const BasicView<Pointer, Rank>& view) {
  return check_layout(checker, name, view.size.data(), view.stride.data(), Rank, size_of(view.dtype));
}

}  // namespace attn::detail
