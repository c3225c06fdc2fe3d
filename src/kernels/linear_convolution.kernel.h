// The convolution along the tokens, and what its gradients need of the activation.
//
//   convolve        y_r = act(bias + sum_j weight_j tap(r, j))
//   convolve_grad   dz_r = act'(z_r) dy_r, and the sums over rows of dz_r tap(r, j) and of dz_r
// The gradient of x is a convolve() of dz. Loops: groups of rows, vectors of columns, taps. A vector of a weight is
// loaded once for the rows of a group; so is a tap where there are four, as in most models, and rows share them. An
// element's arithmetic, and the order of its sums, are the same in any group.
// Requires: what linear_table.h says.
#pragma once

#include "kernels/activation.kernel.h"
#include "kernels/columns.kernel.h"
#include "kernels/linear_table.h"

namespace attn::kernels {
namespace {

constexpr int kConvolvedRows = 4;  // rows of a group: one chain of additions each
constexpr int kUsualTaps = 4;

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

/// Rows r .. r + kRows - 1 of a convolution. kTaps > 0: so many taps, tap j of row k is tap 0 of row k + j.
template <class V, int kType, int kRows, int kTaps>
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
  /// body(k, j, x) for tap j of row k; for a row by rising j, for a tap by rising k.
  template <class Lanes, class Body>
  __attribute__((always_inline)) void for_taps(int64_t column, Lanes lanes, const Body& body) const {
    ATTN_UNROLL
    for (int n = 0; n < kRows + kTaps - 1; ++n) {
      const Reg x = lanes.load(ConstRow{taps[n], kType}, column);
      ATTN_UNROLL
      for (int k = 0; k < kRows; ++k)
        if (n - k >= 0 && n - k < kTaps) body(k, n - k, x);
    }
  }
  /// What the activation takes.
  template <class Lanes>
  __attribute__((always_inline)) void sum(int64_t column, Lanes lanes, Reg (&z)[kRows]) const {
    const Reg bias = args.bias ? V::load(static_cast<const T*>(args.bias) + column) : V::zero();
    ATTN_UNROLL
    for (int k = 0; k < kRows; ++k) z[k] = bias;
    const T* weight = static_cast<const T*>(args.weight.data) + column;
    if constexpr (kTaps > 0) {
      Reg w[kTaps];
      ATTN_UNROLL
      for (int j = 0; j < kTaps; ++j) w[j] = V::load(weight + j * args.weight.row);
      for_taps(column, lanes, [&](int k, int j, Reg x) { z[k] = V::fma(w[j], x, z[k]); });
      return;
    }
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
    if (args.taps == kUsualTaps && args.x.step == 1)
      for (; r + kConvolvedRows <= args.rows; r += kConvolvedRows)
        body(ConvolvedRows<V, kType, kConvolvedRows, kUsualTaps>(args, r), r);
    for (; r + kConvolvedRows <= args.rows; r += kConvolvedRows)
      body(ConvolvedRows<V, kType, kConvolvedRows, 0>(args, r), r);
    for (; r < args.rows; ++r) body(ConvolvedRows<V, kType, 1, 0>(args, r), r);
  });
}

template <class V, int kType, int kRows, int kTaps>
void convolve_rows(const ConvolvedRows<V, kType, kRows, kTaps>& rows, int64_t r) {
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

template <class V, int kType, int kRows, int kTaps>
void convolve_grad_rows(const ConvolveGradArgs& grad, const ConvolvedRows<V, kType, kRows, kTaps>& rows, int64_t r) {
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
    if constexpr (kTaps > 0) {
      Reg of_tap[kTaps];
      ATTN_UNROLL
      for (int j = 0; j < kTaps; ++j) of_tap[j] = V::load(sums + j * grad.sums.row);
      rows.for_taps(c, lanes, [&](int k, int j, Reg x) { of_tap[j] = V::fma(d[k], x, of_tap[j]); });
      ATTN_UNROLL
      for (int j = 0; j < kTaps; ++j, sums += grad.sums.row) V::store(sums, of_tap[j]);
    } else {
      for (int64_t j = 0; j < args.taps; ++j, sums += grad.sums.row) {
        Reg sum = V::load(sums);
        ATTN_UNROLL
        for (int k = 0; k < kRows; ++k) sum = V::fma(d[k], rows.tap(k, j, c, lanes), sum);
        V::store(sums, sum);
      }
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
