// Whether the results of a call share memory with each other or with its arguments.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>

#include "core/checker.h"

namespace attn::detail {

/// A block of memory that a call writes or reads, for the overlap test.
struct Region {
  const char* name;
  const void* data;
  DType dtype;
  int rank;
  std::array<int64_t, 4> size = {}, stride = {};  // the first `rank`
};
template <class Pointer, int Rank>
Region region(const char* name, const BasicView<Pointer, Rank>& view) {
  Region r{name, view.data, view.dtype, Rank};
  std::copy(view.size.begin(), view.size.end(), r.size.begin());
  std::copy(view.stride.begin(), view.stride.end(), r.stride.begin());
  return r;
}
/// Every output is distinct from itself, from the other outputs and from the inputs.
void check_overlap(Checker& checker, std::initializer_list<Region> outputs, std::initializer_list<Region> inputs);

}  // namespace attn::detail
