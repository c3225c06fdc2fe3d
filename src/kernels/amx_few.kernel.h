// Decode on matrix tiles: up to 16 rows against bfloat16 keys and values in place.
//
//   scores   as for many rows: S^T = K Q^T, with keys as the rows of A
//   values   O[row][d] += sum_key P[key][row] V[key, d]     A = weights, transposed here;  B = values, paired here
// A tile adds the products of 32 keys in the order of its pairs, whichever side a factor is on: rows get the bits that
// the kernels for many rows give them.
//
// Loops: 64 dims, whose sums stay in four tiles; the keys in steps of 32, of which rows 2t and 2t + 1 are interleaved,
// 16 dims at a time. Nothing is packed ahead: a value is used once. Measured where tiles are (prototype, 8 rows, 32768
// keys): 71 % of a plain read's bandwidth, in place of 53 to 61 with widened numbers; asking ahead for keys or values
// gained nothing. Requires: runs of keys that begin at multiples of 32; out is [16][depth rounded up to 16].
#pragma once

#include "kernels/amx_products.kernel.h"
#include "kernels/few.kernel.h"

namespace attn::kernels {
namespace {

/// Weights of 32 keys, [16 pairs][16 rows][2], as rows of pairs. Keys from `count` on weigh 0.
inline void weights_by_row(const uint16_t* weights, int64_t count, char* tile) {
  F32::Reg pairs[F32::W];
  ATTN_UNROLL
  for (int t = 0; t < F32::W; ++t) pairs[t] = 2 * t < count ? _mm512_load_ps(weights + t * 2 * F32::W) : F32::zero();
  F32::transpose(pairs);
  ATTN_UNROLL
  for (int r = 0; r < F32::W; ++r) _mm512_store_ps(tile + 64 * r, pairs[r]);
}

/// 16 dims of 32 rows of values, interleaved by pairs; 0 beyond `count` rows and `dims` dims.
inline void values_by_pair(const uint16_t* values, int64_t stride, int64_t count, int64_t dims, char* tile) {
  const __mmask16 some = dims >= F32::W ? __mmask16(0xffff) : static_cast<__mmask16>((1u << dims) - 1);
  ATTN_UNROLL
  for (int t = 0; t < kTileRows; ++t)
    _mm512_store_si512(tile + 64 * t, row_pairs(values + 2 * t * stride, stride, count - 2 * t, some));
}

template <class Unit>
struct TileFewValues {
  const ValuesArgs& args;
  const char* weights;  // of each 32 keys a tile

  /// C tiles of sums, 16 dims each.
  template <int C>
  void dims(int64_t d) const {
    alignas(64) char pairs[C][kTileBytes];
    const int64_t row = whole_steps(args.depth, F32::W) * 4;
    char* out = static_cast<char*>(args.out) + d * 4;
    for_tile<C>([&](auto t) { Unit::template load<t>(out + t * 64, row); });
    for (int64_t key = 0; key < args.count; key += kTileSum) {
      const uint16_t* values = static_cast<const uint16_t*>(args.values) + key * args.value_stride + d;
      for (int t = 0; t < C; ++t)
        values_by_pair(values + t * F32::W, args.value_stride, args.count - key, args.depth - d - t * F32::W, pairs[t]);
      Unit::fence();
      Unit::template load<4>(weights + key / kTileSum * kTileBytes, 64);
      for_tile<C>([&](auto t) {
        constexpr int kPairs = 5 + t % 3;
        Unit::template load<kPairs>(pairs[t], 64);
        Unit::template multiply<t, 4, kPairs>();
      });
    }
    for_tile<C>([&](auto t) { Unit::template store<t>(out + t * 64, row); });
  }

 private:
  template <int n>
  struct Constant {
    constexpr operator int() const { return n; }
  };
  template <int C, int t = 0, class Body>
  static inline __attribute__((always_inline)) void for_tile(const Body& body) {
    body(Constant<t>{});
    if constexpr (t + 1 < C) for_tile<C, t + 1>(body);
  }
};

template <class Unit>
void tile_values_few(const ValuesArgs& args) {
  alignas(64) char weights[kMaxBlockKeys / kTileSum][kTileBytes];
  for (int64_t key = 0; key < args.count; key += kTileSum)
    weights_by_row(static_cast<const uint16_t*>(args.weights) + key * F32::W, args.count - key,
                   weights[key / kTileSum]);
  Unit::fence();
  const TileFewValues<Unit> values{args, weights[0]};
  int64_t d = 0;
  for (; d + 3 * F32::W < args.depth; d += 4 * F32::W) values.template dims<4>(d);
  for (; d + F32::W < args.depth; d += 2 * F32::W) values.template dims<2>(d);
  if (d < args.depth) values.template dims<1>(d);
}

}  // namespace
}  // namespace attn::kernels
