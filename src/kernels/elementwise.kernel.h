// Sums, copies and updates that read every element once.
//
//   add             y = a + b, each of its own type
//   scale           y = factor x, from any type to any type: conversion where factor is 1
//   add_rows        total[c] += x[0][c] + x[1][c] + ..., columns in registers, rows in order
//   sum_of_squares  in double, whatever x is: every W-th column of a row has a partial sum that goes through all rows
//   adam            g' = gradient_factor g;  p = keep p;  m += (1 - beta1) (g' - m);  v = beta2 v + (1 - beta2) g'^2;
//                   p -= step m / (root_scale sqrt(v) + epsilon)
// Loops: rows, vectors of columns.
#pragma once

#include "kernels/columns.kernel.h"
#include "kernels/math.kernel.h"

namespace attn::kernels {
namespace {

template <class V>
void add(const AddArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const ConstRow a = row_of(args.a, r), b = row_of(args.b, r);
    const Row y = row_of(args.y, r);
    for_columns<V>(0, args.columns,
                   [&](int64_t j, auto lanes) { lanes.store(y, j, V::add(lanes.load(a, j), lanes.load(b, j))); });
  }
}

template <class V>
void scale(const ScaleArgs& args) {
  using T = typename V::T;
  const bool vectors = has_vector_access<V>(args.x.type) && has_vector_access<V>(args.y.type);
  for (int64_t r = 0; r < args.rows; ++r) {
    const ConstRow x = row_of(args.x, r);
    const Row y = row_of(args.y, r);
    if (vectors) {
      const typename V::Reg factor = constant<V>(args.factor);
      for_columns<V>(0, args.columns,
                     [&](int64_t j, auto lanes) { lanes.store(y, j, V::mul(factor, lanes.load(x, j))); });
    } else {
      for (int64_t j = 0; j < args.columns; ++j)
        store_element<T>(y.type, y.data, j, static_cast<T>(args.factor) * load_element<T>(x.type, x.data, j));
    }
  }
}

template <class V>
void add_rows(const AddRowsArgs& args) {
  using T = typename V::T;
  using Reg = typename V::Reg;
  constexpr int kBlock = 4;
  T* total = static_cast<T*>(args.total);
  int64_t j = 0;
  for (; j + kBlock * V::W <= args.columns; j += kBlock * V::W) {
    Reg sum[kBlock];
    ATTN_UNROLL
    for (int v = 0; v < kBlock; ++v) sum[v] = V::zero();
    for (int64_t r = 0; r < args.rows; ++r) {
      const ConstRow x = row_of(args.x, r);
      ATTN_UNROLL
      for (int v = 0; v < kBlock; ++v) sum[v] = V::add(sum[v], Whole<V>::load(x, j + v * V::W));
    }
    ATTN_UNROLL
    for (int v = 0; v < kBlock; ++v) V::storeu(total + j + v * V::W, V::add(V::loadu(total + j + v * V::W), sum[v]));
  }
  for_columns<V>(j, args.columns, [&](int64_t at, auto lanes) {
    Reg sum = V::zero();
    for (int64_t r = 0; r < args.rows; ++r) sum = V::add(sum, lanes.load(row_of(args.x, r), at));
    lanes.store(total, at, V::add(lanes.load(total, at), sum));
  });
}

template <class V>
double sum_of_squares(const SumArgs& args) {
  using Reg = typename V::Reg;
  constexpr int kChains = 4;
  Reg sum[kChains];
  ATTN_UNROLL
  for (int v = 0; v < kChains; ++v) sum[v] = V::zero();
  double rest = 0;
  for (int64_t r = 0; r < args.rows; ++r) {
    const ConstRow x = row_of(args.x, r);
    int64_t j = 0;
    for (; j + kChains * V::W <= args.columns; j += kChains * V::W) {
      ATTN_UNROLL
      for (int v = 0; v < kChains; ++v) {
        const Reg a = load_as_double<V>(x.type, x.data, j + v * V::W);
        sum[v] = V::fma(a, a, sum[v]);
      }
    }
    for (; j < args.columns; ++j) {
      const double a = load_element<double>(x.type, x.data, j);
      rest += a * a;
    }
  }
  return V::sum(V::add(V::add(sum[0], sum[1]), V::add(sum[2], sum[3]))) + rest;
}

template <class V>
void adam(const AdamArgs& args) {
  using Reg = typename V::Reg;
  const Reg gradient_factor = constant<V>(args.gradient_factor), keep = constant<V>(args.keep);
  const Reg gain1 = constant<V>(1 - args.beta1), beta2 = constant<V>(args.beta2), gain2 = constant<V>(1 - args.beta2);
  const Reg step = constant<V>(args.step), root_scale = constant<V>(args.root_scale);
  const Reg epsilon = constant<V>(args.epsilon);
  for (int64_t r = 0; r < args.rows; ++r) {
    const Row p_row = row_of(args.parameter, r), m_row = row_of(args.first, r), v_row = row_of(args.second, r);
    const ConstRow g_row = row_of(args.gradient, r);
    using T = typename V::T;
    T *p = static_cast<T*>(p_row.data), *m = static_cast<T*>(m_row.data), *v = static_cast<T*>(v_row.data);
    const T* gradient = static_cast<const T*>(g_row.data);
    const Row copy = row_of(args.copy, r);
    for_columns<V>(0, args.columns, [&](int64_t j, auto lanes) {
      const Reg g = V::mul(gradient_factor, lanes.load(gradient, j));
      const Reg old = lanes.load(m, j);
      const Reg first = V::fma(gain1, V::sub(g, old), old);
      const Reg second = V::fma(V::mul(gain2, g), g, V::mul(beta2, lanes.load(v, j)));
      const Reg root = V::fma(root_scale, V::sqrt(second), epsilon);
      const Reg kept = V::mul(keep, lanes.load(p, j));
      lanes.store(m, j, first);
      lanes.store(v, j, second);
      const Reg updated = V::sub(kept, V::mul(step, V::div(first, root)));
      lanes.store(p, j, updated);
      if (copy.data) lanes.store(copy, j, updated);
    });
  }
}

}  // namespace
}  // namespace attn::kernels
