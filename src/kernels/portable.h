// Pieces shared by all instruction sets: conversion, loads and stores of elements of any type, the exp2 polynomial.
#pragma once

#include <stdint.h>

#include "kernels/table.h"

// Constant-bound loops over register arrays must be unrolled in full: a loop left over spills the accumulators and
// halves the speed (51 instead of 117 GFLOP/s on Zen 4).
#if defined(__clang__)
#define ATTN_UNROLL _Pragma("clang loop unroll(full)")
#define ATTN_KEEP_LOOP _Pragma("clang loop unroll(disable)")
#else
#define ATTN_UNROLL _Pragma("GCC unroll 32")
#define ATTN_KEEP_LOOP _Pragma("GCC unroll 1")
#endif

namespace attn::kernels {
namespace {

constexpr double kLog2e = 1.4426950408889634074;

template <class T>
constexpr T infinity() {
  return static_cast<T>(__builtin_huge_val());
}

/// A score of +infinity becomes this: it then wins alone, where inf - inf would be NaN.
template <class T>
constexpr T largest_finite() {
  return sizeof(T) == 4 ? static_cast<T>(__FLT_MAX__) : static_cast<T>(__DBL_MAX__);
}

template <class To, class From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

inline float from_bf16(uint16_t bits) { return bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t to_bf16(float value) {
  uint32_t bits = bit_cast<uint32_t>(value);
  if (value != value) return static_cast<uint16_t>((bits >> 16) | 0x40);
  bits += 0x7fff + ((bits >> 16) & 1);
  return static_cast<uint16_t>(bits >> 16);
}

inline float from_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = bits & 0x7fff;
  if (magnitude >= 0x7c00) return bit_cast<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  if (magnitude >= 0x400) return bit_cast<float>(sign | ((magnitude << 13) + 0x38000000));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return bit_cast<float>(sign | bit_cast<uint32_t>(subnormal));
}

inline uint16_t to_f16(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {  // subnormal: adding 0.5 aligns the fraction, the FPU rounds to nearest even
    const float aligned = bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bit_cast<uint32_t>(aligned) - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

/// The C++ type that holds an element: 16-bit numbers are bits.
template <int kType>
struct Stored {
  using Type = uint16_t;
};
template <>
struct Stored<kFloat32> {
  using Type = float;
};
template <>
struct Stored<kInt8> {
  using Type = int8_t;
};

constexpr int kRowScaleBytes = 4;  // after the numbers of a kInt8 row

/// The scale of a kInt8 row that ends before `end`.
inline float row_scale(const int8_t* end) {
  float scale;
  __builtin_memcpy(&scale, end - kRowScaleBytes, sizeof scale);
  return scale;
}

/// n rounded up to a multiple.
inline int64_t whole_steps(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

inline int64_t at_most(int64_t n, int64_t limit) { return n < limit ? n : limit; }

inline int element_bytes(int type) { return type == kFloat64 ? 8 : type == kFloat32 ? 4 : 2; }

template <class T>
inline T load_element(int type, const void* base, int64_t index) {
  switch (type) {
    case kFloat32: return static_cast<T>(static_cast<const float*>(base)[index]);
    case kFloat64: return static_cast<T>(static_cast<const double*>(base)[index]);
    case kBfloat16: return static_cast<T>(from_bf16(static_cast<const uint16_t*>(base)[index]));
    case kInt8: return static_cast<T>(static_cast<const int8_t*>(base)[index]);  // without its scale
    default: return static_cast<T>(from_f16(static_cast<const uint16_t*>(base)[index]));
  }
}

template <class T>
inline void store_element(int type, void* base, int64_t index, T value) {
  switch (type) {
    case kFloat32: static_cast<float*>(base)[index] = static_cast<float>(value); break;
    case kFloat64: static_cast<double*>(base)[index] = static_cast<double>(value); break;
    case kBfloat16: static_cast<uint16_t*>(base)[index] = to_bf16(static_cast<float>(value)); break;
    default: static_cast<uint16_t*>(base)[index] = to_f16(static_cast<float>(value)); break;
  }
}

template <int kType>
constexpr int kElementBytes = kType == kFloat64   ? 8
                              : kType == kFloat32 ? 4
                              : kType == kInt8    ? 1
                                                  : 2;

template <int kType>
struct TypeTag {
  static constexpr int kElement = kType;
};

/// body(TypeTag<type>{}): what it does with every element is compiled for that type.
template <class Body>
inline void with_type(int type, const Body& body) {
  switch (type) {
    case kFloat32: return body(TypeTag<kFloat32>{});
    case kFloat64: return body(TypeTag<kFloat64>{});
    case kBfloat16: return body(TypeTag<kBfloat16>{});
    default: return body(TypeTag<kFloat16>{});
  }
}

/// Types that a vector of V can be loaded from and stored to without a detour.
template <class V>
inline bool has_vector_access(int type) {
  return sizeof(typename V::T) == 8 ? type == kFloat64 : type != kFloat64;
}

template <class V>
inline typename V::Reg load_vector(int type, const void* base, int64_t index) {
  if constexpr (sizeof(typename V::T) == 8) {
    return V::loadu(static_cast<const double*>(base) + index);
  } else {
    if (type == kFloat32) return V::loadu(static_cast<const float*>(base) + index);
    if (type == kBfloat16) return V::load_bf16(static_cast<const uint16_t*>(base) + index);
    if (type == kInt8) return V::load_int8(static_cast<const int8_t*>(base) + index);
    return V::load_f16(static_cast<const uint16_t*>(base) + index);
  }
}

template <class V>
inline void store_vector(int type, void* base, int64_t index, typename V::Reg value) {
  if constexpr (sizeof(typename V::T) == 8) {
    V::storeu(static_cast<double*>(base) + index, value);
  } else {
    if (type == kFloat32) return V::storeu(static_cast<float*>(base) + index, value);
    if (type == kBfloat16) return V::store_bf16(static_cast<uint16_t*>(base) + index, value);
    V::store_f16(static_cast<uint16_t*>(base) + index, value);
  }
}

/// Elements j .. j + W - 1 in vectors of double, of any type.
template <class V>
inline typename V::Reg load_as_double(int type, const void* base, int64_t j) {
  if (type == kFloat32) return V::load_f32(static_cast<const float*>(base) + j);
  if (type == kBfloat16) return V::load_bf16(static_cast<const uint16_t*>(base) + j);
  if (type == kFloat16) return V::load_f16(static_cast<const uint16_t*>(base) + j);
  return V::loadu(static_cast<const double*>(base) + j);
}

/// 2^r for r in [-1/2, 1/2]. float: degree 5, minimax in the relative error, constant term 1 (2.0 ulp measured with the
/// scaling; degree 6 costs 13 % of the softmax pass for 1 ulp). double: degree 13, the Taylor series ln(2)^k / k!.
template <class V>
inline typename V::Reg exp2_polynomial(typename V::Reg r) {
  using T = typename V::T;
  if constexpr (sizeof(T) == 4) {
    auto p = V::set1(1.326472691e-3f);
    p = V::fma(p, r, V::set1(9.671512660e-3f));
    p = V::fma(p, r, V::set1(5.550733744e-2f));
    p = V::fma(p, r, V::set1(2.402224208e-1f));
    p = V::fma(p, r, V::set1(6.931469776e-1f));
    return V::fma(p, r, V::set1(1.0f));
  } else {
    auto p = V::set1(1.36914888539041241e-12);
    p = V::fma(p, r, V::set1(2.56784359934881958e-11));
    p = V::fma(p, r, V::set1(4.44553827187081007e-10));
    p = V::fma(p, r, V::set1(7.05491162080112088e-09));
    p = V::fma(p, r, V::set1(1.01780860092396960e-07));
    p = V::fma(p, r, V::set1(1.32154867901443053e-06));
    p = V::fma(p, r, V::set1(1.52527338040598377e-05));
    p = V::fma(p, r, V::set1(1.54035303933816061e-04));
    p = V::fma(p, r, V::set1(1.33335581464284411e-03));
    p = V::fma(p, r, V::set1(9.61812910762847688e-03));
    p = V::fma(p, r, V::set1(5.55041086648215762e-02));
    p = V::fma(p, r, V::set1(2.40226506959100694e-01));
    p = V::fma(p, r, V::set1(6.93147180559945286e-01));
    return V::fma(p, r, V::set1(1.0));
  }
}

/// Exchanges rows and columns of a W x W block in log2(W) perfect shuffles.
template <class V>
inline void transpose_by_interleaving(typename V::Reg (&a)[V::W]) {
  ATTN_UNROLL
  for (int step = 1; step < V::W; step *= 2) {
    typename V::Reg b[V::W];
    ATTN_UNROLL
    for (int i = 0; i < V::W / 2; ++i) {
      b[2 * i] = V::interleave_lo(a[i], a[i + V::W / 2]);
      b[2 * i + 1] = V::interleave_hi(a[i], a[i + V::W / 2]);
    }
    ATTN_UNROLL
    for (int i = 0; i < V::W; ++i) a[i] = b[i];
  }
}

/// Lane i: the sum of the lanes of a[i].
template <class V>
inline typename V::Reg sums_by_transposing(typename V::Reg (&a)[V::W]) {
  V::transpose(a);
  ATTN_UNROLL
  for (int n = V::W / 2; n > 0; n /= 2) {
    ATTN_UNROLL
    for (int i = 0; i < n; ++i) a[i] = V::add(a[i], a[i + n]);
  }
  return a[0];
}

}  // namespace
}  // namespace attn::kernels
