// bfloat16 dot products (vdpbf16ps): two 16-bit products a lane and instruction, accumulated in float32.
//
// Computes the same products as gemm.kernel.h and few.kernel.h. What is broadcast is a pair of neighbours in memory;
// what sits in lanes is packed by pairs:
//   query panel  [D/2][width][2]      pairs over d       keys: rows as they are, D even
//   weights      [count/2][width][2]  pairs over keys    values: [count/2][depth][2]
//   outer        weights [count][width] in bf16: pairs over rows; x: [rows/2][depth][2]
// An odd last element has the partner 0. The scale goes on the scores, so that q enters the products unrounded.
// Loops: as there, two elements a step.
// Requires: AVX-512 BF16; included after vec_avx512.h by the one translation unit that is compiled for it.
#pragma once

#include "kernels/few.kernel.h"
#include "kernels/grad.kernel.h"

namespace attn::kernels {
namespace {

inline __m512bh as_bf16(__m512i x) { return bit_cast<__m512bh>(x); }

inline __m512bh broadcast_pair(const uint16_t* p) {
  int pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return as_bf16(_mm512_set1_epi32(pair));
}

struct Bf16Dot {
  using Acc = F32;
  using Elem = uint16_t;
  using Key = Elem;
  using Operand = __m512bh;
  static constexpr int kPack = 2;
  static constexpr int kPanelVectors = 3;
  static constexpr int kScaleBytes = 0;
  static __m512 load_key(const Key* p) { return _mm512_loadu_ps(p); }
  static Operand broadcast(const Elem* p) { return broadcast_pair(p); }
  static Operand load(const Elem* p) { return as_bf16(_mm512_load_si512(p)); }
  static Operand operand(__m512 r) { return as_bf16(_mm512_castps_si512(r)); }
  static __m512 step(Operand b, Operand x, __m512 c) { return _mm512_dpbf16_ps(c, b, x); }
};

/// a in the low, b in the high half of each lane, rounded to bf16 with ties away from zero.
inline __m512i pack_pair(__m512 a, __m512 b) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(a), half), 16);
  const __m512i high = _mm512_add_epi32(_mm512_castps_si512(b), half);
  constexpr int kHighMaskedOrLow = 0xEC;  // (first & third) | second
  return _mm512_ternarylogic_epi32(high, low, _mm512_set1_epi32(static_cast<int>(0xffff0000u)), kHighMaskedOrLow);
}

template <>
struct WeightFormat<Bf16Dot> {
  using Weight = uint16_t;
  static void store(Weight* weights, int64_t key, int width, int lane, __m512 even, __m512 odd) {
    _mm512_store_si512(weights + key * width + 2 * lane, pack_pair(even, odd));
  }
  static void store_last(Weight* weights, int64_t key, int width, int lane, __m512 even) {
    store(weights, key, width, lane, even, _mm512_setzero_ps());
  }
  static double load(const void* weights, int64_t key, int width, int lane) {
    return from_bf16(static_cast<const Weight*>(weights)[(key / 2 * width + lane) * 2 + key % 2]);
  }
};

template <>
struct OuterFormat<Bf16Dot> {
  static constexpr bool kSeparate = true;
  using Weight = uint16_t;
  template <int NV>
  static void store(Weight* weights, int64_t key, const __m512 (&value)[NV]) {
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v)
      _mm256_store_si256(reinterpret_cast<__m256i*>(weights + (key * NV + v) * F32::W),
                         bit_cast<__m256i>(_mm512_cvtneps_pbh(value[v])));
  }
  static double load(const void* weights, int64_t key, int width, int lane) {
    return from_bf16(static_cast<const Weight*>(weights)[key * width + lane]);
  }
};

// ---------------------------------------------------------------------------------------------------------- packing

inline const uint16_t* bf16_row(const RowsArgs& args, int64_t r) { return static_cast<const uint16_t*>(args.row[r]); }

/// Query panel [D/2][width][2]; dense_stride is the width.
void pack_query_bf16(const RowsArgs& args) {
  uint16_t* panel = static_cast<uint16_t*>(args.dense);
  const int64_t width = args.dense_stride;
  const int64_t whole = args.stride == 1 ? args.n / 32 * 32 : 0;
  ask_rows<kBfloat16>(args, 0, args.rows);
  for (int64_t r0 = 0; r0 < width; r0 += 16) {
    for (int64_t j = 0; j < whole; j += 32) {
      __m512 block[16];
      ATTN_UNROLL
      for (int r = 0; r < 16; ++r)
        block[r] = r0 + r < args.rows ? _mm512_loadu_ps(bf16_row(args, r0 + r) + j) : _mm512_setzero_ps();
      F32::transpose(block);
      ATTN_UNROLL
      for (int i = 0; i < 16; ++i) _mm512_store_ps(panel + ((j / 2 + i) * width + r0) * 2, block[i]);
    }
    for (int64_t r = r0; r < r0 + 16; ++r) {
      for (int64_t j = whole; j < (args.n + 1) / 2 * 2; ++j) {
        const bool inside = r < args.rows && j < args.n;
        panel[(j / 2 * width + r) * 2 + j % 2] = inside ? bf16_row(args, r)[j * args.stride] : uint16_t{0};
      }
    }
  }
}

/// Pairs of rows interleaved, [rows/2][dense_stride][2], padded with zeros.
void pair_rows_bf16(const RowsArgs& args) {
  const bool vectors = args.stride == 1 && !args.finite_only;
  const int64_t whole = vectors ? args.n / 32 * 32 : 0;
  RowsAhead<kBfloat16> ahead(args);
  for (int64_t r = 0; r < args.rows; r += 2) {
    ahead.step(2);
    uint16_t* out = static_cast<uint16_t*>(args.dense) + r * args.dense_stride;
    const uint16_t* even = bf16_row(args, r);
    const uint16_t* odd = r + 1 < args.rows ? bf16_row(args, r + 1) : nullptr;
    int64_t j = 0;
    for (; j < whole; j += 32) {
      const __m512i a = _mm512_loadu_si512(even + j);
      const __m512i b = odd ? _mm512_loadu_si512(odd + j) : _mm512_setzero_si512();
      const __m512i a_lo = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(a));
      const __m512i b_lo = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(b));
      const __m512i a_hi = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(a, 1));
      const __m512i b_hi = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(b, 1));
      _mm512_storeu_si512(out + 2 * j, _mm512_or_si512(a_lo, _mm512_slli_epi32(b_lo, 16)));
      _mm512_storeu_si512(out + 2 * j + 32, _mm512_or_si512(a_hi, _mm512_slli_epi32(b_hi, 16)));
    }
    for (; vectors && j + 16 <= args.n; j += 16) {
      const auto load = [j](const uint16_t* row) {
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + j)));
      };
      const __m512i b = odd ? load(odd) : _mm512_setzero_si512();
      _mm512_storeu_si512(out + 2 * j, _mm512_or_si512(load(even), _mm512_slli_epi32(b, 16)));
    }
    for (; j < args.n; ++j) {
      out[2 * j] = finite_bits<kBfloat16>(args, even[j * args.stride]);
      out[2 * j + 1] = odd ? finite_bits<kBfloat16>(args, odd[j * args.stride]) : uint16_t{0};
    }
    for (; j < args.dense_stride; ++j) out[2 * j] = out[2 * j + 1] = 0;
  }
}

// ----------------------------------------------------------------------------------------------------------- decode

// Blocks of 32 dims of two value rows become pairs by two shuffles within 128-bit quarters. The accumulators of a block
// therefore hold its dims in another order: vector 0 dims 0-3, 8-11, 16-19, 24-27, vector 1 the rest.
// unpack_out_few_bf16 puts them right. What is left of the depth goes 16 dims at a time, in order.

/// VT / 2 blocks of 32 dims.
template <int VT>
inline void load_value_pairs(const uint16_t* even, const uint16_t* odd, __m512bh (&x)[VT]) {
  ATTN_UNROLL
  for (int v = 0; v < VT; v += 2) {
    const __m512i a = _mm512_loadu_si512(even + 16 * v);
    const __m512i b = odd ? _mm512_loadu_si512(odd + 16 * v) : _mm512_setzero_si512();
    x[v] = as_bf16(_mm512_unpacklo_epi16(a, b));
    x[v + 1] = as_bf16(_mm512_unpackhi_epi16(a, b));
  }
}

/// The first n < 32 dims: 16 from `even` on, in order.
inline __m512bh load_value_tail(const uint16_t* even, const uint16_t* odd, int64_t n) {
  const __mmask16 m = n >= 16 ? __mmask16(0xffff) : static_cast<__mmask16>((1u << n) - 1);
  const __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, even));
  const __m512i b = odd ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, odd)) : _mm512_setzero_si512();
  return as_bf16(_mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
}

/// How values_few takes plain bf16 rows.
struct FewValuePairs {
  using Dot = Bf16Dot;
  using Value = uint16_t;
  static constexpr int kLeast = 2;
  static constexpr int kScaleBytes = 0;

  template <int VT>
  static void load(const uint16_t* values, int64_t stride, int64_t keys, int64_t depth, __m512bh (&x)[VT]) {
    const uint16_t* odd = keys > 1 ? values + stride : nullptr;
    if constexpr (VT == 1) x[0] = load_value_tail(values, odd, depth);
    else load_value_pairs<VT>(values, odd, x);
  }
};

inline int64_t index_in_rows_bf16(int64_t d, int64_t row, int64_t depth, int64_t /*width*/) {
  const int64_t stride = whole_steps(depth, 16);
  if (d >= depth / 32 * 32) return row * stride + d;
  const int64_t block = d / 32 * 32, quarter = d % 32 / 8, place = d % 8;
  return row * stride + block + quarter * 4 + (place < 4 ? place : 16 + place - 4);
}

/// unpack_out_few for the accumulators of values_few, whose blocks of 32 dims are put in order first.
void unpack_out_few_bf16(const RowsArgs& args) {
  const int64_t stride = whole_steps(args.n, 16);
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t d = 0; d + 32 <= args.n; d += 32) {
      float* block = static_cast<float*>(args.dense) + r * stride + d;
      const __m512 low = _mm512_load_ps(block), high = _mm512_load_ps(block + 16);
      _mm512_store_ps(block, _mm512_permutex2var_ps(low, first, high));
      _mm512_store_ps(block + 16, _mm512_permutex2var_ps(low, second, high));
    }
  }
  unpack_out_few<F32>(args);
}

/// The queries as they are, [rows][n rounded up to 32].
void pack_query_few_bf16(const RowsArgs& args) {
  RowsArgs rows = args;
  rows.dense_stride = whole_steps(args.n, 32);
  copy_rows<kBfloat16>(rows);
}

}  // namespace
}  // namespace attn::kernels
