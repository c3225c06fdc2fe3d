// recorded: what a forward call leaves after, (q, k, lse, options), as layers of heads and view have it.
#pragma once

#include <string>

#include "attn/attention.h"
#include "core/checker.h"

namespace attn::detail {

/// All that attention_weights() says of an empty rectangle: it checks everything and computes nothing.
template <class Layer>
void check_recorded(Checker& checker, const std::string& name, const Layer& layer) {
  const DType dtype = layer.q.dtype == DType::float64 ? DType::float64 : DType::float32;
  try {
    attention_weights(layer.q, layer.k, layer.lse, View<4>(nullptr, dtype, {layer.q.size[0], layer.q.size[1], 0, 0}), 0,
                      0, layer.options);
  } catch (const Error& error) {
    for (const std::string& reason : error.reasons()) checker.require(false, name + ": " + reason);
  }
}

}  // namespace attn::detail
