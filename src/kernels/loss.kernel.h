// Cross entropy: the sum of exponentials of a row of logits, and the gradient of its logarithm.
//
//   exp_sum       reference = max(x), sum = sum of exp(x - reference)
//   softmax_grad  y = factor exp(x - lse)
//
// exp_sum passes over memory once: a block of columns is read for its maximum, then from the first cache for its
// exponentials, and what was summed before is rescaled. A row of -infinity has reference 0 and sum 0. NaN gives a sum
// of NaN.
//
// Loops: rows, blocks of columns, vectors.
#pragma once

#include "kernels/columns.kernel.h"
#include "kernels/math.kernel.h"

namespace attn::kernels {
namespace {

template <class V>
inline typename V::T largest_of(const ConstRow& x, int64_t first, int64_t end) {
  using Reg = typename V::Reg;
  constexpr int kChains = 4;
  const Reg lowest = V::set1(-infinity<typename V::T>());
  Reg maximum[kChains];
  ATTN_UNROLL
  for (int chain = 0; chain < kChains; ++chain) maximum[chain] = lowest;
  int64_t j = first;
  for (; j + kChains * V::W <= end; j += kChains * V::W) {
    ATTN_UNROLL
    for (int chain = 0; chain < kChains; ++chain)
      maximum[chain] = V::max(maximum[chain], Whole<V>::load(x, j + chain * V::W));
  }
  for_columns<V>(
      j, end, [&](int64_t at, auto lanes) { maximum[0] = V::max(maximum[0], lanes.pick(lanes.load(x, at), lowest)); });
  return V::largest(V::max(V::max(maximum[0], maximum[1]), V::max(maximum[2], maximum[3])));
}

template <class V>
void exp_sum(const ExpSumArgs& args) {
  using T = typename V::T;
  using Reg = typename V::Reg;
  constexpr int64_t kBlock = 2048;
  const T lowest = -infinity<T>();
  for (int64_t r = 0; r < args.rows; ++r) {
    const ConstRow x = row_of(args.x, r);
    T maximum = lowest, reference = 0;
    Reg sum = V::zero();
    for (int64_t first = 0; first < args.columns; first += kBlock) {
      const int64_t end = first + kBlock < args.columns ? first + kBlock : args.columns;
      const T largest = largest_of<V>(x, first, end);
      if (!(largest <= maximum)) {
        sum = V::mul(sum, exp<V>(V::sub(V::set1(maximum), V::set1(largest))));
        maximum = reference = largest;
      }
      const Reg middle = V::set1(reference);
      Reg partial[2] = {V::zero(), V::zero()};  // a sum a block: errors do not grow with the row
      int64_t j = first;
      for (; j + 2 * V::W <= end; j += 2 * V::W) {
        partial[0] = V::add(partial[0], exp<V>(V::sub(Whole<V>::load(x, j), middle)));
        partial[1] = V::add(partial[1], exp<V>(V::sub(Whole<V>::load(x, j + V::W), middle)));
      }
      for_columns<V>(j, end, [&](int64_t at, auto lanes) {
        partial[0] = V::add(partial[0], lanes.pick(exp<V>(V::sub(lanes.load(x, at), middle)), V::zero()));
      });
      sum = V::add(sum, V::add(partial[0], partial[1]));
    }
    static_cast<T*>(args.reference)[r] = reference;
    static_cast<T*>(args.sum)[r] = V::sum(sum);
  }
}

template <class V>
void softmax_grad(const SoftmaxGradArgs& args) {
  const typename V::Reg factor = constant<V>(args.factor);
  for (int64_t r = 0; r < args.rows; ++r) {
    const ConstRow x = row_of(args.x, r);
    const Row y = row_of(args.y, r);
    const typename V::Reg lse = V::set1(static_cast<const typename V::T*>(args.lse)[r]);
    for_columns<V>(0, args.columns, [&](int64_t j, auto lanes) {
      lanes.store(y, j, V::mul(factor, exp<V>(V::sub(lanes.load(x, j), lse))));
    });
  }
}

}  // namespace
}  // namespace attn::kernels
