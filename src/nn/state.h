// Named arrays as files hold them: the state that Parameters and AdamW save and load.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "attn/core.h"
#include "attn/io.h"

namespace attn::nn {

using NamedArrays = std::vector<std::pair<std::string, Array>>;

/// Borrowed from the arrays.
inline std::vector<io::NamedTensor> tensors_of(const NamedArrays& arrays) {
  std::vector<io::NamedTensor> all;
  for (const auto& [name, array] : arrays) all.push_back({name, array.dtype(), array.shape(), array.data()});
  return all;
}

/// Copies the file's tensors of these names into the arrays. Throws Error, before it copies, with all that are missing
/// or of another type or shape.
inline void load_into(const NamedArrays& arrays, const io::Safetensors& file) {
  std::vector<std::string> reasons;
  for (const auto& [name, array] : arrays) {
    try {
      file.require(name, array.dtype(), array.shape());
    } catch (const Error& error) {
      reasons.insert(reasons.end(), error.reasons().begin(), error.reasons().end());
    }
  }
  if (!reasons.empty()) throw Error("load", std::move(reasons));
  for (const auto& [name, array] : arrays) file.copy(name, array.dtype(), array.shape(), array.data());
}

}  // namespace attn::nn
