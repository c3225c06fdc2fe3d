// Products of few rows with rows of weights, y = x W^T, for matmul(): what writing a text token by token consists of.
#pragma once

#include "attn/ops.h"

namespace attn::ops {

/// A product of more rows goes another way.
constexpr int64_t kMostMatvecRows = 8;

/// True for rows that are dense, a [M, K], and a transposed matrix of dense rows, b [K, N], as in linear().
inline bool lies_for_matvec(const ConstView<2>& a, const ConstView<2>& b) {
  return a.stride[1] == 1 && b.stride[0] == 1;
}
/// True for a product of few rows of float32 or 16 bits.
inline bool is_matvec(const ConstView<2>& a, const ConstView<2>& b) {
  return a.dtype != DType::float64 && a.size[0] <= kMostMatvecRows && lies_for_matvec(a, b);
}
/// c = f(a b (+ bias) (+ addend)), checked before; at least one term. More rows are taken as few at a time. An
/// element's bits depend on its row of a, its column of b and K alone.
void multiply_few_rows(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options);

}  // namespace attn::ops
