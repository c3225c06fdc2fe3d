// Numbers as sums of bfloat16 parts, packed for the products of amx_products.kernel.h.
//
//   x = x_1 + ... + x_P     P = 1: rounded to bfloat16; 2: exact for float16; 3: exact for float32
// A unit that multiplies float16 takes it as it is, in one part.
// A tile takes pairs of neighbours in the sum; its P parts are beside each other:
//   query    [part][n/2][width][2]         pairs over dims          keys    [row][part][n], n a multiple of 32
//   weights  [key/2][part][width][2]       pairs over keys          values  [key/32][n/16][part][16 dims][32 keys]
//   outer    weights [key][part][16][2]    pairs over rows          x       [16 rows][part][n][2]
// Pairs of dims are neighbours where 16-bit keys serve as they are in memory (kNear), else 16 dims apart, which needs
// no shuffles; so are pairs of rows, in panels of 16 rows with nothing. Rounding is half away from zero, by one integer
// addition.
//
// Tiles take subnormal parts as 0, and infinity is no sum of finite parts, so several parts have a range. Rows of
// queries and keys outside of it keep their numbers as they are, the two of a pair in the places of the first two
// parts, and a bit in a mask (after the query; after the first key of each 32): mend_scores() computes what meets
// them. Of values and outer rows, elements outside of the range are left out and added by values_non_finite,
// outer_non_finite. So nothing but its own operands decides how a result is computed. Loops: rows, 16 or 32 elements,
// parts. Requires: AVX-512; dense arrays 64-byte aligned. Nothing outside a row's n elements is read; what is packed
// beyond them, or beyond the rows, is 0.
#pragma once

#include "kernels/grad.kernel.h"
#include "kernels/operands.kernel.h"
#include "kernels/rows.kernel.h"

namespace attn::kernels {
namespace {

constexpr int kTileRows = 16;  // of a tile register: rows of A, columns of B, pairs of the sum
constexpr int kTileSum = 32;   // elements of a sum that one tile product takes
constexpr int kTileBytes = 1024;

/// The dot product of tiles: Unit has the instructions, P parts mean a number of type `type`.
template <class U, int P, int type>
struct TileDot {
  using Unit = U;
  using Acc = F32;
  static constexpr bool kTiles = true;
  static constexpr int kPanelVectors = 2;
  static constexpr int kType = type;
  static constexpr bool kNear = type == U::kElement;
  static constexpr int kParts = P;
  static constexpr bool kBounded = P > 1;
  static constexpr bool kScalesScores = type != kFloat32;  // 16-bit queries are exact in their parts as they are
  // Partial products. Two parts of float16 are all of it, and with all four its scores are as exact as float32's;
  // weights are rounded to two parts, which makes the fourth product as small as what is gone.
  static constexpr int kSumProducts = P == 1 ? 1 : P == 2 ? 3 : 6;
  static constexpr int kScoreProducts = type == kFloat16 && P == 2 ? 4 : kSumProducts;
};

// Magnitudes, as bits. Products of elements below 2^60 and their sums are finite. Rows of queries and keys whose
// largest element is 2^-80 or more lose less than 2^-46 of themselves, and beside numbers near 1 as little of their
// products. Elements of 2^-102 or more are whole in their parts.
constexpr uint32_t bits_of_power(int exponent) { return static_cast<uint32_t>(127 + exponent) << 23; }
constexpr uint32_t kTooLarge = bits_of_power(60), kSmallestOfRow = bits_of_power(-80), kSmallest = bits_of_power(-102);

inline __m512i magnitude(__m512 x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }

/// The larger magnitude of a lane's numbers.
inline __m512i larger_magnitude(__m512 a, __m512 b) { return _mm512_max_epu32(magnitude(a), magnitude(b)); }

/// Of magnitudes: which are too large for products, or below `smallest` and not 0.
inline __mmask16 outside_of(__m512i magnitudes, uint32_t smallest) {
  const __mmask16 small = _mm512_cmplt_epu32_mask(magnitudes, _mm512_set1_epi32(static_cast<int>(smallest)));
  return static_cast<__mmask16>(_mm512_cmpge_epu32_mask(magnitudes, _mm512_set1_epi32(kTooLarge)) |
                                (small & _mm512_test_epi32_mask(magnitudes, magnitudes)));
}

/// Of the largest magnitudes of rows: which rows products do not take.
inline __mmask16 rows_out_of_range(__m512i largest) { return outside_of(largest, kSmallestOfRow); }
/// Elements that products do not take.
inline __mmask16 out_of_range(__m512 x) { return outside_of(magnitude(x), kSmallest); }

template <class U, int P, int type>
requires(P > 1) struct ElementRange<TileDot<U, P, type>> {
  static bool has(double x) {
    const double magnitude = __builtin_fabs(x);
    return x == 0 ||
           (magnitude < double{bit_cast<float>(kTooLarge)} && magnitude >= double{bit_cast<float>(kSmallest)});
  }
};

inline __m512i high_half() { return _mm512_set1_epi32(static_cast<int>(0xffff0000u)); }

/// The high half is the nearest bfloat16.
inline __m512 rounded_up(__m512 x) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000)));
}
inline __m512 without_high_half(__m512 x, __m512 part) {
  return _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(part), high_half())));
}

/// The high halves of a in the low, of b in the high halves of the lanes: b with bytes of a two further down.
inline __m512i pair_up(__m512 a, __m512 b) {
  const __m512i bytes = _mm512_castps_si512(a);
  return _mm512_mask_alignr_epi8(_mm512_castps_si512(b), 0x3333333333333333, bytes, bytes, 2);
}

/// The parts of pairs (a, b).
template <int P>
inline __attribute__((always_inline)) void cut(__m512 a, __m512 b, __m512i (&parts)[P]) {
  ATTN_UNROLL
  for (int i = 0; i < P; ++i) {
    const bool last_of_three = i == 2;  // all that is left, exactly
    const __m512 a_part = last_of_three ? a : rounded_up(a), b_part = last_of_three ? b : rounded_up(b);
    parts[i] = pair_up(a_part, b_part);
    if (i + 1 == P) return;
    a = without_high_half(a, a_part);
    b = without_high_half(b, b_part);
  }
}

template <int P>
inline void store_parts(uint16_t* out, int64_t part, __m512 a, __m512 b) {
  __m512i parts[P];
  cut<P>(a, b, parts);
  ATTN_UNROLL
  for (int i = 0; i < P; ++i) _mm512_store_si512(out + i * part, parts[i]);
}

/// Pairs (a, b) rounded to float16.
inline __m512i float16_pairs(__m512 a, __m512 b) {
  const auto half = [](__m512 x) { return _mm512_cvtepu16_epi32(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); };
  return _mm512_or_si512(half(a), _mm512_slli_epi32(half(b), 16));
}

/// Pairs (a, b) as one part, in the type that a unit multiplies.
template <class Unit>
inline __attribute__((always_inline)) __m512i one_part(__m512 a, __m512 b) {
  if constexpr (Unit::kElement == kFloat16) return float16_pairs(a, b);
  else return pair_up(rounded_up(a), rounded_up(b));
}

template <class Dot>
inline __attribute__((always_inline)) void store_pairs(uint16_t* out, int64_t part, __m512 a, __m512 b) {
  if constexpr (Dot::kParts == 1) _mm512_store_si512(out, one_part<typename Dot::Unit>(a, b));
  else store_parts<Dot::kParts>(out, part, a, b);
}

/// Pairs of two rows of 16-bit numbers, a lane each: `first` in the low halves, the row `stride` elements after it in
/// the high halves. Of `rows` rows those that exist are read, and of each the columns that `some` names; the rest is 0.
inline __m512i row_pairs(const uint16_t* first, int64_t stride, int64_t rows, __mmask16 some) {
  const auto row = [&](int64_t r) {
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(r < rows ? some : __mmask16{0}, first + r * stride));
  };
  return _mm512_or_si512(row(0), _mm512_slli_epi32(row(1), 16));
}

// ---------------------------------------------------------------------------------------------------------- weights

/// 2^(x - floor(x)), relative error 2.6 2^-24. The polynomial is minimax on [0, 1] with 1 and 2 at the ends: a fraction
/// may be rounded to 1.
inline __attribute__((always_inline)) __m512 exp2_of_fraction(__m512 x) {
  const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_set1_ps(1.879318268e-3f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.990992792e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.581866950e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.401593179e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.931517124e-1f));
  return _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
}

/// 2^x where that is a float32 number, else 0 or infinity. One instruction has the fraction, and vscalefps takes the
/// whole part itself, which saves two instructions beside V::exp2.
inline __attribute__((always_inline)) __m512 exp2_by_floor(__m512 x) {
  return _mm512_scalef_ps(exp2_of_fraction(x), x);
}

template <class U, int P, int type>
struct WeightOf<TileDot<U, P, type>> {
  static __m512 above(__m512 d) { return exp2_by_floor(_mm512_add_ps(d, d)); }
};

template <class U, int P, int type>
struct WeightFormat<TileDot<U, P, type>> {
  using Dot = TileDot<U, P, type>;
  using Weight = uint16_t;
  static void store(Weight* weights, int64_t key, int width, int lane, __m512 even, __m512 odd) {
    store_pairs<Dot>(weights + key * P * width + 2 * lane, int64_t{2} * width, even, odd);
  }
  static void store_last(Weight* weights, int64_t key, int width, int lane, __m512 even) {
    store(weights, key, width, lane, even, _mm512_setzero_ps());
  }
  static double load(const void* weights, int64_t key, int width, int lane) {
    double sum = 0;
    for (int i = 0; i < P; ++i)
      sum += load_element<float>(U::kElement, weights, ((key / 2 * P + i) * width + lane) * 2 + key % 2);
    return sum;
  }
};

template <class U, int P, int type>
struct OuterFormat<TileDot<U, P, type>> {
  static constexpr bool kSeparate = true;
  using Weight = uint16_t;
  template <int NV>
  static void store(Weight* weights, int64_t key, const __m512 (&value)[NV]) {
    store_parts<P>(weights + key * P * kTileSum, kTileSum, value[0], NV == 2 ? value[NV - 1] : _mm512_setzero_ps());
  }
  static double load(const void* weights, int64_t key, int /*width*/, int lane) {
    const Weight* number = static_cast<const Weight*>(weights) + key * P * kTileSum + lane % 16 * 2 + lane / 16;
    double sum = 0;
    for (int i = 0; i < P; ++i) sum += from_bf16(number[i * kTileSum]);
    return sum;
  }
};

// ---------------------------------------------------------------------------------------------------------- packing

/// Elements j .. j + 15 of row r, 0 beyond the row and the rows. finite_only: 0 for what the products do not take.
template <class Dot>
inline __m512 load_sixteen(const RowsArgs& args, int64_t r, int64_t j) {
  if (r >= args.rows || j >= args.n) return _mm512_setzero_ps();
  constexpr int kType = Dot::kType;
  __m512 x;
  if (args.stride == 1 && j + F32::W <= args.n) {
    x = load_vector<F32>(kType, args.row[r], j);
  } else {
    alignas(64) float part[F32::W] = {};
    for (int64_t i = j; i < args.n && i < j + F32::W; ++i)
      part[i - j] = load_element<float>(kType, args.row[r], i * args.stride);
    x = _mm512_load_ps(part);
  }
  if constexpr (kType == kFloat32 && !Dot::kBounded)  // rounding would carry a NaN of many bits over to -0
    x = _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_ps(__builtin_nanf("")));
  if (!args.finite_only) return x;
  if constexpr (Dot::kBounded) return _mm512_mask_mov_ps(x, out_of_range(x), _mm512_setzero_ps());
  return without_non_finite<F32>(x);
}

/// Where the mask is that belongs to 32 keys, or to a panel of queries.
inline uint64_t* range_mask(void* parts, int64_t elements) {
  return reinterpret_cast<uint64_t*>(static_cast<uint16_t*>(parts) + elements);
}
inline uint64_t range_mask(const void* parts, int64_t elements) {
  return *reinterpret_cast<const uint64_t*>(static_cast<const uint16_t*>(parts) + elements);
}
constexpr int64_t kMaskBytes = 64;

/// 16 rows, 32 dims: x[d] has a lane a row.
template <class Dot>
inline void load_query_block(const RowsArgs& args, int64_t row, int64_t d, __m512 (&x)[2][F32::W]) {
  for (int half = 0; half < 2; ++half) {
    ATTN_UNROLL
    for (int r = 0; r < F32::W; ++r) {
      x[half][r] = load_sixteen<Dot>(args, row + r, d + half * F32::W);
      if constexpr (!Dot::kScalesScores)
        x[half][r] = _mm512_mul_ps(x[half][r], _mm512_set1_ps(static_cast<float>(args.scale)));
    }
    F32::transpose(x[half]);
  }
}

template <class Dot>
void pack_query_parts(const RowsArgs& args) {
  constexpr int P = Dot::kParts;
  uint16_t* out = static_cast<uint16_t*>(args.dense);
  const int64_t width = args.dense_stride, depth = whole_steps(args.n, kTileSum), part = depth * width;
  uint64_t outside = 0;
  ask_rows<Dot::kType>(args, 0, args.rows);
  for (int64_t r0 = 0; r0 < width; r0 += F32::W) {
    __m512i largest = _mm512_setzero_si512();
    for (int64_t j = 0; j < depth; j += kTileSum) {
      __m512 x[2][F32::W];
      load_query_block<Dot>(args, r0, j, x);
      uint16_t* pairs = out + j * width + 2 * r0;
      for (int t = 0; t < kTileRows; ++t) {
        const __m512 first = Dot::kNear ? x[t / 8][t % 8 * 2] : x[0][t];
        const __m512 second = Dot::kNear ? x[t / 8][t % 8 * 2 + 1] : x[1][t];
        if constexpr (Dot::kBounded) largest = _mm512_max_epu32(largest, larger_magnitude(first, second));
        store_pairs<Dot>(pairs + 2 * t * width, part, first, second);
      }
    }
    if constexpr (!Dot::kBounded) continue;
    const __mmask16 rows = rows_out_of_range(largest);
    outside |= uint64_t{rows} << r0;
    for (int64_t j = 0; rows != 0 && j < depth; j += kTileSum) {
      __m512 x[2][F32::W];
      load_query_block<Dot>(args, r0, j, x);
      uint16_t* pairs = out + j * width + 2 * r0;
      for (int t = 0; t < kTileRows; ++t)
        for (int i = 0; i < 2; ++i) _mm512_mask_store_ps(pairs + 2 * t * width + i * part, rows, x[i][t]);
    }
  }
  if constexpr (Dot::kBounded) *range_mask(out, P * part) = outside;
}

template <class Dot>
void cut_keys(const RowsArgs& args) {
  uint16_t* out = static_cast<uint16_t*>(args.dense);
  const int64_t depth = whole_steps(args.n, kTileSum);
  RowsAhead<Dot::kType> ahead(args);
  for (int64_t r = 0; r < args.rows; ++r, out += args.dense_stride) {
    ahead.step();
    __m512i largest = _mm512_setzero_si512();
    for (int64_t j = 0; j < depth; j += kTileSum) {
      const __m512 first = load_sixteen<Dot>(args, r, j), second = load_sixteen<Dot>(args, r, j + F32::W);
      if constexpr (Dot::kBounded) largest = _mm512_max_epu32(largest, larger_magnitude(first, second));
      store_parts<Dot::kParts>(out + j, depth, first, second);
    }
    if constexpr (!Dot::kBounded) continue;
    uint64_t* mask = range_mask(out - r % kTileSum * args.dense_stride, Dot::kParts * depth);
    if (r % kTileSum == 0) *mask = 0;
    if (rows_out_of_range(_mm512_set1_epi32(static_cast<int>(_mm512_reduce_max_epu32(largest)))) == 0) continue;
    *mask |= uint64_t{1} << r % kTileSum;
    for (int64_t j = 0; j < depth; j += kTileSum)
      for (int i = 0; i < 2; ++i) _mm512_store_ps(out + j + i * depth, load_sixteen<Dot>(args, r, j + i * F32::W));
  }
}

/// Keys that are not taken in place.
template <class Dot>
void pack_keys_parts(const RowsArgs& args) {
  if constexpr (Dot::kNear) copy_rows<Dot::kType>(args);
  else cut_keys<Dot>(args);
}

/// 32 keys x 16 dims, transposed. One part: pairs of keys are made first, and transposed as one number.
template <class Dot>
inline void pack_values_tile(const RowsArgs& args, int64_t key, int64_t d, uint16_t* out) {
  constexpr int P = Dot::kParts;
  __m512 even[F32::W], odd[F32::W];
  ATTN_UNROLL
  for (int t = 0; t < F32::W; ++t) {
    even[t] = load_sixteen<Dot>(args, key + 2 * t, d);
    odd[t] = load_sixteen<Dot>(args, key + 2 * t + 1, d);
  }
  if constexpr (P == 1) {
    ATTN_UNROLL
    for (int t = 0; t < F32::W; ++t) even[t] = _mm512_castsi512_ps(one_part<typename Dot::Unit>(even[t], odd[t]));
    F32::transpose(even);
    ATTN_UNROLL
    for (int t = 0; t < F32::W; ++t) _mm512_store_ps(out + t * kTileSum, even[t]);
  } else {
    F32::transpose(even);
    F32::transpose(odd);
    ATTN_UNROLL
    for (int t = 0; t < F32::W; ++t) store_parts<P>(out + t * kTileSum, kTileBytes / 2, even[t], odd[t]);
  }
}

template <class Dot>
void pack_values_parts(const RowsArgs& args) {
  uint16_t* out = static_cast<uint16_t*>(args.dense);
  ask_rows<Dot::kType>(args, 0, kTileSum);
  for (int64_t key = 0; key < args.rows; key += kTileSum) {
    ask_rows<Dot::kType>(args, key + kTileSum, key + 2 * kTileSum);
    for (int64_t d = 0; d < args.n; d += F32::W, out += Dot::kParts * kTileBytes / 2)
      pack_values_tile<Dot>(args, key, d, out);
  }
}

template <class Dot>
void pack_outer_parts(const RowsArgs& args) {
  constexpr int P = Dot::kParts;
  uint16_t* out = static_cast<uint16_t*>(args.dense);
  const int64_t columns = args.dense_stride;
  RowsAhead<Dot::kType> ahead(args);
  for (int64_t r = 0; r < kTileRows; ++r, out += 2 * P * columns) {
    ahead.step(2);
    for (int64_t j = 0; j < columns; j += F32::W)
      store_parts<P>(out + 2 * j, 2 * columns, load_sixteen<Dot>(args, r, j),
                     load_sixteen<Dot>(args, r + kTileRows, j));
  }
}

template <class Dot>
bool all_in_range(const RowsArgs& args) {
  __mmask16 outside = 0;
  for (int64_t r = 0; r < args.rows; ++r)
    for (int64_t j = 0; j < args.n; j += F32::W)
      outside = static_cast<__mmask16>(outside | out_of_range(load_sixteen<Dot>(args, r, j)));
  return outside == 0;
}

// Elements between packed rows, and bytes.
template <int P>
int64_t stride_of_key_parts(int64_t n) {
  return P * whole_steps(n, kTileSum) + (P > 1 ? kMaskBytes / 2 : 0);
}
template <int P>
int64_t query_parts_bytes(int64_t n, int width) {
  return P * whole_steps(n, kTileSum) * width * 2 + (P > 1 ? kMaskBytes : 0);
}
template <int P>
int64_t value_parts_bytes(int64_t rows, int64_t n) {
  return whole_steps(rows, kTileSum) * whole_steps(n, kTileRows) * 2 * P;
}
template <int P>
int64_t outer_parts_bytes(int64_t rows, int64_t n) {
  return whole_steps(rows, kTileSum) * stride_of_sums<F32::W>(n) * 2 * P;
}

}  // namespace
}  // namespace attn::kernels
