// What every operation asks of its arguments.
#pragma once

#include <string>

#include "attn/ops.h"
#include "core/checker.h"

namespace attn::ops {

/// The type of parameters and statistics beside arrays of type `dtype`.
inline DType parameter_type(DType dtype) { return dtype == DType::float64 ? DType::float64 : DType::float32; }

inline void require_type(Checker& checker, const char* name, DType dtype) {
  checker.require(is_floating(dtype), [&] {
    return std::string(name) + " is " + std::string(name_of(dtype)) + ", must be float32, float64, bfloat16 or float16";
  });
}

void require_function(Checker& checker, Activation f);
/// A matrix that is read: of this type and shape, last stride 1, any row stride.
void require_input(Checker& checker, const char* name, const ConstView<2>& x, DType dtype, const Shape<2>& size);
/// A matrix that is multiplied: dense along one of its axes.
void require_factor(Checker& checker, const char* name, const ConstView<2>& x);
/// A matrix that is written: no two rows overlap either.
void require_output(Checker& checker, const char* name, const ConstView<2>& y, DType dtype, const Shape<2>& size);
/// A dense vector.
void require_vector(Checker& checker, const char* name, const ConstView<1>& x, DType dtype, int64_t size);

ConstView<2> as_row(const ConstView<1>& x);

enum class Sharing { none, same };
/// What is written shares no element with what is read; `same`: or is the same array.
void require_apart(Checker& checker, const char* name, const ConstView<2>& y, const char* other_name,
                   const ConstView<2>& other, Sharing allowed);

}  // namespace attn::ops
