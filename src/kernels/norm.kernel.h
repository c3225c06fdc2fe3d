// Layer norm (centred) and RMS norm, forward and backward, a row at a time.
//
//   norm       y = (x - mean) rstd weight + bias;  rstd = 1 / sqrt(mean((x - mean)^2) + epsilon);  RMS: mean = 0
//   norm_grad  n = (x - mean) rstd, g = dy weight:  dx = rstd (g - mean(g) - n mean(g n));  RMS: without mean(g)
//              dweight += sum over rows of dy n, dbias += sum over rows of dy, in order of the rows
// Loops: rows; a row is passed over two or three times while it is in the first cache.
// Requires: columns >= 1.
#pragma once

#include "kernels/columns.kernel.h"

namespace attn::kernels {
namespace {

template <class T>
inline T square_root(T x) {
  if constexpr (sizeof(T) == 4) return __builtin_sqrtf(x);
  else return __builtin_sqrt(x);
}

template <class V>
void norm(const NormArgs& args) {
  using T = typename V::T;
  using Reg = typename V::Reg;
  const T* weight = static_cast<const T*>(args.weight);
  const T* bias = static_cast<const T*>(args.bias);
  const T share = 1 / static_cast<T>(args.columns);
  for (int64_t r = 0; r < args.rows; ++r) {
    const ConstRow x = row_of(args.x, r);
    const Row y = row_of(args.y, r);
    T sums[1] = {0};
    if (args.centred) {
      fold_columns<V>(args.columns, sums,
                      [&](Reg* partial, int64_t j, auto lanes) { partial[0] = V::add(partial[0], lanes.load(x, j)); });
    }
    const T mean = sums[0] * share;
    const Reg middle = V::set1(mean);
    fold_columns<V>(args.columns, sums, [&](Reg* partial, int64_t j, auto lanes) {
      const Reg d = lanes.pick(V::sub(lanes.load(x, j), middle), V::zero());
      partial[0] = V::fma(d, d, partial[0]);
    });
    const T rstd = 1 / square_root(sums[0] * share + static_cast<T>(args.epsilon));
    if (args.mean) static_cast<T*>(args.mean)[r] = mean;
    if (args.rstd) static_cast<T*>(args.rstd)[r] = rstd;
    const Reg factor = V::set1(rstd);
    for_columns<V>(0, args.columns, [&](int64_t j, auto lanes) {
      const Reg n = V::mul(V::sub(lanes.load(x, j), middle), factor);
      const Reg scaled = V::mul(n, lanes.load(weight, j));
      lanes.store(y, j, bias ? V::add(scaled, lanes.load(bias, j)) : scaled);
    });
  }
}

template <class V>
void norm_grad(const NormGradArgs& args) {
  using T = typename V::T;
  using Reg = typename V::Reg;
  const T* weight = static_cast<const T*>(args.weight);
  T* dweight = static_cast<T*>(args.dweight);
  T* dbias = static_cast<T*>(args.dbias);
  const T share = 1 / static_cast<T>(args.columns);
  for (int64_t r = 0; r < args.rows; ++r) {
    const ConstRow x = row_of(args.x, r), dy = row_of(args.dy, r);
    const Row dx = row_of(args.dx, r);
    const Reg middle = args.centred ? V::set1(static_cast<const T*>(args.mean)[r]) : V::zero();
    const Reg rstd = V::set1(static_cast<const T*>(args.rstd)[r]);
    T sums[2];  // of g and of g n
    fold_columns<V>(args.columns, sums, [&](Reg* partial, int64_t j, auto lanes) {
      const Reg n = V::mul(V::sub(lanes.load(x, j), middle), rstd);
      const Reg g = V::mul(lanes.load(dy, j), lanes.load(weight, j));
      partial[0] = V::add(partial[0], g);
      partial[1] = V::fma(g, n, partial[1]);
    });
    const Reg mean_g = args.centred ? V::set1(sums[0] * share) : V::zero();
    const Reg mean_gn = V::set1(sums[1] * share);
    for_columns<V>(0, args.columns, [&](int64_t j, auto lanes) {
      const Reg n = V::mul(V::sub(lanes.load(x, j), middle), rstd);
      const Reg d = lanes.load(dy, j);
      const Reg g = V::sub(V::mul(d, lanes.load(weight, j)), mean_g);
      lanes.store(dweight, j, V::fma(d, n, lanes.load(dweight, j)));
      if (dbias) lanes.store(dbias, j, V::add(lanes.load(dbias, j), d));
      lanes.store(dx, j, V::mul(rstd, V::sub(g, V::mul(n, mean_gn))));
    });
  }
}

}  // namespace
}  // namespace attn::kernels
