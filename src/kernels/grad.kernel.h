// The element-wise part of the backward pass on one tile, [key][width], rows in lanes.
//
//   probabilities   P = 2^(s - lse)
//   grad            dP' = dP keep keep_scale;  dS = P (dP' - delta);  P' = P keep keep_scale;  dS_qk = dS factor
// `grad` writes dS back over dP (for dbias), P' and dS_qk in the formats that the matrix products want.
// Loops: keys outermost. A masked pair gives exactly 0, whatever dP holds there.
#pragma once

#include "kernels/softmax.kernel.h"

namespace attn::kernels {
namespace {

template <class V>
struct Probabilities {
  const SoftmaxArgs& args;
  template <int NV>
  void run() const {
    using T = typename V::T;
    const T* scores = static_cast<const T*>(args.scores);
    T* weights = static_cast<T*>(args.weights);
    const typename V::Reg masked = V::set1(-infinity<T>());
    typename V::Reg lse[NV];
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) lse[v] = V::load(static_cast<const T*>(args.reference) + v * V::W);
    for (int64_t at = 0; at < args.count * NV * V::W; at += NV * V::W) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) {
        const typename V::Reg s = V::load(scores + at + v * V::W);
        const typename V::Reg p = V::exp2(V::sub(s, lse[v]));  // NaN lse: only where the row may look
        V::store(weights + at + v * V::W, V::select(V::equal(s, masked), V::zero(), p));
      }
    }
  }
};

template <class V>
void probabilities(const SoftmaxArgs& args) {
  for_width<V::W>(args.width, Probabilities<V>{args});
}

/// Outer format of a weight: acc for FmaDot.
template <class Dot>
struct OuterFormat;

template <class V>
struct OuterFormat<FmaDot<V>> {
  static constexpr bool kSeparate = false;  // the weight format serves `outer` as well
  using Weight = typename V::T;
  static void store(Weight* weights, typename V::Reg value) { V::store(weights, value); }
};

template <class Dot>
struct Grad {
  using V = typename Dot::Acc;
  using T = typename V::T;
  using Reg = typename V::Reg;
  using Format = WeightFormat<Dot>;
  using Outer = OuterFormat<Dot>;
  const GradArgs& args;

  template <int NV>
  void run() const {
    constexpr int kWidth = NV * V::W;
    Reg delta[NV];
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) delta[v] = V::load(static_cast<const T*>(args.delta) + v * V::W);
    auto* ds_values = static_cast<typename Format::Weight*>(args.ds_values);
    int64_t key = 0;
    for (; key + 2 <= args.count; key += 2) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) {
        const Reg even = one(key, v, kWidth, delta[v]);
        const Reg odd = one(key + 1, v, kWidth, delta[v]);
        Format::store(ds_values, key, kWidth, v * V::W, even, odd);
      }
    }
    if (key < args.count) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) Format::store_last(ds_values, key, kWidth, v * V::W, one(key, v, kWidth, delta[v]));
    }
  }

  inline __attribute__((always_inline)) Reg one(int64_t key, int v, int width, Reg delta) const {
    const int64_t at = key * width + v * V::W;
    const Reg p = V::load(static_cast<const T*>(args.weights) + at);
    T* grad = static_cast<T*>(args.grad) + at;
    Reg dp = V::load(grad), dropped = p;
    if (args.keep) {
      const typename V::Mask keep = lane_mask<V>(args.keep[key], v);
      const Reg scale = V::set1(static_cast<T>(args.keep_scale));
      dp = V::select(keep, V::mul(dp, scale), V::zero());
      dropped = V::select(keep, V::mul(p, scale), V::zero());
    }
    Reg ds = V::mul(p, V::sub(dp, delta));
    if (args.allowed) ds = V::select(lane_mask<V>(args.allowed[key], v), ds, V::zero());
    V::store(grad, ds);
    if (args.factor) ds = V::mul(ds, V::load(static_cast<const T*>(args.factor) + at));
    Outer::store(static_cast<typename Outer::Weight*>(args.weights_outer) + at, dropped);
    if constexpr (Outer::kSeparate) Outer::store(static_cast<typename Outer::Weight*>(args.ds_outer) + at, ds);
    return ds;
  }
};

template <class Dot>
void grad(const GradArgs& args) {
  for_width<Dot::Acc::W>(args.width, Grad<Dot>{args});
}

}  // namespace
}  // namespace attn::kernels
