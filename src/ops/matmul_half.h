// Products of float16, for matmul().
#pragma once

#include "attn/ops.h"

namespace attn::ops {

/// c = a b (+ bias), checked before: a and b float16, c float16 or float32, at least one term.
void multiply_float16(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options);

}  // namespace attn::ops
