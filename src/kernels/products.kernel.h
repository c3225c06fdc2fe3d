// Dense products on vectors: rows of A times a packed panel of B.
//
//   sums[i][n] (+)= sum_k a[i, k] b[k, n]      i < rows, n < width lanes
// A panel has the layout of a panel of queries, [steps][width][kPack], which pack_query makes of columns of B and
// outer_rows.pack of its rows. A is broadcast: element (i, step) is at a + i row_stride + step term_stride.
// Loops: tiles of rows, as in gemm.kernel.h; steps; vectors. Every sum runs through the terms of a call in order, from
// 0, and is then added to what was there: its bits depend on its row of A, its column of B and the cut of the terms
// alone. Panels of a 16-bit type are widened as they are loaded, which is exact. Each tile goes to its place in `out`
// as soon as it is complete: its stores overlap with the products of the next one. Requires: what PanelProductArgs
// says.
#pragma once

#include "kernels/finish.kernel.h"
#include "kernels/gemm.kernel.h"
#include "kernels/prefetch.h"

namespace attn::kernels {
namespace {

// The first tile of a call reads its panel from memory. Prefetching pays where the arithmetic of the tile takes about
// as long as the read: out-of-order execution then covers too few lines. With fewer rows the hardware prefetcher alone
// is faster. Panels for 8 rows are read with 26 GB/s, 22 without prefetching; for 4 rows with 20 and 29 (float32, one
// core of Zen 4).
constexpr int64_t kProductAheadBytes = 16384;

template <class Dot, int NV>
struct ProductTile {
  using V = typename Dot::Acc;
  using T = typename V::T;
  const PanelProductArgs& args;

  /// Short pieces of long rows, which the hardware does not prefetch.
  inline __attribute__((always_inline)) void prefetch_addends(int64_t row, int64_t rows) const {
    const ProductResult& to = args.result;
    if (to.addend)
      prefetch_rows(reinterpret_cast<uintptr_t>(to.addend), stored_bytes(to.out_type, args.columns),
                    stored_bytes(to.out_type, to.addend_stride), row, row + rows);
  }

  /// Numbers that are widened as they are loaded take instructions of their own.
  template <int MT>
  static constexpr bool kPrefetches = MT >= (sizeof(typename Dot::Key) < sizeof(typename Dot::Elem) ? 2 : 8);

  template <int MT, bool kPrefetch>
  inline __attribute__((always_inline)) void multiply(int64_t row, typename V::Reg (&c)[MT][NV]) const {
    constexpr int64_t kStep = NV * V::W * Dot::kPack;
    const auto* a = static_cast<const typename Dot::Elem*>(args.a) + row * args.row_stride;
    const auto* b = static_cast<const typename Dot::Key*>(args.panel);
    const int64_t row_stride = args.row_stride, term_stride = args.term_stride;
    for (int64_t s = steps_of(args.terms, Dot::kPack); s > 0; --s, a += term_stride, b += kStep) {
      if constexpr (kPrefetch)
        prefetch_rows(reinterpret_cast<uintptr_t>(b) + kProductAheadBytes, kStep * int64_t{sizeof(*b)}, 0, 0, 1);
      typename Dot::Operand lane[NV];
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) lane[v] = Dot::operand(Dot::load_key(b + v * V::W * Dot::kPack));
      ATTN_UNROLL
      for (int i = 0; i < MT; ++i) {
        const typename Dot::Operand x = Dot::broadcast(a + i * row_stride);
        ATTN_UNROLL
        for (int v = 0; v < NV; ++v) c[i][v] = Dot::step(x, lane[v], c[i][v]);
      }
    }
  }

  template <int MT>
  inline __attribute__((always_inline)) void run(int64_t row) const {
    typename V::Reg c[MT][NV];
    ATTN_UNROLL
    for (int i = 0; i < MT; ++i) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) c[i][v] = V::zero();
    }
    prefetch_addends(row, MT);
    if (kPrefetches<MT> && row == 0) multiply<MT, kPrefetches<MT>>(row, c);
    else multiply<MT, false>(row, c);
    T* sums = static_cast<T*>(args.sums) + row * args.sums_stride;
    ATTN_UNROLL
    for (int i = 0; i < MT; ++i) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) {
        T* sum = sums + i * args.sums_stride + v * V::W;
        V::store(sum, args.add ? V::add(V::load(sum), c[i][v]) : c[i][v]);
      }
    }
    const int64_t rows = args.result_rows - row < MT ? args.result_rows - row : MT;
    if (args.result.out) finish_rows<V>(args.result, sums, args.sums_stride, row, rows, 0, args.columns);
  }
};

template <class Dot>
struct PanelProduct {
  const PanelProductArgs& args;
  template <int NV>
  void run() const {
    for_tiles<Dot::Acc::kTile>(0, args.rows, ProductTile<Dot, NV>{args});
  }
};

template <class Dot>
void multiply_panel(const PanelProductArgs& args) {
  for_width<Dot::Acc::W, Dot::kPanelVectors>(args.width, PanelProduct<Dot>{args});
}

/// Multiply-adds of V, whatever the type of the panel.
template <class V>
void multiply_panel_of(const PanelProductArgs& args) {
  if constexpr (sizeof(typename V::T) == 4) {
    if (args.panel_type == kBfloat16) return multiply_panel<WideningDot<V, kBfloat16>>(args);
    if (args.panel_type == kFloat16) return multiply_panel<WideningDot<V, kFloat16>>(args);
  }
  multiply_panel<FmaDot<V>>(args);
}

}  // namespace
}  // namespace attn::kernels
