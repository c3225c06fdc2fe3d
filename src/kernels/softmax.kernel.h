// Everything that happens to a tile of scores between the two matrix products, and to the state of its rows.
//
// All tiles are [key][width], rows in lanes; scores come as log2(e) / 2 times the score.
//   transform        s = softcap(s) + bias - slope |p - j|;  s = -inf where not allowed;  maximum = max(maximum, s)
//   softmax          w = 2^(2 (s - reference));  sum += w;  w' = keep ? w keep_scale : 0
//   scores_softmax   scores and softmax in one pass, against the reference as it is
//   update           a row whose maximum exceeds its reference by more than `limit` takes the maximum as reference;
//                    sum *= alpha = 2^(2 (old - new)).   rescale: accumulator *= alpha
//   merge            out = (share of a) out_a + (share of b) out_b, shares by sum * 2^(2 reference)
// Loops: keys outermost, vectors of the panel unrolled inside; sums and maxima stay in registers.
// Every lane's arithmetic is a fixed sequence over its keys, so no row depends on its neighbours.
#pragma once

#include "kernels/gemm.kernel.h"

namespace attn::kernels {
namespace {

template <class V>
inline typename V::Reg safe_reference(const typename V::T* p) {
  const typename V::Reg reference = V::load(p);
  return V::select(V::equal(reference, V::set1(-infinity<typename V::T>())), V::zero(), reference);
}

/// 2^(2 d): the weight of a score that is d above its reference.
template <class V>
inline __attribute__((always_inline)) typename V::Reg weight(typename V::Reg d) {
  return V::exp2(V::add(d, d));
}

/// The weights of a Dot, of a score that is d above its reference.
template <class Dot>
struct WeightOf {
  using Reg = typename Dot::Acc::Reg;
  static Reg above(Reg d) { return weight<typename Dot::Acc>(d); }
};

/// Lane mask bits of vector v of a panel.
template <class V>
inline typename V::Mask lane_mask(uint64_t bits, int v) {
  return V::mask(bits >> (v * V::W));
}

/// Writes a pair of weights of keys 2t and 2t + 1, or one key's where the format is not paired.
template <class Dot>
struct WeightFormat;

template <class V>
struct WeightFormat<FmaDot<V>> {
  using Weight = typename V::T;
  static void store(Weight* weights, int64_t key, int width, int lane, typename V::Reg even, typename V::Reg odd) {
    V::store(weights + key * width + lane, even);
    V::store(weights + (key + 1) * width + lane, odd);
  }
  static void store_last(Weight* weights, int64_t key, int width, int lane, typename V::Reg even) {
    V::store(weights + key * width + lane, even);
  }
  static double load(const void* weights, int64_t key, int width, int lane) {
    return static_cast<double>(static_cast<const Weight*>(weights)[key * width + lane]);
  }
};

template <class V, int kType>
struct WeightFormat<WideningDot<V, kType>> : WeightFormat<FmaDot<V>> {};

/// cap tanh(s / cap) and its derivative in s. |x| < 0.625: x + x^3 P(x^2) / Q(x^2), the rational form of Cephes,
/// because (1 - e) / (1 + e) with e = 2^(-2 log2e |x|) loses its relative accuracy there.
template <class V>
inline typename V::Reg softcap(typename V::Reg s, double cap, typename V::Reg& factor) {
  using T = typename V::T;
  using Reg = typename V::Reg;
  const auto constant = [](double x) { return V::set1(static_cast<T>(x)); };
  const Reg one = V::set1(1);
  const Reg x = V::mul(V::abs(s), constant(1 / cap));
  const Reg e = V::exp2(V::mul(x, constant(-2 * kLog2e)));
  const Reg sum = V::add(one, e);
  const Reg z = V::mul(x, x);
  const Reg p = V::fma(V::fma(constant(-9.64399179425052238628e-1), z, constant(-9.92877231001918586564e1)), z,
                       constant(-1.61468768441708447952e3));
  const Reg q = V::fma(V::fma(V::add(z, constant(1.12811678491632931402e2)), z, constant(2.23548839060100448583e3)), z,
                       constant(4.84406305325125486048e3));
  const Reg near = V::fma(V::mul(x, z), V::div(p, q), x);
  const Reg far = V::div(V::sub(one, e), sum);
  const Reg capped = V::mul(constant(cap), V::select(V::greater(constant(0.625), x), near, far));
  factor = V::div(V::mul(constant(4), e), V::mul(sum, sum));
  return V::select(V::greater(V::zero(), s), V::sub(V::zero(), capped), capped);
}

template <class V>
struct Transform {
  using T = typename V::T;
  using Reg = typename V::Reg;
  const TransformArgs& args;

  template <int NV>
  void run() const {
    constexpr int kWidth = NV * V::W;
    // Locals: what stays in `args` would be read again after every store.
    const double cap = args.softcap;
    const T* bias = static_cast<const T*>(args.bias);
    const T* slopes = static_cast<const T*>(args.slope);
    T* factor = static_cast<T*>(args.factor);
    uint64_t* allowed_lanes = args.allowed;
    T* scores = static_cast<T*>(args.scores);
    const Reg masked = V::set1(-infinity<T>());
    const Reg largest = V::set1(largest_finite<T>());
    Reg maximum[NV], slope[NV], distance[NV];
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) {
      maximum[v] = args.maximum ? V::load(static_cast<const T*>(args.maximum) + v * V::W) : masked;
      slope[v] = slopes ? V::load(slopes + v * V::W) : V::zero();
      distance[v] = slopes ? V::load(static_cast<const T*>(args.position) + v * V::W) : V::zero();
    }
    for (int64_t key = 0; key < args.count; ++key, scores += kWidth) {
      uint64_t allowed = allowed_lanes ? allowed_lanes[key] : ~uint64_t{0};
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) {
        Reg s = V::load(scores + v * V::W);
        if (cap != 0) {
          Reg derivative;
          s = softcap<V>(s, cap, derivative);
          if (factor) V::store(factor + key * kWidth + v * V::W, derivative);
        }
        if (bias) {
          const Reg b = V::load(bias + key * kWidth + v * V::W);
          allowed &= ~(V::bits(V::equal(b, masked)) << (v * V::W));
          s = V::min(largest, V::add(s, b));
        }
        if (slopes) {
          s = V::sub(s, V::mul(slope[v], V::abs(distance[v])));
          distance[v] = V::sub(distance[v], V::set1(1));
        }
        s = V::select(lane_mask<V>(allowed, v), s, masked);
        V::store(scores + v * V::W, s);
        maximum[v] = V::max(maximum[v], s);
      }
      if (bias && allowed_lanes) allowed_lanes[key] = allowed;
    }
    if (!args.maximum) return;
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) V::store(static_cast<T*>(args.maximum) + v * V::W, maximum[v]);
  }
};

template <class V>
void transform(const TransformArgs& args) {
  for_width<V::W>(args.width, Transform<V>{args});
}

template <class Dot>
struct Softmax {
  using V = typename Dot::Acc;
  using T = typename V::T;
  using Reg = typename V::Reg;
  const SoftmaxArgs& args;

  template <int NV>
  void run() const {
    using Weight = typename WeightFormat<Dot>::Weight;
    constexpr int kWidth = NV * V::W;
    const uint64_t* keep = args.keep;
    const Reg keep_scale = V::set1(static_cast<T>(args.keep_scale));
    const auto dropped = [&](Reg weight, int64_t key, int v) {
      return V::select(lane_mask<V>(keep[key], v), V::mul(weight, keep_scale), V::zero());
    };
    const T* scores = static_cast<const T*>(args.scores);
    Weight* weights = static_cast<Weight*>(args.weights);
    T* sums = static_cast<T*>(args.sum);
    Reg reference[NV], sum[NV];
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) {
      reference[v] = safe_reference<V>(static_cast<const T*>(args.reference) + v * V::W);
      sum[v] = V::load(sums + v * V::W);
    }
    int64_t key = 0;
    for (; key + 2 <= args.count; key += 2) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) {
        const T* s = scores + key * kWidth + v * V::W;
        Reg even = WeightOf<Dot>::above(V::sub(V::load(s), reference[v]));
        Reg odd = WeightOf<Dot>::above(V::sub(V::load(s + kWidth), reference[v]));
        sum[v] = V::add(V::add(sum[v], even), odd);
        if (keep) {
          even = dropped(even, key, v);
          odd = dropped(odd, key + 1, v);
        }
        WeightFormat<Dot>::store(weights, key, kWidth, v * V::W, even, odd);
      }
    }
    if (key < args.count) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) {
        Reg even = WeightOf<Dot>::above(V::sub(V::load(scores + key * kWidth + v * V::W), reference[v]));
        sum[v] = V::add(sum[v], even);
        if (keep) even = dropped(even, key, v);
        WeightFormat<Dot>::store_last(weights, key, kWidth, v * V::W, even);
      }
    }
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) V::store(sums + v * V::W, sum[v]);
  }
};

template <class Dot>
void softmax(const SoftmaxArgs& args) {
  for_width<Dot::Acc::W, Dot::kPanelVectors>(args.width, Softmax<Dot>{args});
}

template <class Dot, int NV>
struct SoftmaxEpilogue {
  static constexpr bool kScaled = true;
  static constexpr bool kLimited = false;  // a score of +infinity exceeds every reference, and the tile is redone
  using V = typename Dot::Acc;
  using Reg = typename V::Reg;
  using Weight = typename WeightFormat<Dot>::Weight;
  Weight* weights;
  const Reg (&reference)[NV];
  Reg (&sum)[NV];
  Reg (&maximum)[NV];

  template <int MT>
  inline __attribute__((always_inline)) void apply(int64_t key, const Reg (&c)[MT][NV]) const {
    constexpr int kWidth = NV * V::W;
    ATTN_UNROLL
    for (int i = 0; i + 1 < MT; i += 2) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) {
        maximum[v] = V::max(V::max(maximum[v], c[i][v]), c[i + 1][v]);
        const Reg even = weight<V>(V::sub(c[i][v], reference[v]));
        const Reg odd = weight<V>(V::sub(c[i + 1][v], reference[v]));
        sum[v] = V::add(V::add(sum[v], even), odd);
        WeightFormat<Dot>::store(weights, key + i, kWidth, v * V::W, even, odd);
      }
    }
    if constexpr (MT % 2 == 1) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) {
        maximum[v] = V::max(maximum[v], c[MT - 1][v]);
        const Reg last = weight<V>(V::sub(c[MT - 1][v], reference[v]));
        sum[v] = V::add(sum[v], last);
        WeightFormat<Dot>::store_last(weights, key + MT - 1, kWidth, v * V::W, last);
      }
    }
  }
};

template <class Dot>
struct Fused {
  using V = typename Dot::Acc;
  using T = typename V::T;
  using Reg = typename V::Reg;
  const FusedArgs& args;
  double limit;
  bool& ok;

  template <int NV>
  void run() const {
    Reg reference[NV], sum[NV], maximum[NV];
    const T* references = static_cast<const T*>(args.reference);
    T* sums = static_cast<T*>(args.sum);
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) {
      reference[v] = V::load(references + v * V::W);
      sum[v] = V::load(sums + v * V::W);
      maximum[v] = V::set1(-infinity<T>());
    }
    using Epilogue = SoftmaxEpilogue<Dot, NV>;
    for_scores<Dot, NV>(args.in,
                        Epilogue{static_cast<typename Epilogue::Weight*>(args.weights), reference, sum, maximum});
    const Reg slack = V::set1(static_cast<T>(limit));
    uint64_t above = 0;
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) {
      V::store(sums + v * V::W, sum[v]);
      above |= V::bits(V::greater(maximum[v], V::add(reference[v], slack))) << (v * V::W);
    }
    ok = (above << (64 - args.in.rows)) == 0;  // lanes beyond the rows do not count
  }
};

template <class Dot>
bool scores_softmax(const FusedArgs& args, double limit) {
  bool ok = false;
  for_width<Dot::Acc::W, Dot::kPanelVectors>(args.in.width, Fused<Dot>{args, limit, ok});
  return ok;
}

template <class V>
bool update(void* reference, const void* maximum, void* sum, void* alpha, int width, double limit) {
  using T = typename V::T;
  using Reg = typename V::Reg;
  T* references = static_cast<T*>(reference);
  uint64_t moved = 0;
  const Reg none = V::set1(-infinity<T>());
  for (int lane = 0; lane < width; lane += V::W) {
    const Reg old = V::load(references + lane);
    const Reg top = V::load(static_cast<const T*>(maximum) + lane);
    const typename V::Mask higher = V::greater(top, V::add(old, V::set1(static_cast<T>(limit))));
    const typename V::Mask empty = V::equal(old, none);
    const Reg next = V::select(higher, top, old);
    const Reg factor = V::select(higher, weight<V>(V::sub(old, next)), V::set1(1));
    T* sums = static_cast<T*>(sum) + lane;
    V::store(references + lane, next);
    V::store(static_cast<T*>(alpha) + lane, V::select(empty, V::set1(1), factor));
    V::store(sums, V::mul(V::load(sums), V::load(static_cast<const T*>(alpha) + lane)));
    moved |= V::bits(higher) & ~V::bits(empty);
  }
  return moved != 0;
}

template <class V>
bool exceeds(const void* reference, const void* maximum, int rows, double limit) {
  using T = typename V::T;
  const typename V::Reg slack = V::set1(static_cast<T>(limit));
  uint64_t above = 0;
  for (int lane = 0; lane < rows; lane += V::W) {
    const typename V::Reg top = V::load(static_cast<const T*>(maximum) + lane);
    above |= V::bits(V::greater(top, V::add(V::load(static_cast<const T*>(reference) + lane), slack))) << lane;
  }
  return (above << (64 - rows)) != 0;  // lanes beyond the rows do not count
}

template <class V>
void rescale(void* out, const void* alpha, int width, int /*rows*/, int64_t depth) {
  using T = typename V::T;
  for (int64_t d = 0; d < depth; ++d) {
    for (int lane = 0; lane < width; lane += V::W) {
      T* p = static_cast<T*>(out) + d * width + lane;
      V::store(p, V::mul(V::load(p), V::load(static_cast<const T*>(alpha) + lane)));
    }
  }
}

template <class V>
void inverse(const void* sum, void* inverse, int width) {
  using T = typename V::T;
  for (int lane = 0; lane < width; ++lane) {
    const T total = static_cast<const T*>(sum)[lane];
    static_cast<T*>(inverse)[lane] = total == 0 ? 0 : 1 / total;
  }
}

/// (out, reference, sum) += (out_b, ...): the only place where two states of attention become one.
template <class V>
void merge(const MergeArgs& args) {
  using T = typename V::T;
  for (int64_t row = 0; row < args.rows; ++row) {
    T* x = static_cast<T*>(args.out) + row * args.stride;
    const T* y = static_cast<const T*>(args.out_b) + row * args.stride;
    double& reference = args.reference[row];
    double& sum = args.sum[row];
    const double reference_b = args.reference_b[row], sum_b = args.sum_b[row];
    if (sum_b == 0) continue;  // the empty state is the identity, to the bit
    if (sum == 0) {
      for (int64_t d = 0; d < args.depth; d += V::W) V::store(x + d, V::load(y + d));
      reference = reference_b;
      sum = sum_b;
      continue;
    }
    const double top = reference > reference_b ? reference : reference_b;
    const double part = reference == top ? sum : sum * __builtin_exp2(2 * (reference - top));
    const double part_b = reference_b == top ? sum_b : sum_b * __builtin_exp2(2 * (reference_b - top));
    const typename V::Reg share = V::set1(static_cast<T>(part / (part + part_b)));
    const typename V::Reg share_b = V::set1(static_cast<T>(part_b / (part + part_b)));
    for (int64_t d = 0; d < args.depth; d += V::W)
      V::store(x + d, V::fma(share_b, V::load(y + d), V::mul(share, V::load(x + d))));
    reference = top;
    sum = part + part_b;
  }
}

}  // namespace
}  // namespace attn::kernels
