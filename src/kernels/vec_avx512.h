// AVX-512 (F, BW, DQ, VL) vectors: 16 floats, 8 doubles, 8 64-bit words.
#pragma once

#include <immintrin.h>

#include "kernels/portable.h"

namespace attn::kernels {
namespace {

struct F32 {
  using T = float;
  using Reg = __m512;
  using Mask = __mmask16;
  static constexpr int W = 16;
  static constexpr int kTile = 8;       // 8 x 3 accumulators of 32 registers: 1.00 FMA a cycle on Zen 4
  static constexpr int kOuterKeys = 6;  // 6 x 4 accumulators
  static constexpr int kOuterVectors = 4;
  static constexpr int kFewRows = 8;
  static constexpr int kFewAccumulators = 16;  // rows x vectors
  static constexpr bool kAcross = false;       // few rows are quicker with dims in the lanes

  static Reg load(const T* p) { return _mm512_load_ps(p); }
  static Reg loadu(const T* p) { return _mm512_loadu_ps(p); }
  static void store(T* p, Reg a) { _mm512_store_ps(p, a); }
  static void storeu(T* p, Reg a) { _mm512_storeu_ps(p, a); }
  static Reg set1(T x) { return _mm512_set1_ps(x); }
  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static Reg min(Reg a, Reg b) { return _mm512_min_ps(a, b); }
  static Reg abs(Reg a) { return _mm512_abs_ps(a); }
  static Reg sqrt(Reg a) { return _mm512_sqrt_ps(a); }
  static Reg round(Reg a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  /// a 2^n for whole n.
  static Reg scale_by_power(Reg a, Reg n) { return _mm512_scalef_ps(a, n); }
  static T sum(Reg a) { return _mm512_reduce_add_ps(a); }
  static T largest(Reg a) { return _mm512_reduce_max_ps(a); }
  /// Lanes 0 .. n - 1 alone, the others 0.
  static Reg load_part(const T* p, int64_t n) { return _mm512_maskz_loadu_ps(mask((uint64_t{1} << n) - 1), p); }
  static void store_part(T* p, int64_t n, Reg a) { _mm512_mask_storeu_ps(p, mask((uint64_t{1} << n) - 1), a); }
  /// Lanes 1, 0, 3, 2, ...
  static Reg swap_pairs(Reg a) { return _mm512_permute_ps(a, 0xb1); }

  static Mask mask(uint64_t bits) { return static_cast<Mask>(bits); }
  static Mask greater(Reg a, Reg b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static Mask equal(Reg a, Reg b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  static uint64_t bits(Mask m) { return m; }
  static Reg select(Mask m, Reg a, Reg b) { return _mm512_mask_blend_ps(m, b, a); }

  static Reg exp2(Reg x) {
    const Reg n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_scalef_ps(exp2_polynomial<F32>(sub(x, n)), n);
  }

  /// 16 x 16 in 64 shuffles that need no index registers: pairs of rows, pairs of pairs, then 128-bit quarters.
  static void transpose(Reg (&a)[W]) {
    Reg b[W];
    ATTN_UNROLL
    for (int i = 0; i < W; i += 2) {
      b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    ATTN_UNROLL
    for (int i = 0; i < W; i += 4) {  // a[i + c] = column c of every quarter of rows i .. i + 3
      const auto pair = [&](int x, int y, bool high) {
        const __m512d p = _mm512_castps_pd(b[i + x]), q = _mm512_castps_pd(b[i + y]);
        return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(p, q) : _mm512_unpacklo_pd(p, q));
      };
      a[i] = pair(0, 2, false);
      a[i + 1] = pair(0, 2, true);
      a[i + 2] = pair(1, 3, false);
      a[i + 3] = pair(1, 3, true);
    }
    ATTN_UNROLL
    for (int c = 0; c < 4; ++c) {
      const Reg even_low = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x88);
      const Reg odd_low = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xdd);
      const Reg even_high = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x88);
      const Reg odd_high = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xdd);
      b[c] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
      b[8 + c] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
      b[4 + c] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
      b[12 + c] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
    }
    ATTN_UNROLL
    for (int i = 0; i < W; ++i) a[i] = b[i];
  }

  /// Lane i: the sum of the lanes of a[i]. Half the shuffles of a transpose: additions halve the vectors on the way.
  static Reg sums(Reg (&a)[W]) {
    Reg b[W / 4];
    ATTN_UNROLL
    for (int i = 0; i < W / 4; ++i) {  // every quarter of b[i] has sums of its quarter of a[4 i] .. a[4 i + 3]
      const Reg* x = a + 4 * i;
      const __m512d p = _mm512_castps_pd(add(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1])));
      const __m512d q = _mm512_castps_pd(add(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3])));
      b[i] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(p, q)), _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)));
    }
    const auto fold = [](Reg x, Reg y) {
      return add(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
    };
    return fold(fold(b[0], b[1]), fold(b[2], b[3]));
  }

  static Reg load_bf16(const uint16_t* p) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
  static Reg load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Reg load_int8(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static void store_bf16(uint16_t* p, Reg a) {
    const __m512i x = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(x, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    const __m512i out = _mm512_mask_or_epi32(rounded, nan, x, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(out, 16)));
  }
  static void store_f16(uint16_t* p, Reg a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  }
};

struct F64 {
  using T = double;
  using Reg = __m512d;
  using Mask = __mmask8;
  static constexpr int W = 8;
  static constexpr int kTile = 8;
  static constexpr int kOuterKeys = 6;
  static constexpr int kOuterVectors = 4;
  static constexpr int kFewRows = 8;
  static constexpr int kFewAccumulators = 16;  // rows x vectors

  static Reg load(const T* p) { return _mm512_load_pd(p); }
  static Reg loadu(const T* p) { return _mm512_loadu_pd(p); }
  static void store(T* p, Reg a) { _mm512_store_pd(p, a); }
  static void storeu(T* p, Reg a) { _mm512_storeu_pd(p, a); }
  static Reg set1(T x) { return _mm512_set1_pd(x); }
  static Reg zero() { return _mm512_setzero_pd(); }
  static Reg add(Reg a, Reg b) { return _mm512_add_pd(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm512_sub_pd(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_pd(a, b); }
  static Reg div(Reg a, Reg b) { return _mm512_div_pd(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_pd(a, b, c); }
  static Reg max(Reg a, Reg b) { return _mm512_max_pd(a, b); }
  static Reg min(Reg a, Reg b) { return _mm512_min_pd(a, b); }
  static Reg abs(Reg a) { return _mm512_abs_pd(a); }
  static Reg sqrt(Reg a) { return _mm512_sqrt_pd(a); }
  static Reg round(Reg a) { return _mm512_roundscale_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static Reg scale_by_power(Reg a, Reg n) { return _mm512_scalef_pd(a, n); }
  static T sum(Reg a) { return _mm512_reduce_add_pd(a); }
  static T largest(Reg a) { return _mm512_reduce_max_pd(a); }
  static Reg load_part(const T* p, int64_t n) { return _mm512_maskz_loadu_pd(mask((uint64_t{1} << n) - 1), p); }
  static void store_part(T* p, int64_t n, Reg a) { _mm512_mask_storeu_pd(p, mask((uint64_t{1} << n) - 1), a); }
  static Reg swap_pairs(Reg a) { return _mm512_permute_pd(a, 0x55); }
  static Reg load_f32(const float* p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
  static Reg load_bf16(const uint16_t* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)));
  }
  static Reg load_f16(const uint16_t* p) {
    return _mm512_cvtps_pd(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }

  static Mask mask(uint64_t bits) { return static_cast<Mask>(bits); }
  static Mask greater(Reg a, Reg b) { return _mm512_cmp_pd_mask(a, b, _CMP_GT_OQ); }
  static Mask equal(Reg a, Reg b) { return _mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ); }
  static uint64_t bits(Mask m) { return m; }
  static Reg select(Mask m, Reg a, Reg b) { return _mm512_mask_blend_pd(m, b, a); }

  static Reg exp2(Reg x) {
    const Reg n = _mm512_roundscale_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_scalef_pd(exp2_polynomial<F64>(sub(x, n)), n);
  }

  static void transpose(Reg (&a)[W]) { transpose_by_interleaving<F64>(a); }
  static Reg interleave_lo(Reg a, Reg b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
  static Reg interleave_hi(Reg a, Reg b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
};

struct U64 {
  using Reg = __m512i;
  static constexpr int W = 8;
  static Reg load(const uint64_t* p) { return _mm512_load_si512(p); }
  static Reg set1(uint64_t x) { return _mm512_set1_epi64(static_cast<long long>(x)); }
  static Reg add(Reg a, Reg b) { return _mm512_add_epi64(a, b); }
  static Reg mul32(Reg a, Reg b) { return _mm512_mul_epu32(a, b); }
  static Reg high32(Reg a) { return _mm512_srli_epi64(a, 32); }
  static Reg low32(Reg a) { return _mm512_and_si512(a, set1(0xffffffffu)); }
  static Reg bit_xor(Reg a, Reg b) { return _mm512_xor_si512(a, b); }
  /// Bit j = bytes[j] != 0.
  static uint64_t nonzero64(const uint8_t* bytes) {
    const __m512i x = _mm512_loadu_si512(bytes);
    return _mm512_test_epi8_mask(x, x);
  }
  static uint64_t at_least(Reg a, Reg b) {  // for values below 2^63
    return static_cast<uint8_t>(~_mm512_movepi64_mask(_mm512_sub_epi64(a, b)));
  }
};

/// Products of codes for quantized.kernel.h, in pairs of 16 bits. Of a row's four codes a, b, c, d there are a, c, b,
/// d.
struct Code {
  using Int = __m512i;
  struct Codes {
    __m512i even, odd;
  };
  static constexpr int kRows = 6;  // 6 x 2 sums of either kind: 24 of 32 registers
  static constexpr int kBytes = 8;
  static Int set1(int32_t x) { return _mm512_set1_epi32(x); }
  static Codes pairs(__m512i bytes) {
    return {_mm512_and_si512(bytes, _mm512_set1_epi16(255)), _mm512_srli_epi16(bytes, 8)};
  }
  template <int kBits>
  static Codes load(const uint8_t* p, int half) {
    const __m512i bytes = _mm512_loadu_si512(p);
    if constexpr (kBits == 8) return pairs(bytes);
    else return pairs(_mm512_and_si512(half ? _mm512_srli_epi16(bytes, 4) : bytes, _mm512_set1_epi8(15)));
  }
  struct Row {
    __m512i even, odd;
  };
  static Row broadcast(const char* row) {
    int32_t even, odd;
    __builtin_memcpy(&even, row, 4);
    __builtin_memcpy(&odd, row + 4, 4);
    return {_mm512_set1_epi32(even), _mm512_set1_epi32(odd)};
  }
  static Int step(const Codes& codes, const Row& x, Int sum) {
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(codes.even, x.even));
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(codes.odd, x.odd));
    asm("" : "+v"(sum));  // g++ would add products of several steps first, and keep some on the stack
    return sum;
  }
  static __m512 to_float(Int x) { return _mm512_cvtepi32_ps(x); }
  /// Whole numbers of at most 127 in 16 lanes, four of them every `stride` bytes.
  static void store(__m512 codes, char* out, int64_t stride) {
    __m256i x = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(codes));
    x = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(x, 0xd8), 0xd8);
    alignas(32) char bytes[32];
    _mm256_store_si256(reinterpret_cast<__m256i*>(bytes), x);
    ATTN_UNROLL
    for (int i = 0; i < 4; ++i) __builtin_memcpy(out + i * stride, bytes + i * 8, 8);
  }
};

}  // namespace
}  // namespace attn::kernels
