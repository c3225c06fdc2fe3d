// AVX2 + FMA + F16C vectors: 8 floats, 4 doubles, 4 64-bit words. A mask is a vector of all-ones and all-zeros lanes.
#pragma once

#include <immintrin.h>

#include "kernels/portable.h"

namespace attn::kernels {
namespace {

struct F32 {
  using T = float;
  using Reg = __m256;
  using Mask = __m256;
  static constexpr int W = 8;
  static constexpr int kTile = 4;  // 4 x 3 accumulators, 3 lanes, 1 broadcast: all 16 registers
  static constexpr int kOuterKeys = 4;
  static constexpr int kOuterVectors = 3;
  static constexpr int kFewRows = 4;
  static constexpr int kFewAccumulators = 8;  // rows x vectors
  static constexpr bool kAcross = true;       // few rows are quicker with dims in the lanes

  static Reg load(const T* p) { return _mm256_load_ps(p); }
  static Reg loadu(const T* p) { return _mm256_loadu_ps(p); }
  static void store(T* p, Reg a) { _mm256_store_ps(p, a); }
  static void storeu(T* p, Reg a) { _mm256_storeu_ps(p, a); }
  static Reg set1(T x) { return _mm256_set1_ps(x); }
  static Reg zero() { return _mm256_setzero_ps(); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
  static Reg min(Reg a, Reg b) { return _mm256_min_ps(a, b); }
  static Reg abs(Reg a) { return _mm256_andnot_ps(set1(-0.0f), a); }
  static Reg sqrt(Reg a) { return _mm256_sqrt_ps(a); }
  static Reg round(Reg a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  /// a 2^n for whole n from -126 to 127.
  static Reg scale_by_power(Reg a, Reg n) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return mul(a, _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_castps_si256(set1(1.0f)))));
  }
  static T sum(Reg a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
  }
  static T largest(Reg a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
  }
  /// Lanes 0 .. n - 1 alone, the others 0.
  static Reg load_part(const T* p, int64_t n) {
    return _mm256_maskload_ps(p, _mm256_castps_si256(mask((uint64_t{1} << n) - 1)));
  }
  static void store_part(T* p, int64_t n, Reg a) {
    _mm256_maskstore_ps(p, _mm256_castps_si256(mask((uint64_t{1} << n) - 1)), a);
  }
  /// Lanes 1, 0, 3, 2, ...
  static Reg swap_pairs(Reg a) { return _mm256_permute_ps(a, 0xb1); }

  static Mask mask(uint64_t bits) {
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, lane), lane));
  }
  static Mask greater(Reg a, Reg b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
  static Mask equal(Reg a, Reg b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
  static uint64_t bits(Mask m) { return static_cast<uint64_t>(_mm256_movemask_ps(m)); }
  static Reg select(Mask m, Reg a, Reg b) { return _mm256_blendv_ps(b, a, m); }

  /// Below 2^-126 the result is 0; NaN stays NaN (max and the comparison let it through).
  static Reg exp2(Reg x) {
    const Reg low = set1(-126.0f), magic = set1(0x1.8p23f);
    const Reg clamped = _mm256_max_ps(low, x);
    const Reg shifted = add(clamped, magic);
    const Reg n = sub(shifted, magic);
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    const Reg scale = _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_castps_si256(set1(1.0f))));
    const Reg result = mul(exp2_polynomial<F32>(sub(clamped, n)), scale);
    return _mm256_and_ps(_mm256_cmp_ps(x, low, _CMP_NLT_UQ), result);
  }

  static void transpose(Reg (&a)[W]) { transpose_by_interleaving<F32>(a); }
  static Reg sums(Reg (&a)[W]) { return sums_by_transposing<F32>(a); }
  static Reg interleave_lo(Reg a, Reg b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
  static Reg interleave_hi(Reg a, Reg b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }

  static Reg load_bf16(const uint16_t* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  static Reg load_f16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Reg load_int8(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static void store_bf16(uint16_t* p, Reg a) {
    const __m256i x = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(x, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i out = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(out), _mm256_extracti128_si256(out, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }
  static void store_f16(uint16_t* p, Reg a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  }
};

struct F64 {
  using T = double;
  using Reg = __m256d;
  using Mask = __m256d;
  static constexpr int W = 4;
  static constexpr int kTile = 4;
  static constexpr int kOuterKeys = 4;
  static constexpr int kOuterVectors = 3;

  static Reg load(const T* p) { return _mm256_load_pd(p); }
  static Reg loadu(const T* p) { return _mm256_loadu_pd(p); }
  static void store(T* p, Reg a) { _mm256_store_pd(p, a); }
  static void storeu(T* p, Reg a) { _mm256_storeu_pd(p, a); }
  static Reg set1(T x) { return _mm256_set1_pd(x); }
  static Reg zero() { return _mm256_setzero_pd(); }
  static Reg add(Reg a, Reg b) { return _mm256_add_pd(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm256_sub_pd(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm256_mul_pd(a, b); }
  static Reg div(Reg a, Reg b) { return _mm256_div_pd(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_pd(a, b, c); }
  static Reg max(Reg a, Reg b) { return _mm256_max_pd(a, b); }
  static Reg min(Reg a, Reg b) { return _mm256_min_pd(a, b); }
  static Reg abs(Reg a) { return _mm256_andnot_pd(set1(-0.0), a); }
  static Reg sqrt(Reg a) { return _mm256_sqrt_pd(a); }
  static Reg round(Reg a) { return _mm256_round_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static Reg scale_by_power(Reg a, Reg n) {
    const __m256i exponent = _mm256_slli_epi64(_mm256_cvtepi32_epi64(_mm256_cvtpd_epi32(n)), 52);
    return mul(a, _mm256_castsi256_pd(_mm256_add_epi64(exponent, _mm256_castpd_si256(set1(1.0)))));
  }
  static T sum(Reg a) {
    const __m128d x = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(x, _mm_unpackhi_pd(x, x)));
  }
  static T largest(Reg a) {
    const __m128d x = _mm_max_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_max_sd(x, _mm_unpackhi_pd(x, x)));
  }
  static Reg load_part(const T* p, int64_t n) {
    return _mm256_maskload_pd(p, _mm256_castpd_si256(mask((uint64_t{1} << n) - 1)));
  }
  static void store_part(T* p, int64_t n, Reg a) {
    _mm256_maskstore_pd(p, _mm256_castpd_si256(mask((uint64_t{1} << n) - 1)), a);
  }
  static Reg swap_pairs(Reg a) { return _mm256_permute_pd(a, 5); }
  static Reg load_f32(const float* p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
  static Reg load_bf16(const uint16_t* p) {
    const __m128i x = _mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(x, 16)));
  }
  static Reg load_f16(const uint16_t* p) {
    return _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }

  static Mask mask(uint64_t bits) {
    const __m256i lane = _mm256_setr_epi64x(1, 2, 4, 8);
    const __m256i all = _mm256_set1_epi64x(static_cast<long long>(bits));
    return _mm256_castsi256_pd(_mm256_cmpeq_epi64(_mm256_and_si256(all, lane), lane));
  }
  static Mask greater(Reg a, Reg b) { return _mm256_cmp_pd(a, b, _CMP_GT_OQ); }
  static Mask equal(Reg a, Reg b) { return _mm256_cmp_pd(a, b, _CMP_EQ_OQ); }
  static uint64_t bits(Mask m) { return static_cast<uint64_t>(_mm256_movemask_pd(m)); }
  static Reg select(Mask m, Reg a, Reg b) { return _mm256_blendv_pd(b, a, m); }

  static Reg exp2(Reg x) {
    const Reg low = set1(-1022.0), magic = set1(0x1.8p52);
    const Reg clamped = _mm256_max_pd(low, x);
    const Reg shifted = add(clamped, magic);
    const Reg n = sub(shifted, magic);
    const __m256i exponent = _mm256_slli_epi64(_mm256_castpd_si256(shifted), 52);
    const Reg scale = _mm256_castsi256_pd(_mm256_add_epi64(exponent, _mm256_castpd_si256(set1(1.0))));
    const Reg result = mul(exp2_polynomial<F64>(sub(clamped, n)), scale);
    return _mm256_and_pd(_mm256_cmp_pd(x, low, _CMP_NLT_UQ), result);
  }

  static void transpose(Reg (&a)[W]) { transpose_by_interleaving<F64>(a); }
  static Reg interleave_lo(Reg a, Reg b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
  static Reg interleave_hi(Reg a, Reg b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
};

struct U64 {
  using Reg = __m256i;
  static constexpr int W = 4;
  static Reg load(const uint64_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }
  static Reg set1(uint64_t x) { return _mm256_set1_epi64x(static_cast<long long>(x)); }
  static Reg add(Reg a, Reg b) { return _mm256_add_epi64(a, b); }
  static Reg mul32(Reg a, Reg b) { return _mm256_mul_epu32(a, b); }
  static Reg high32(Reg a) { return _mm256_srli_epi64(a, 32); }
  static Reg low32(Reg a) { return _mm256_and_si256(a, set1(0xffffffffu)); }
  static Reg bit_xor(Reg a, Reg b) { return _mm256_xor_si256(a, b); }
  /// Bit j = bytes[j] != 0.
  static uint64_t nonzero64(const uint8_t* bytes) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + 32));
    const auto zeros = [](__m256i x) {
      return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(x, _mm256_setzero_si256())));
    };
    return ~(static_cast<uint64_t>(zeros(high)) << 32 | zeros(low));
  }
  static uint64_t at_least(Reg a, Reg b) {  // for values below 2^63: the sign of a - b
    return static_cast<uint64_t>(~_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_sub_epi64(a, b))) & 15);
  }
};

/// Products of codes for quantized.kernel.h, in pairs of 16 bits, which are exact: vpmaddubsw would saturate. Of a
/// row's four codes a, b, c, d there are a, c, b, d.
struct Code {
  using Int = __m256i;
  struct Codes {
    __m256i even, odd;
  };
  static constexpr int kRows = 2;  // 2 x 2 sums of either kind and 4 vectors of codes: 12 of 16 registers
  static constexpr int kBytes = 8;
  static Int set1(int32_t x) { return _mm256_set1_epi32(x); }
  static Codes pairs(__m256i bytes) {
    return {_mm256_and_si256(bytes, _mm256_set1_epi16(255)), _mm256_srli_epi16(bytes, 8)};
  }
  template <int kBits>
  static Codes load(const uint8_t* p, int half) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (kBits == 8) return pairs(bytes);
    else return pairs(_mm256_and_si256(half ? _mm256_srli_epi16(bytes, 4) : bytes, _mm256_set1_epi8(15)));
  }
  struct Row {
    __m256i even, odd;
  };
  static Row broadcast(const char* row) {
    int32_t even, odd;
    __builtin_memcpy(&even, row, 4);
    __builtin_memcpy(&odd, row + 4, 4);
    return {_mm256_set1_epi32(even), _mm256_set1_epi32(odd)};
  }
  static Int step(const Codes& codes, const Row& x, Int sum) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(codes.even, x.even));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(codes.odd, x.odd));
    asm("" : "+x"(sum));  // g++ would add products of several steps first, and keep some on the stack
    return sum;
  }
  static __m256 to_float(Int x) { return _mm256_cvtepi32_ps(x); }
  /// Whole numbers of at most 127 in 8 lanes, four of them every `stride` bytes.
  static void store(__m256 codes, char* out, int64_t stride) {
    const __m256i whole = _mm256_cvtps_epi32(codes);
    __m128i x = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    x = _mm_shufflehi_epi16(_mm_shufflelo_epi16(x, 0xd8), 0xd8);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out), x);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + stride), _mm_unpackhi_epi64(x, x));
  }
};

}  // namespace
}  // namespace attn::kernels
