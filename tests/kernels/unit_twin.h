// A twin in AVX-512 of the tile instructions that kernels/unit_amx.h names, for tests on processors without them.
//
// A product is what the hardware does, found by comparing millions of results; a NaN may have another payload. For each
// element of C
//   even = odd = 0;  for p = 0 .. 15:  even = fma(A[m][2p], B[p][2n], even);  odd = fma(A[m][2p+1], B[p][2n+1], odd)
//   C[m][n] += even + odd
// Subnormal numbers, operands and results, count as 0 with their sign, in every mode of the processor.
#pragma once

#include <immintrin.h>

#include "kernels/table.h"

namespace attn::kernels {
namespace {

struct TwinTile {
  alignas(64) char bytes[16][64];
};

struct TwinUnit {
  static constexpr int kElement = kBfloat16;

  static TwinTile& tile(int t) {
    static thread_local TwinTile tiles[8];
    return tiles[t];
  }
  /// Tile instructions outside of enter() and leave() are a mistake that the hardware answers with a signal.
  static bool& configured() {
    static thread_local bool yes = false;
    return yes;
  }
  static void check() {
    if (!configured()) __builtin_trap();
  }
  static void configure(void* before) {
    *static_cast<bool*>(before) = configured();
    configured() = true;
    for (int t = 0; t < 8; ++t) __builtin_memset(&tile(t), 0xff, sizeof(TwinTile));  // NaN
  }
  static void restore(const void* before) { configured() = *static_cast<const bool*>(before); }

  static void fence() {}
  template <int kTile>
  static void zero() {
    check();
    __builtin_memset(&tile(kTile), 0, sizeof(TwinTile));
  }
  template <int kTile>
  static void load(const void* p, int64_t stride) {
    load_rows(tile(kTile), p, stride);
  }
  template <int kTile>
  static void stream(const void* p, int64_t stride) {
    load_rows(tile(kTile), p, stride);
  }
  template <int kTile>
  static void store(void* p, int64_t stride) {
    store_rows(tile(kTile), p, stride);
  }
  template <int kSum, int kA, int kB>
  static void multiply() {
    add_product<TwinUnit>(tile(kSum), tile(kA), tile(kB));
  }
  static void store_bf16(void* p, __m512 first, __m512 second) {
    F32::store_bf16(static_cast<uint16_t*>(p), first);
    F32::store_bf16(static_cast<uint16_t*>(p) + F32::W, second);
  }
  /// The first and the second numbers of pairs.
  static __m512 first(__m512i pairs) { return flushed(_mm512_slli_epi32(pairs, 16)); }
  static __m512 second(__m512i pairs) {
    return flushed(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }

 protected:
  // Not inline: the kernels have hundreds of them.
  __attribute__((noinline)) static void load_rows(TwinTile& t, const void* p, int64_t stride) {
    check();
    for (int r = 0; r < 16; ++r) __builtin_memcpy(t.bytes[r], static_cast<const char*>(p) + r * stride, 64);
  }
  __attribute__((noinline)) static void store_rows(const TwinTile& t, void* p, int64_t stride) {
    check();
    for (int r = 0; r < 16; ++r) __builtin_memcpy(static_cast<char*>(p) + r * stride, t.bytes[r], 64);
  }
  /// 0 with its sign for what is subnormal.
  static __m512 flushed(__m512i bits) {
    const __mmask16 normal = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
    return _mm512_castsi512_ps(
        _mm512_mask_and_epi32(bits, static_cast<__mmask16>(~normal), bits, _mm512_set1_epi32(INT32_MIN)));
  }
  static __m512 flushed(__m512 x) { return flushed(_mm512_castps_si512(x)); }
  /// A row of results a vector.
  template <class Pairs>
  __attribute__((noinline)) static void add_product(TwinTile& sum, const TwinTile& left, const TwinTile& right) {
    check();
    for (int m = 0; m < 16; ++m) {
      __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
      for (int p = 0; p < 16; ++p) {
        int pair;
        __builtin_memcpy(&pair, left.bytes[m] + 4 * p, sizeof pair);
        const __m512i a = _mm512_set1_epi32(pair), b = _mm512_load_si512(right.bytes[p]);
        even = flushed(_mm512_fmadd_ps(Pairs::first(a), Pairs::first(b), even));
        odd = flushed(_mm512_fmadd_ps(Pairs::second(a), Pairs::second(b), odd));
      }
      const __m512 both = flushed(_mm512_add_ps(even, odd)), before = flushed(_mm512_load_ps(sum.bytes[m]));
      _mm512_store_ps(sum.bytes[m], flushed(_mm512_add_ps(before, both)));
    }
  }
};

/// tdpfp16ps, as Intel's manual defines it: the same sums, and float16 numbers that are subnormal count.
struct TwinFp16Unit : TwinUnit {
  static constexpr int kElement = kFloat16;
  template <int kSum, int kA, int kB>
  static void multiply() {
    add_product<TwinFp16Unit>(tile(kSum), tile(kA), tile(kB));
  }
  static __m512 first(__m512i pairs) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs)); }
  static __m512 second(__m512i pairs) { return first(_mm512_srli_epi32(pairs, 16)); }
};

}  // namespace
}  // namespace attn::kernels
