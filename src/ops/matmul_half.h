// Products of types of 16 bits that the processor does not multiply, for matmul().
#pragma once

#include "attn/ops.h"

namespace attn::ops {

/// c = a b (+ bias), checked before: a and b of one type of 16 bits, c of it or float32, at least one term.
void multiply_half(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options);

}  // namespace attn::ops
