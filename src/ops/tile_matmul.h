// Products of float32 on matrix tiles, for matmul().
#pragma once

#include "attn/ops.h"

namespace attn::ops {

inline bool is_known(Float32Precision precision) { return precision <= Float32Precision::fast; }

/// True if this CPU has tiles and a product c = a b of float32, a [M, K], b [K, N], gains by them.
bool pays_on_tiles(int64_t M, int64_t N, int64_t K);
/// c = a b (+ bias), all float32, checked before; at least one term. Only where the active kernels have tiles.
void multiply_on_tiles(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options);

}  // namespace attn::ops
