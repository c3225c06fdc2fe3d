// c_tensors: arrays of the tests as the C interface takes them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "arrays.h"
#include "attn/c.h"

namespace attn::test {

template <int Rank>
attn_tensor tensor(Array<Rank>& array) {
  const View<Rank> view = array.view();
  attn_tensor t{view.data, static_cast<int32_t>(view.dtype), Rank, {}, {}};
  std::copy_n(view.size.begin(), Rank, t.size);
  std::copy_n(view.stride.begin(), Rank, t.stride);
  return t;
}

inline attn_int64s list(const std::vector<int64_t>& values) {
  return {values.data(), static_cast<int64_t>(values.size())};
}
inline attn_floats list(const std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size())};
}

inline attn_options defaults() {
  attn_options options{};
  options.struct_size = sizeof options;
  return options;
}

}  // namespace attn::test
