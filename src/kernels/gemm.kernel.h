// The one matrix micro-kernel, and the three products of attention built on it.
//
// Computes   c[i][v] += sum_s a[i, s] x[s, v]         i < MT rows, v < NV vectors of W lanes, s < steps
//
//   scores   S^T[key][row]  = sum_d K[key, d] Q^T[d][row]     a = keys,    x = query panel  [D][width]
//   values   O^T[d][row]   += sum_key V[key, d] P[key][row]   a = values,  x = weights      [count][width]
//   outer    C[key][d]     += sum_row P[key][row] X[row][d]   a = weights, x = rows         [rows][depth], all panels
//
// Loops: rows of c in blocks of MT, vectors in blocks of NV, then s innermost with all MT x NV accumulators in
// registers: NV loads, MT broadcasts and MT x NV multiply-adds a step. a is only ever broadcast, so K and V need no
// packing. Every accumulator runs through s in order: its bits do not depend on MT, NV or the neighbours. Requires: x
// 64-byte aligned, its rows a multiple of W; a at element alignment.
#pragma once

#include "kernels/dot.h"

namespace attn::kernels {
namespace {

template <class Dot, int NV, int MT>
inline __attribute__((always_inline)) void tile(const typename Dot::Elem* a, int64_t a_row, int64_t a_step,
                                                const typename Dot::Elem* x, int64_t x_step, int64_t steps,
                                                typename Dot::Acc::Reg (&c)[MT][NV]) {
  constexpr int W = Dot::Acc::W;
  for (int64_t s = 0; s < steps; ++s, a += a_step, x += x_step) {
    typename Dot::Operand lane[NV];
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) lane[v] = Dot::load(x + v * W * Dot::kPack);
    ATTN_UNROLL
    for (int i = 0; i < MT; ++i) {
      const typename Dot::Operand b = Dot::broadcast(a + i * a_row);
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) c[i][v] = Dot::step(b, lane[v], c[i][v]);
    }
  }
}

/// Calls body.template run<MT>(i) for i = 0, MT, 2 MT, ... and with halved MT for what is left.
template <int MT, class Body>
inline __attribute__((always_inline)) void for_tiles(int64_t begin, int64_t end, const Body& body) {
  int64_t i = begin;
  for (; i + MT <= end; i += MT) body.template run<MT>(i);
  if constexpr (MT > 1) for_tiles<(MT + 1) / 2>(i, end, body);
}

/// Calls body.template run<NV>() with NV = width / W, which is 1, 2 or, if the widest panel has as many vectors, 3.
template <int W, int kMostVectors = 3, class Body>
inline void for_width(int width, const Body& body) {
  if constexpr (kMostVectors == 3)
    if (width == 3 * W) return body.template run<3>();
  if (width == 2 * W) return body.template run<2>();
  return body.template run<1>();
}

inline int64_t steps_of(int64_t n, int pack) { return (n + pack - 1) / pack; }

// ----------------------------------------------------------------------------------------------------------- scores

/// One tile of scores; what becomes of it is the epilogue's business: epilogue.apply<MT>(key, c). Only an epilogue with
/// kLimited has its scores limited to args.highest, and one without kScaled has args.scale = 1.
template <class Dot, int NV, class Epilogue>
struct ScoresTile {
  using V = typename Dot::Acc;
  const ScoresArgs& args;
  const Epilogue& epilogue;

  template <int MT>
  inline __attribute__((always_inline)) void run(int64_t key) const {
    typename V::Reg c[MT][NV];
    ATTN_UNROLL
    for (int i = 0; i < MT; ++i) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) c[i][v] = V::zero();
    }
    const auto* keys = static_cast<const typename Dot::Elem*>(args.keys) + key * args.key_stride;
    tile<Dot, NV, MT>(keys, args.key_stride, Dot::kPack, static_cast<const typename Dot::Elem*>(args.query),
                      NV * V::W * Dot::kPack, steps_of(args.depth, Dot::kPack), c);
    const typename V::Reg highest = V::set1(static_cast<typename V::T>(args.highest));
    const typename V::Reg scale = V::set1(static_cast<typename V::T>(args.scale));
    ATTN_UNROLL
    for (int i = 0; i < MT; ++i) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) {
        if constexpr (Dot::kPack > 1 && Epilogue::kScaled) c[i][v] = V::mul(c[i][v], scale);
        if constexpr (Epilogue::kLimited) c[i][v] = V::min(highest, c[i][v]);
      }
    }
    epilogue.template apply<MT>(key, c);
  }
};

template <class Dot, int NV, class Epilogue>
inline __attribute__((always_inline)) void for_scores(const ScoresArgs& args, const Epilogue& epilogue) {
  for_tiles<Dot::Acc::kTile>(0, args.count, ScoresTile<Dot, NV, Epilogue>{args, epilogue});
}

/// Maxima stay in memory: in registers, they would push accumulators out of the tile.
template <class V, int NV>
struct StoreScores {
  static constexpr bool kLimited = true, kScaled = true;
  using T = typename V::T;
  T* scores;
  T* maximum;  // null = not wanted

  template <int MT>
  inline __attribute__((always_inline)) void apply(int64_t key, const typename V::Reg (&c)[MT][NV]) const {
    ATTN_UNROLL
    for (int i = 0; i < MT; ++i) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) V::store(scores + ((key + i) * NV + v) * V::W, c[i][v]);
    }
    if (!maximum) return;
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) {
      typename V::Reg top = V::load(maximum + v * V::W);
      ATTN_UNROLL
      for (int i = 0; i < MT; ++i) top = V::max(top, c[i][v]);
      V::store(maximum + v * V::W, top);
    }
  }
};

template <class Dot>
struct Scores {
  using V = typename Dot::Acc;
  using T = typename V::T;
  const ScoresArgs& args;
  template <int NV>
  void run() const {
    for_scores<Dot, NV>(args, StoreScores<V, NV>{static_cast<T*>(args.scores), static_cast<T*>(args.maximum)});
  }
};

template <class Dot>
void scores(const ScoresArgs& args) {
  for_width<Dot::Acc::W, Dot::kPanelVectors>(args.width, Scores<Dot>{args});
}

// ----------------------------------------------------------------------------------------------------------- values

template <class Dot, int NV>
struct ValuesTile {
  using V = typename Dot::Acc;
  using T = typename V::T;
  const ValuesArgs& args;

  template <int MT>
  void run(int64_t d) const {
    T* out = static_cast<T*>(args.out) + d * NV * V::W;
    typename V::Reg c[MT][NV];
    ATTN_UNROLL
    for (int i = 0; i < MT; ++i) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) c[i][v] = V::load(out + (i * NV + v) * V::W);
    }
    const auto* values = static_cast<const typename Dot::Elem*>(args.values) + d * Dot::kPack;
    tile<Dot, NV, MT>(values, Dot::kPack, Dot::kPack * args.value_stride,
                      static_cast<const typename Dot::Elem*>(args.weights), NV * V::W * Dot::kPack,
                      steps_of(args.count, Dot::kPack), c);
    ATTN_UNROLL
    for (int i = 0; i < MT; ++i) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) V::store(out + (i * NV + v) * V::W, c[i][v]);
    }
  }
};

template <class Dot>
struct Values {
  const ValuesArgs& args;
  template <int NV>
  void run() const {
    for_tiles<Dot::Acc::kTile>(0, args.depth, ValuesTile<Dot, NV>{args});
  }
};

template <class Dot>
void values(const ValuesArgs& args) {
  for_width<Dot::Acc::W, Dot::kPanelVectors>(args.width, Values<Dot>{args});
}

// ------------------------------------------------------------------------------------------------------------ outer

template <class Dot, int NV>
struct OuterTile {
  using V = typename Dot::Acc;
  using T = typename V::T;
  const OuterArgs& args;
  int64_t column;

  template <int MT>
  void run(int64_t key) const {
    T* out = static_cast<T*>(args.out) + key * args.x_stride + column;
    typename V::Reg c[MT][NV];
    ATTN_UNROLL
    for (int i = 0; i < MT; ++i) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) c[i][v] = V::load(out + i * args.x_stride + v * V::W);
    }
    for (int n = 0; n < args.panel_count; ++n) {
      const OuterPanel& panel = args.panels[n];
      tile<Dot, NV, MT>(static_cast<const typename Dot::Elem*>(panel.weights) + key * panel.width, panel.width,
                        Dot::kPack, static_cast<const typename Dot::Elem*>(panel.x) + column * Dot::kPack,
                        args.x_stride * Dot::kPack, steps_of(panel.rows, Dot::kPack), c);
    }
    ATTN_UNROLL
    for (int i = 0; i < MT; ++i) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) V::store(out + i * args.x_stride + v * V::W, c[i][v]);
    }
  }
};

template <class Dot>
struct Outer {
  const OuterArgs& args;
  template <int NV>
  void run(int64_t vector) const {
    for_tiles<Dot::Acc::kOuterKeys>(0, args.count, OuterTile<Dot, NV>{args, vector * Dot::Acc::W});
  }
};

template <class Dot>
void outer(const OuterArgs& args) {
  for_tiles<Dot::Acc::kOuterVectors>(0, args.x_stride / Dot::Acc::W, Outer<Dot>{args});
}

}  // namespace
}  // namespace attn::kernels
