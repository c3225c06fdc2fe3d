// The convolution along the tokens, and what its gradients need of the activation.
//
//   convolve        y_r = act(bias + sum_j weight_j tap(r, j))
//   convolve_grad   dz_r = act'(z_r) dy_r, and the sums over rows of dz_r tap(r, j) and of dz_r
// The gradient of x is a convolve() of dz. Loops: groups of rows, vectors of columns, taps; a vector of a weight is
// loaded once for the rows of a group. An element's arithmetic, and the order of its sums, are the same in any group.
// Requires: what linear_table.h says.
#pragma once

#include "kernels/activation.kernel.h"
#include "kernels/columns.kernel.h"
#include "kernels/linear_table.h"

namespace attn::kernels {
namespace {

constexpr int kConvolvedRows = 4;  // rows of a group: one chain of additions each

/// body(TypeTag<type>{}) for the types that vectors of V are loaded from.
template <class V, class Body>
inline void with_vector_type(int type, const Body& body) {
  if constexpr (sizeof(typename V::T) == 8) {
    body(TypeTag<kFloat64>{});
  } else {
    if (type == kFloat32) body(TypeTag<kFloat32>{});
    else if (type == kBfloat16) body(TypeTag<kBfloat16>{});
    else body(TypeTag<kFloat16>{});
  }
}

/// Rows r .. r + kRows - 1 of a convolution.
template <class V, int kType, int kRows>
struct ConvolvedRows {
  using T = typename V::T;
  using Reg = typename V::Reg;
  const ConvolveArgs& args;
  const void* const* taps;  // of row r

  ConvolvedRows(const ConvolveArgs& a, int64_t r) : args(a), taps(a.x.row + r * a.x.step) {}

  template <class Lanes>
  Reg tap(int64_t k, int64_t j, int64_t column, Lanes lanes) const {
    return lanes.load(ConstRow{taps[k * args.x.step + j], kType}, column);
  }
  /// What the activation takes.
  template <class Lanes>
  __attribute__((always_inline)) void sum(int64_t column, Lanes lanes, Reg (&z)[kRows]) const {
    const Reg bias = args.bias ? V::load(static_cast<const T*>(args.bias) + column) : V::zero();
    ATTN_UNROLL
    for (int k = 0; k < kRows; ++k) z[k] = bias;
    const T* weight = static_cast<const T*>(args.weight.data) + column;
    for (int64_t j = 0; j < args.taps; ++j, weight += args.weight.row) {
      const Reg w = V::load(weight);
      ATTN_UNROLL
      for (int k = 0; k < kRows; ++k) z[k] = V::fma(w, tap(k, j, column, lanes), z[k]);
    }
  }
};

/// body(rows, r) for every group of rows.
template <class V, class Body>
inline void for_convolved_rows(const ConvolveArgs& args, const Body& body) {
  with_vector_type<V>(args.x.type, [&](auto type) {
    constexpr int kType = decltype(type)::kElement;
    int64_t r = 0;
    for (; r + kConvolvedRows <= args.rows; r += kConvolvedRows)
      body(ConvolvedRows<V, kType, kConvolvedRows>(args, r), r);
    for (; r < args.rows; ++r) body(ConvolvedRows<V, kType, 1>(args, r), r);
  });
}

template <class V, int kType, int kRows>
void convolve_rows(const ConvolvedRows<V, kType, kRows>& rows, int64_t r) {
  using Reg = typename V::Reg;
  const ConvolveArgs& args = rows.args;
  char* y = static_cast<char*>(args.y) + stored_bytes(args.y_type, r * args.y_row);
  const int64_t y_bytes = stored_bytes(args.y_type, args.y_row);
  for_columns<V>(0, args.columns, [&](int64_t c, auto lanes) {
    Reg z[kRows];
    rows.sum(c, lanes, z);
    if (args.silu) {
      ATTN_UNROLL
      for (int k = 0; k < kRows; ++k) z[k] = Silu<V>::value(z[k]);
    }
    ATTN_UNROLL
    for (int k = 0; k < kRows; ++k) lanes.store(Row{y + k * y_bytes, args.y_type}, c, z[k]);
  });
}

template <class V>
void convolve(const ConvolveArgs& args) {
  for_convolved_rows<V>(args, [](const auto& rows, int64_t r) { convolve_rows(rows, r); });
}

template <class V, int kType, int kRows>
void convolve_grad_rows(const ConvolveGradArgs& grad, const ConvolvedRows<V, kType, kRows>& rows, int64_t r) {
  using T = typename V::T;
  using Reg = typename V::Reg;
  const ConvolveArgs& args = rows.args;
  T* dz = static_cast<T*>(grad.dz.data) + r * grad.dz.row;
  for_columns<V>(0, args.columns, [&](int64_t c, auto lanes) {
    Reg z[kRows], d[kRows];
    if (args.silu) rows.sum(c, lanes, z);
    ATTN_UNROLL
    for (int k = 0; k < kRows; ++k) {
      d[k] = lanes.load(ConstRow{grad.dy[r + k], grad.dy_type}, c);
      if (args.silu) {
        Reg slope;
        Silu<V>::value(z[k], slope);
        d[k] = V::mul(d[k], slope);
      }
      V::store(dz + k * grad.dz.row + c, d[k]);
    }
    if (!grad.sums.data) return;
    T* sums = static_cast<T*>(grad.sums.data) + c;
    for (int64_t j = 0; j < args.taps; ++j, sums += grad.sums.row) {
      Reg sum = V::load(sums);
      ATTN_UNROLL
      for (int k = 0; k < kRows; ++k) sum = V::fma(d[k], rows.tap(k, j, c, lanes), sum);
      V::store(sums, sum);
    }
    Reg sum = V::load(sums);
    ATTN_UNROLL
    for (int k = 0; k < kRows; ++k) sum = V::add(sum, d[k]);
    V::store(sums, sum);
  });
}

template <class V>
void convolve_grad(const ConvolveGradArgs& grad) {
  for_convolved_rows<V>(grad.forward, [&](const auto& rows, int64_t r) { convolve_grad_rows(grad, rows, r); });
}

}  // namespace
}  // namespace attn::kernels
