// The element-wise part of the backward pass on one tile, [key][width], rows in lanes.
//
//   probabilities, scores_probabilities   P = 2^(2 (s - lse))
//   grad   dP = V dO^T, and in its epilogue   dP' = dP keep keep_scale;  dS = P (dP' - delta);  P' = P keep keep_scale
// `grad` stores dS, times the softcap factor, and P' in the formats that the matrix products want.
// Loops: those of the scores product, see gemm.kernel.h. A masked pair gives exactly 0, whatever dP holds there.
// Requires: what the scores product requires; every tile array 64-byte aligned.
#pragma once

#include "kernels/softmax.kernel.h"

namespace attn::kernels {
namespace {

/// The weight of a score that is d above lse. The caller's lse need not be that of the row, and exp2 may wrap where
/// the result has no number: from 2^128 on (2^1024 in double) it is infinity. NaN passes.
template <class Dot>
inline __attribute__((always_inline)) typename Dot::Acc::Reg probability(typename Dot::Acc::Reg d) {
  using V = typename Dot::Acc;
  return WeightOf<Dot>::above(V::min(V::set1(sizeof(typename V::T) == 4 ? 64 : 512), d));
}

template <class Dot, int NV>
struct ProbabilityEpilogue {
  static constexpr bool kLimited = true, kScaled = true;
  using V = typename Dot::Acc;
  typename V::T* weights;
  const typename V::Reg (&lse)[NV];

  template <int MT>
  inline __attribute__((always_inline)) void apply(int64_t key, const typename V::Reg (&c)[MT][NV]) const {
    ATTN_UNROLL
    for (int i = 0; i < MT; ++i) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v)
        V::store(weights + ((key + i) * NV + v) * V::W, probability<Dot>(V::sub(c[i][v], lse[v])));
    }
  }
};

template <class Dot>
struct ScoresProbabilities {
  using V = typename Dot::Acc;
  const ScoresArgs& args;
  const void* lse;
  void* weights;

  template <int NV>
  void run() const {
    typename V::Reg reference[NV];
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) reference[v] = V::load(static_cast<const typename V::T*>(lse) + v * V::W);
    for_scores<Dot, NV>(args, ProbabilityEpilogue<Dot, NV>{static_cast<typename V::T*>(weights), reference});
  }
};

template <class Dot>
void scores_probabilities(const ScoresArgs& args, const void* lse, void* weights) {
  for_width<Dot::Acc::W, Dot::kPanelVectors>(args.width, ScoresProbabilities<Dot>{args, lse, weights});
}

template <class Dot>
struct Probabilities {
  using V = typename Dot::Acc;
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
        const typename V::Reg p = probability<Dot>(V::sub(s, lse[v]));  // NaN lse: only where the row may look
        V::store(weights + at + v * V::W, V::select(V::equal(s, masked), V::zero(), p));
      }
    }
  }
};

template <class Dot>
void probabilities(const SoftmaxArgs& args) {
  for_width<Dot::Acc::W>(args.width, Probabilities<Dot>{args});
}

/// Outer format of a weight: acc for FmaDot.
template <class Dot>
struct OuterFormat;

template <class V>
struct OuterFormat<FmaDot<V>> {
  static constexpr bool kSeparate = false;  // `outer` takes the weight format too
  using Weight = typename V::T;
  /// All lanes of a key.
  template <int NV>
  static void store(Weight* weights, int64_t key, const typename V::Reg (&value)[NV]) {
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) V::store(weights + (key * NV + v) * V::W, value[v]);
  }
  static double load(const void* weights, int64_t key, int width, int lane) {
    return static_cast<double>(static_cast<const Weight*>(weights)[key * width + lane]);
  }
};

/// kPlain: no mask, dropout, softcap or bias gradient. Asked for every vector, what `args` says costs a tenth of the
/// kernel at D = 64.
template <class Dot, int NV, bool kPlain>
struct GradEpilogue {
  static constexpr bool kLimited = false, kScaled = false;  // dP is no score
  using V = typename Dot::Acc;
  using T = typename V::T;
  using Reg = typename V::Reg;
  using Format = WeightFormat<Dot>;
  using Outer = OuterFormat<Dot>;
  static constexpr int kWidth = NV * V::W;
  const GradArgs& args;
  const T* weights;
  typename Format::Weight* ds_values;
  typename Outer::Weight *weights_outer, *ds_outer;
  const Reg (&delta)[NV];

  template <int MT>
  inline __attribute__((always_inline)) void apply(int64_t key, const Reg (&c)[MT][NV]) const {
    ATTN_UNROLL
    for (int i = 0; i + 1 < MT; i += 2) {
      Reg even[NV], odd[NV];
      lanes(key + i, c[i], even);
      lanes(key + i + 1, c[i + 1], odd);
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) Format::store(ds_values, key + i, kWidth, v * V::W, even[v], odd[v]);
    }
    if constexpr (MT % 2 == 1) {
      Reg last[NV];
      lanes(key + MT - 1, c[MT - 1], last);
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) Format::store_last(ds_values, key + MT - 1, kWidth, v * V::W, last[v]);
    }
  }

  /// dS of a key. What the outer product takes is stored.
  inline __attribute__((always_inline)) void lanes(int64_t key, const Reg (&dp)[NV], Reg (&grad)[NV]) const {
    Reg dropped[NV];
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) grad[v] = ds(key, v, dp[v], dropped[v]);
    if (Outer::kSeparate || (!kPlain && args.keep)) Outer::store(weights_outer, key, dropped);
    if constexpr (Outer::kSeparate) Outer::store(ds_outer, key, grad);
  }

  inline __attribute__((always_inline)) Reg ds(int64_t key, int v, Reg dp, Reg& dropped) const {
    const int64_t at = key * kWidth + v * V::W;
    const Reg p = V::load(weights + at);
    Reg grad;
    dropped = p;
    if constexpr (kPlain) {
      grad = V::mul(p, V::sub(dp, delta[v]));
    } else {
      if (args.keep) {
        const typename V::Mask keep = lane_mask<V>(args.keep[key], v);
        const Reg scale = V::set1(static_cast<T>(args.keep_scale));
        dp = V::select(keep, V::mul(dp, scale), V::zero());
        dropped = V::select(keep, V::mul(p, scale), V::zero());
      }
      const auto masked = [&](Reg x) {
        return args.allowed ? V::select(lane_mask<V>(args.allowed[key], v), x, V::zero()) : x;
      };
      grad = V::mul(p, V::sub(dp, delta[v]));
      if (args.ds) V::store(static_cast<T*>(args.ds) + at, masked(grad));
      if (args.factor) grad = V::mul(grad, V::load(static_cast<const T*>(args.factor) + at));
      grad = masked(grad);
    }
    return grad;
  }
};

template <class Dot>
struct Grad {
  using V = typename Dot::Acc;
  const GradArgs& args;

  template <int NV>
  void run() const {
    const bool plain = !args.keep && !args.allowed && !args.ds && !args.factor;
    return plain ? run<NV, true>() : run<NV, false>();
  }

  template <int NV, bool kPlain>
  void run() const {
    using Epilogue = GradEpilogue<Dot, NV, kPlain>;
    using Outer = typename Epilogue::Outer::Weight;
    typename V::Reg delta[NV];
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) delta[v] = V::load(static_cast<const typename V::T*>(args.delta) + v * V::W);
    for_scores<Dot, NV>(args.in,
                        Epilogue{args, static_cast<const typename V::T*>(args.weights),
                                 static_cast<typename Epilogue::Format::Weight*>(args.ds_values),
                                 static_cast<Outer*>(args.weights_outer), static_cast<Outer*>(args.ds_outer), delta});
  }
};

template <class Dot>
void grad(const GradArgs& args) {
  for_width<Dot::Acc::W, Dot::kPanelVectors>(args.in.width, Grad<Dot>{args});
}

}  // namespace
}  // namespace attn::kernels
