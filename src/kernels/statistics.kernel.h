// Statistics of a tile of scores or weights, [key][width], rows in lanes.
//
//   row_sums     w = 2^(2 (s - lse)) in place of s; sums of w, w (s - lse) and w^2 of each row; its largest w and
//                where; its sum of w |position - key|
//   column_sums  sums of w, and of w times the row's place, over the rows of each key
//   masked_sums  sums of w over the keys whose lane masks name the row
//   label_sums   sums, or the largest, of w f over the keys of each label
//   above        lane masks of the w above a row's threshold
//   statistics_grad   dS = w (entropy (lse - s) + square w + other - delta), 0 where s = -infinity, in the formats of
//   `grad`
// Loops: keys outermost, vectors of the panel unrolled inside; sums stay in registers, those of a label in memory. A
// tile's sums begin at 0: the caller adds them over tiles in double.
#pragma once

#include "kernels/grad.kernel.h"

namespace attn::kernels {
namespace {

/// Half the binary exponent of a weight that is 0, and so is its product with a finite number.
template <class T>
constexpr T least_exponent = sizeof(T) == 4 ? T(-128) : T(-1024);

template <class Dot>
struct RowSums {
  using V = typename Dot::Acc;
  using T = typename V::T;
  using Reg = typename V::Reg;
  const RowSumsArgs& args;

  template <int NV>
  void run() const {
    weights<NV>();
    if (args.maximum) maxima<NV>();
    if (args.position) distances<NV>();
  }

  template <int NV>
  void weights() const {
    constexpr int kWidth = NV * V::W;
    T* tile = static_cast<T*>(args.tile);
    const Reg masked = V::set1(-infinity<T>());
    const Reg low = V::set1(least_exponent<T>);
    const uint64_t rows = ~uint64_t{0} >> (64 - args.rows);
    const T* lse = static_cast<const T*>(args.lse);  // not in registers, of which the sums take nine
    Reg sum[NV], entropy[NV], squares[NV];
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) sum[v] = entropy[v] = squares[v] = V::zero();
    for (int64_t key = 0; key < args.count; ++key, tile += kWidth) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) {
        const Reg s = V::load(tile + v * V::W);
        const typename V::Mask none = V::equal(s, masked);
        const Reg d = V::select(none, V::zero(), V::max(low, V::sub(s, V::load(lse + v * V::W))));  // NaN passes
        // Lanes without a row count nothing either: a key that is not finite makes NaN of their zeros.
        const Reg p = V::select(lane_mask<V>(rows, v), V::select(none, V::zero(), probability<Dot>(d)), V::zero());
        V::store(tile + v * V::W, p);
        sum[v] = V::add(sum[v], p);
        entropy[v] = V::fma(p, d, entropy[v]);
        squares[v] = V::fma(p, p, squares[v]);
      }
    }
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) {
      T* sums = static_cast<T*>(args.sums) + v * V::W;
      V::store(sums, sum[v]);
      V::store(sums + kWidth, entropy[v]);
      V::store(sums + 2 * kWidth, squares[v]);
    }
  }

  template <int NV>
  void maxima() const {
    const T* tile = static_cast<const T*>(args.tile);
    Reg maximum[NV], place[NV];
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) maximum[v] = place[v] = V::zero();
    for (int64_t key = 0; key < args.count; ++key, tile += NV * V::W) {
      const Reg number = V::set1(static_cast<T>(key));
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) {
        const Reg p = V::load(tile + v * V::W);
        const typename V::Mask larger = V::greater(p, maximum[v]);
        maximum[v] = V::select(larger, p, maximum[v]);
        place[v] = V::select(larger, number, place[v]);
      }
    }
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) {
      V::store(static_cast<T*>(args.maximum) + v * V::W, maximum[v]);
      V::store(static_cast<T*>(args.place) + v * V::W, place[v]);
    }
  }

  template <int NV>
  void distances() const {
    const T* tile = static_cast<const T*>(args.tile);
    Reg position[NV], sum[NV];
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) {
      position[v] = V::load(static_cast<const T*>(args.position) + v * V::W);
      sum[v] = V::zero();
    }
    for (int64_t key = 0; key < args.count; ++key, tile += NV * V::W) {
      const Reg number = V::set1(static_cast<T>(key));
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v)
        sum[v] = V::fma(V::load(tile + v * V::W), V::abs(V::sub(position[v], number)), sum[v]);
    }
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) V::store(static_cast<T*>(args.sums) + (3 * NV + v) * V::W, sum[v]);
  }
};

template <class Dot>
void row_sums(const RowSumsArgs& args) {
  for_width<Dot::Acc::W>(args.width, RowSums<Dot>{args});
}

template <class V>
struct ColumnSums {
  const ColumnSumsArgs& args;

  template <int NV>
  void run() const {
    using T = typename V::T;
    using Reg = typename V::Reg;
    const T* tile = static_cast<const T*>(args.weights);
    T* sums = static_cast<T*>(args.sum);
    T* moments = static_cast<T*>(args.moment);
    Reg place[NV];
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) place[v] = moments ? V::load(static_cast<const T*>(args.place) + v * V::W) : V::zero();
    for (int64_t key = 0; key < args.count; ++key, tile += NV * V::W) {
      Reg sum = V::load(tile);
      Reg moment = V::mul(sum, place[0]);
      ATTN_UNROLL
      for (int v = 1; v < NV; ++v) {
        const Reg p = V::load(tile + v * V::W);
        sum = V::add(sum, p);
        moment = V::fma(p, place[v], moment);
      }
      sums[key] = V::sum(sum);
      if (moments) moments[key] = V::sum(moment);
    }
  }
};

template <class V>
void column_sums(const ColumnSumsArgs& args) {
  for_width<V::W>(args.width, ColumnSums<V>{args});
}

template <class V>
struct MaskedSums {
  const MaskedSumsArgs& args;

  template <int NV>
  void run() const {
    using T = typename V::T;
    const T* tile = static_cast<const T*>(args.weights);
    typename V::Reg sum[NV];
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) sum[v] = V::zero();
    for (int64_t key = 0; key < args.count; ++key, tile += NV * V::W) {
      const uint64_t mask = args.mask[key];
      if (mask == 0) continue;
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v)
        sum[v] = V::add(sum[v], V::select(lane_mask<V>(mask, v), V::load(tile + v * V::W), V::zero()));
    }
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) V::store(static_cast<T*>(args.sum) + v * V::W, sum[v]);
  }
};

template <class V>
void masked_sums(const MaskedSumsArgs& args) {
  for_width<V::W>(args.width, MaskedSums<V>{args});
}

/// Keys of one label that follow each other are added up in registers first.
template <class V>
struct LabelSums {
  const LabelSumsArgs& args;

  template <int NV>
  void run() const {
    return args.largest ? run<NV, true>() : run<NV, false>();
  }

  template <int NV, bool kLargest>
  void run() const {
    using T = typename V::T;
    using Reg = typename V::Reg;
    const T* tile = static_cast<const T*>(args.weights);
    const T* factors = static_cast<const T*>(args.factor);
    const auto both = [](Reg a, Reg b) { return kLargest ? V::max(a, b) : V::add(a, b); };
    for (int64_t key = 0; key < args.count;) {
      const int32_t label = args.label[key];
      Reg sum[NV];
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) sum[v] = V::zero();
      for (; key < args.count && args.label[key] == label; ++key, tile += NV * V::W) {
        const Reg factor = V::set1(factors ? factors[key] : T(1));
        ATTN_UNROLL
        for (int v = 0; v < NV; ++v) sum[v] = both(sum[v], V::mul(V::load(tile + v * V::W), factor));
      }
      if (label < 0) continue;
      T* out = static_cast<T*>(args.out) + (label - args.first_label) * (NV * V::W);
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) V::store(out + v * V::W, both(V::load(out + v * V::W), sum[v]));
    }
  }
};

template <class V>
void label_sums(const LabelSumsArgs& args) {
  for_width<V::W>(args.width, LabelSums<V>{args});
}

template <class V>
struct Above {
  const AboveArgs& args;

  template <int NV>
  void run() const {
    using T = typename V::T;
    const T* tile = static_cast<const T*>(args.weights);
    typename V::Reg threshold[NV];
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) threshold[v] = V::load(static_cast<const T*>(args.threshold) + v * V::W);
    for (int64_t key = 0; key < args.count; ++key, tile += NV * V::W) {
      uint64_t above = 0;
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) above |= V::bits(V::greater(V::load(tile + v * V::W), threshold[v])) << (v * V::W);
      args.above[key] = above;
    }
  }
};

template <class V>
void above(const AboveArgs& args) {
  for_width<V::W>(args.width, Above<V>{args});
}

template <class Dot>
struct StatisticsGrad {
  using V = typename Dot::Acc;
  using T = typename V::T;
  using Reg = typename V::Reg;
  using Format = WeightFormat<Dot>;
  using Outer = OuterFormat<Dot>;
  const StatisticsGradArgs& args;

  template <int NV>
  void run() const {
    constexpr int kWidth = NV * V::W;
    auto* to = static_cast<typename Format::Weight*>(args.ds_values);
    int64_t key = 0;
    Reg even[NV], odd[NV];
    for (; key + 2 <= args.count; key += 2) {
      lanes<NV>(key, even);
      lanes<NV>(key + 1, odd);
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) Format::store(to, key, kWidth, v * V::W, even[v], odd[v]);
    }
    if (key == args.count) return;
    lanes<NV>(key, even);
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) Format::store_last(to, key, kWidth, v * V::W, even[v]);
  }

  /// dS of a key. What the outer product takes is stored.
  template <int NV>
  inline __attribute__((always_inline)) void lanes(int64_t key, Reg (&grad)[NV]) const {
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) grad[v] = ds<NV * V::W>(key, v);
    if constexpr (Outer::kSeparate) Outer::store(static_cast<typename Outer::Weight*>(args.ds_outer), key, grad);
  }

  template <int kWidth>
  inline __attribute__((always_inline)) Reg ds(int64_t key, int v) const {
    const int64_t at = key * kWidth + v * V::W;
    const auto row = [&](const void* numbers) { return V::load(static_cast<const T*>(numbers) + v * V::W); };
    const auto pair = [&](const void* tile) { return V::load(static_cast<const T*>(tile) + at); };
    const Reg s = pair(args.scores);
    const Reg d = V::max(V::set1(least_exponent<T>), V::sub(s, row(args.lse)));  // NaN passes
    const Reg p = probability<Dot>(d);
    Reg g = V::sub(V::fma(row(args.square), p, V::sub(V::zero(), row(args.delta))), V::mul(row(args.entropy), d));
    if (args.other) g = V::add(g, pair(args.other));
    const typename V::Mask none = V::equal(s, V::set1(-infinity<T>()));
    const auto masked = [&](Reg x) { return V::select(none, V::zero(), x); };
    Reg ds = V::mul(p, g);
    if (args.ds) V::store(static_cast<T*>(args.ds) + at, masked(ds));
    if (args.factor) ds = V::mul(ds, pair(args.factor));
    return masked(ds);
  }
};

template <class Dot>
void statistics_grad(const StatisticsGradArgs& args) {
  for_width<Dot::Acc::W, Dot::kPanelVectors>(args.width, StatisticsGrad<Dot>{args});
}

}  // namespace
}  // namespace attn::kernels
