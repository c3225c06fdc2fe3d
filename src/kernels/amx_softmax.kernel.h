// The softmax of scores from matrix tiles, in one pass with the scores and a product with values.
//
//   scores_softmax   w = allowed ? 2^(2 (scale s - reference)) : 0;  sum += w
// Beside products every vector instruction costs: 16 a product are free, and of 42 (D = 64) the others take half a
// cycle to a cycle each. So there are 21 for 32 weights, 5 fewer than softmax.kernel.h has. The scale is a factor of
// the multiply-add that subtracts the reference. No maxima are kept: a reference that is too low makes a sum too large.
// A mask costs no more than its load. D = 64: 761 GFLOP/s with 26, 817, 856 and 902 with each of these left out. Where
// a reference is 2^16 or more its row's scores are rounded and limited before it is subtracted: next to it, a score is
// else off by the rounding of the reference, and twice the reference may be no number. Loops: those of the scores
// product, see amx_products.kernel.h. Every lane's arithmetic is a fixed sequence over its keys, whatever the other
// lanes have: masked keys add 0.
#pragma once

#include "kernels/amx_products.kernel.h"

namespace attn::kernels {
namespace {

constexpr float kLargeReference = 0x1p16f;

inline F32::Mask is_large(F32::Reg reference) {
  return static_cast<F32::Mask>(~F32::greater(F32::set1(kLargeReference), F32::abs(reference)));
}

/// The epilogue.
template <class Dot, int NV, bool kMasked, bool kLarge>
struct TileWeights {
  static constexpr bool kScaled = false, kLimited = false;
  using Reg = F32::Reg;
  using Format = WeightFormat<Dot>;
  uint16_t* weights;
  const uint64_t* allowed;     // null = all
  const Reg (&reference)[NV];  // times -2, unless kLarge
  Reg (&sum)[NV];
  Reg scale, highest;      // scale times 2, unless kLarge
  const ValuesArgs* late;  // as FusedArgs has it

  template <int MT>
  inline __attribute__((always_inline)) void apply(int64_t key, const Reg (&c)[MT][NV]) const {
    static_assert(MT <= 2);
    constexpr int kWidth = NV * F32::W;
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) {
      const Reg even = weight(key, v, c[0][v]);
      sum[v] = F32::add(sum[v], even);
      if constexpr (MT == 1) {
        Format::store_last(weights, key, kWidth, v * F32::W, even);
      } else {
        const Reg odd = weight(key + 1, v, c[1][v]);
        sum[v] = F32::add(sum[v], odd);
        Format::store(weights, key, kWidth, v * F32::W, even, odd);
      }
    }
  }

  inline __attribute__((always_inline)) Reg weight(int64_t key, int v, Reg s) const {
    const Reg x = kLarge ? twice_above_large(v, s) : F32::fma(s, scale, reference[v]);
    if constexpr (!kMasked) return exp2_by_floor(x);
    return _mm512_maskz_scalef_ps(lane_mask<F32>(allowed ? allowed[key] : ~uint64_t{0}, v), exp2_of_fraction(x), x);
  }

  inline __attribute__((always_inline)) Reg twice_above_large(int v, Reg s) const {
    const Reg above = F32::sub(F32::min(highest, F32::mul(s, scale)), reference[v]);
    const Reg fused = F32::fma(s, F32::add(scale, scale), F32::mul(reference[v], F32::set1(-2)));
    return F32::select(is_large(reference[v]), F32::add(above, above), fused);
  }
};

template <class Dot>
struct TileSoftmax {
  using Reg = F32::Reg;
  const FusedArgs& args;
  float limit;
  bool& ok;

  template <int NV>
  void run() const {
    uint64_t large = 0;
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) large |= F32::bits(is_large(reference_of(v)));
    if (large != 0) run<NV, true, true>();
    else if (args.allowed) run<NV, true, false>();
    else run<NV, false, false>();
  }

  /// Each in a function of its own: together, g++ leaves sums in memory.
  template <int NV, bool kMasked, bool kLarge>
  __attribute__((noinline)) void run() const {
    float* sums = static_cast<float*>(args.sum);
    Reg reference[NV], sum[NV];
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) {
      reference[v] = kLarge ? reference_of(v) : F32::mul(reference_of(v), F32::set1(-2));
      sum[v] = F32::load(sums + v * F32::W);
    }
    const float scale = Dot::kScalesScores ? static_cast<float>(args.in.scale) : 1;
    const TileWeights<Dot, NV, kMasked, kLarge> weights{static_cast<uint16_t*>(args.weights),
                                                        args.allowed,
                                                        reference,
                                                        sum,
                                                        F32::set1(kLarge ? scale : 2 * scale),
                                                        F32::set1(static_cast<float>(args.in.highest)),
                                                        args.late};
    if constexpr (kLarge) by_slices(weights);
    else for_scores<Dot, NV>(args.in, weights);
    uint64_t above = 0;
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) {
      F32::store(sums + v * F32::W, sum[v]);
      above |= F32::bits(F32::greater(sum[v], F32::set1(limit))) << (v * F32::W);
    }
    ok = (above << (64 - args.in.rows)) == 0;  // lanes beyond the rows do not count
  }

  Reg reference_of(int v) const { return safe_reference<F32>(static_cast<const float*>(args.reference) + v * F32::W); }

  /// Scores as they come from the tiles, 32 keys at a time, then their weights.
  template <int NV>
  void by_slices(const TileWeights<Dot, NV, true, true>& weights) const {
    alignas(64) float slice[kTileSum][NV * F32::W];
    ScoresArgs part = args.in;
    part.scores = slice;
    part.maximum = nullptr;
    part.scale = 1;
    part.highest = static_cast<double>(infinity<float>());
    for (int64_t key = 0; key < args.in.count; key += kTileSum) {
      part.keys = static_cast<const uint16_t*>(args.in.keys) + key * args.in.key_stride;
      part.count = at_most(args.in.count - key, kTileSum);
      scores<Dot>(part);
      int64_t i = 0;
      for (; i + 2 <= part.count; i += 2) apply<2>(weights, key + i, slice[i]);
      if (i < part.count) apply<1>(weights, key + i, slice[i]);
    }
    if (args.late) tile_values<Dot>(*args.late);
  }

  template <int MT, int NV>
  static void apply(const TileWeights<Dot, NV, true, true>& weights, int64_t key, const float* scores) {
    Reg c[MT][NV];
    ATTN_UNROLL
    for (int n = 0; n < MT * NV; ++n) c[n / NV][n % NV] = F32::load(scores + n * F32::W);
    weights.template apply<MT>(key, c);
  }
};

template <class Dot>
bool tile_scores_softmax(const FusedArgs& args, double limit) {
  bool ok = false;
  for_width<F32::W, 2>(args.in.width, TileSoftmax<Dot>{args, static_cast<float>(limit), ok});
  return ok;
}

}  // namespace
}  // namespace attn::kernels
