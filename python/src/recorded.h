// Recorded attention as Python passes it: (q, k, lse, options).
#pragma once

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "arguments.h"
#include "attn/record.h"

namespace bindings {

using GivenLayer = std::tuple<nb::object, nb::object, nb::object, nb::object>;

inline std::vector<attn::RecordedAttention> layers_of(Arguments& in, const std::vector<GivenLayer>& given) {
  std::vector<attn::RecordedAttention> layers;
  for (const auto& [q, k, lse, options] : given)
    layers.push_back({{}, in.input<4>("q", q), in.input<4>("k", k), in.input<3>("lse", lse), in.options(options)});
  return layers;
}

}  // namespace bindings
