// Named arrays as files hold them: the state that Parameters and AdamW save and load.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "attn/core.h"
#include "attn/nn_parameters.h"

namespace attn::nn {

using NamedArrays = std::vector<std::pair<std::string, Array>>;

/// Borrowed from the arrays.
inline std::vector<io::NamedTensor> tensors_of(const NamedArrays& arrays) {
  std::vector<io::NamedTensor> all;
  for (const auto& [name, array] : arrays) all.push_back({name, array.dtype(), array.shape(), array.data()});
  return all;
}

/// Copies the file's tensors of these names into the arrays, or, of those of `parameters`, their slices. Throws Error,
/// before it copies, with all that are missing or of another type or shape.
inline void load_into(const NamedArrays& arrays, const io::Safetensors& file,
                      const std::deque<Parameter>* parameters = nullptr) {
  std::vector<std::string> reasons;
  const auto whole_shape = [&](size_t n) {
    return parameters ? (*parameters)[n].whole_shape : arrays[n].second.shape();
  };
  for (size_t n = 0; n < arrays.size(); ++n) {
    try {
      file.require(arrays[n].first, arrays[n].second.dtype(), whole_shape(n));
    } catch (const Error& error) {
      reasons.insert(reasons.end(), error.reasons().begin(), error.reasons().end());
    }
  }
  if (!reasons.empty()) throw Error("load", std::move(reasons));
  for (size_t n = 0; n < arrays.size(); ++n) {
    const auto& [name, array] = arrays[n];
    if (!parameters || (*parameters)[n].slice.ranges.empty()) {
      file.copy(name, array.dtype(), array.shape(), array.data());
      continue;
    }
    const Array whole(array.dtype(), whole_shape(n), false);
    file.copy(name, whole.dtype(), whole.shape(), whole.data());
    const Array part = slice_of(whole, (*parameters)[n].slice);
    std::memcpy(array.data(), part.data(), static_cast<size_t>(part.count() * size_of(part.dtype())));
  }
}

}  // namespace attn::nn
