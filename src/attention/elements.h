// Single elements by run-time type, for the paths that are not hot.
#pragma once

#include "attn/core.h"

namespace attn::detail {

inline double load_element(DType dtype, const void* p) {
  switch (dtype) {
    case DType::float32: return *static_cast<const float*>(p);
    case DType::float64: return *static_cast<const double*>(p);
    case DType::bfloat16: return *static_cast<const bfloat16*>(p);
    default: return *static_cast<const float16*>(p);
  }
}

inline void store_element(DType dtype, void* p, double value) {
  switch (dtype) {
    case DType::float32: *static_cast<float*>(p) = static_cast<float>(value); break;
    case DType::float64: *static_cast<double*>(p) = value; break;
    case DType::bfloat16: *static_cast<bfloat16*>(p) = bfloat16(static_cast<float>(value)); break;
    default: *static_cast<float16*>(p) = float16(static_cast<float>(value)); break;
  }
}

}  // namespace attn::detail
