// Products of few rows with rows of weights, y = x W^T, for matmul(): what writing a text token by token consists of.
#pragma once

#include "attn/ops.h"

namespace attn::ops {

/// A product of more rows goes another way.
constexpr int64_t kMostMatvecRows = 8;

/// True for a product of float32 or 16 bits whose rows lie dense, a [M, K], and whose b [K, N] is a transposed matrix
/// of dense rows, as in linear().
inline bool is_matvec(const ConstView<2>& a, const ConstView<2>& b) {
  return a.dtype != DType::float64 && a.size[0] <= kMostMatvecRows && a.stride[1] == 1 && b.stride[0] == 1;
}
/// c = a b (+ bias) (+ c), checked before; at least one term. An element's bits depend on its row of a, its column of b
/// and K alone.
void multiply_few_rows(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options);

}  // namespace attn::ops
