// 128-bit vectors in the compiler's own vector types, for what every x86-64 (SSE2) and every aarch64 (NEON) has:
// 4 floats, 2 doubles, 2 64-bit words. A mask is an integer vector of all-ones and all-zeros lanes.
//
// fma is fused on aarch64 and a multiply and an add on SSE2, which has no fused one.
#pragma once

#include "kernels/portable.h"

namespace attn::kernels {
namespace {

#if defined(__aarch64__)
constexpr bool kFused = true;
constexpr int kRegisters = 32;
#else
constexpr bool kFused = false;
constexpr int kRegisters = 16;
#endif

/// What F32 and F64 share; Bits and Unsigned are the integers of the element's size.
template <class Element, class Bits, class Unsigned, int Lanes>
struct Vector128 {
  using T = Element;
  typedef Element Reg __attribute__((vector_size(16)));
  typedef Bits Mask __attribute__((vector_size(16)));
  typedef Unsigned Word __attribute__((vector_size(16)));
  typedef Element Unaligned __attribute__((vector_size(16), aligned(sizeof(Element)), may_alias));
  static constexpr int W = Lanes;
  static constexpr int kTile = kRegisters == 32 ? 8 : 4;  // 8 x 3 of 32, 4 x 3 of 16 registers
  static constexpr int kOuterKeys = kRegisters == 32 ? 6 : 4;
  static constexpr int kOuterVectors = kRegisters == 32 ? 4 : 3;
  static constexpr int kFewRows = 4;
  static constexpr int kFewAccumulators = 8;
  static constexpr bool kAcross = false;  // unmeasured

  static Reg load(const T* p) { return *reinterpret_cast<const Reg*>(p); }
  static Reg loadu(const T* p) { return *reinterpret_cast<const Unaligned*>(p); }
  static void store(T* p, Reg a) { *reinterpret_cast<Reg*>(p) = a; }
  static void storeu(T* p, Reg a) { *reinterpret_cast<Unaligned*>(p) = a; }
  static Reg set1(T x) { return x - Reg{}; }
  static Reg zero() { return Reg{}; }
  static Reg add(Reg a, Reg b) { return a + b; }
  static Reg sub(Reg a, Reg b) { return a - b; }
  static Reg mul(Reg a, Reg b) { return a * b; }
  static Reg div(Reg a, Reg b) { return a / b; }
  static Reg fma(Reg a, Reg b, Reg c) {
    if constexpr (kFused) {
      Reg result;
      ATTN_UNROLL
      for (int i = 0; i < W; ++i) {
        if constexpr (sizeof(T) == 4) result[i] = __builtin_fmaf(a[i], b[i], c[i]);
        else result[i] = __builtin_fma(a[i], b[i], c[i]);
      }
      return result;
    } else {
      return a * b + c;
    }
  }
  static Reg max(Reg a, Reg b) { return a > b ? a : b; }  // b where one is NaN
  static Reg min(Reg a, Reg b) { return a < b ? a : b; }
  static Reg abs(Reg a) { return to_reg(to_bits(a) & ~to_bits(set1(T(-0.0)) - Reg{})); }
  static Reg sqrt(Reg a) {
    Reg result;
    ATTN_UNROLL
    for (int i = 0; i < W; ++i) {
      if constexpr (sizeof(T) == 4) result[i] = __builtin_sqrtf(a[i]);
      else result[i] = __builtin_sqrt(a[i]);
    }
    return result;
  }
  /// To the nearest whole number, for magnitudes up to 2^22 (float) and 2^51 (double).
  static Reg round(Reg a) {
    const Reg magic = set1(static_cast<T>(sizeof(T) == 4 ? 0x1.8p23 : 0x1.8p52));
    return (a + magic) - magic;
  }
  /// a 2^n for whole n that leave 2^n normal.
  static Reg scale_by_power(Reg a, Reg n) {
    const Reg shifted = n + set1(static_cast<T>(sizeof(T) == 4 ? 0x1.8p23 : 0x1.8p52));
    return a * to_reg((to_bits(shifted) << (sizeof(T) == 4 ? 23 : 52)) + to_bits(set1(1)));
  }
  static T sum(Reg a) {
    if constexpr (W == 4) return (a[0] + a[2]) + (a[1] + a[3]);
    else return a[0] + a[1];
  }
  static T largest(Reg a) {
    T result = a[0];
    for (int i = 1; i < W; ++i) result = result > a[i] ? result : a[i];
    return result;
  }
  /// Lanes 0 .. n - 1 alone, the others 0.
  static Reg load_part(const T* p, int64_t n) {
    Reg result{};
    for (int64_t i = 0; i < n; ++i) result[i] = p[i];
    return result;
  }
  static void store_part(T* p, int64_t n, Reg a) {
    for (int64_t i = 0; i < n; ++i) p[i] = a[i];
  }

  static Mask to_bits(Reg a) { return reinterpret_cast<Mask>(a); }
  static Reg to_reg(Mask m) { return reinterpret_cast<Reg>(m); }
  static Mask greater(Reg a, Reg b) { return a > b; }
  static Mask equal(Reg a, Reg b) { return a == b; }
  static Mask mask(uint64_t bits) {
    Mask m;
    ATTN_UNROLL
    for (int i = 0; i < W; ++i) m[i] = -static_cast<Bits>(bits >> i & 1);
    return m;
  }
  static uint64_t bits(Mask m) {
    uint64_t result = 0;
    ATTN_UNROLL
    for (int i = 0; i < W; ++i) result |= static_cast<uint64_t>(m[i] & 1) << i;
    return result;
  }
  static Reg select(Mask m, Reg a, Reg b) { return to_reg((to_bits(a) & m) | (to_bits(b) & ~m)); }

  /// 2^x with the exponent put in by integer arithmetic: 0 below the smallest normal, NaN for NaN.
  template <class V>
  static Reg exp2_by_shift(Reg x) {
    constexpr int kFraction = sizeof(T) == 4 ? 23 : 52;
    const Reg low = set1(sizeof(T) == 4 ? T(-126) : T(-1022));
    const Reg magic = set1(static_cast<T>(sizeof(T) == 4 ? 0x1.8p23 : 0x1.8p52));
    const Reg clamped = max(low, x);
    const Reg shifted = clamped + magic;
    const Reg n = shifted - magic;
    // Words, for they may wrap: where a score has outgrown its reference, nobody looks at the result.
    const Word exponent = reinterpret_cast<Word>(shifted) << kFraction;
    const Reg scale = reinterpret_cast<Reg>(exponent + reinterpret_cast<Word>(set1(1)));
    const Reg result = exp2_polynomial<V>(clamped - n) * scale;
    return to_reg(to_bits(result) & ~(x < low));
  }
};

struct F32 : Vector128<float, int32_t, uint32_t, 4> {
  static Reg exp2(Reg x) { return exp2_by_shift<F32>(x); }
  static void transpose(Reg (&a)[W]) { transpose_by_interleaving<F32>(a); }
  static Reg sums(Reg (&a)[W]) { return sums_by_transposing<F32>(a); }
  /// Lanes 1, 0, 3, 2.
  static Reg swap_pairs(Reg a) { return __builtin_shufflevector(a, a, 1, 0, 3, 2); }
  static Reg interleave_lo(Reg a, Reg b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
  static Reg interleave_hi(Reg a, Reg b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
  static Reg load_bf16(const uint16_t* p) {
    return Reg{from_bf16(p[0]), from_bf16(p[1]), from_bf16(p[2]), from_bf16(p[3])};
  }
  static Reg load_f16(const uint16_t* p) { return Reg{from_f16(p[0]), from_f16(p[1]), from_f16(p[2]), from_f16(p[3])}; }
  static Reg load_int8(const int8_t* p) {
    typedef int8_t Bytes __attribute__((vector_size(4)));
    Bytes bytes;
    __builtin_memcpy(&bytes, p, sizeof bytes);
    return __builtin_convertvector(bytes, Reg);
  }
  static void store_bf16(uint16_t* p, Reg a) {
    for (int i = 0; i < W; ++i) p[i] = to_bf16(a[i]);
  }
  static void store_f16(uint16_t* p, Reg a) {
    for (int i = 0; i < W; ++i) p[i] = to_f16(a[i]);
  }
};

struct F64 : Vector128<double, int64_t, uint64_t, 2> {
  static Reg exp2(Reg x) { return exp2_by_shift<F64>(x); }
  static void transpose(Reg (&a)[W]) { transpose_by_interleaving<F64>(a); }
  static Reg swap_pairs(Reg a) { return __builtin_shufflevector(a, a, 1, 0); }
  static Reg load_f32(const float* p) { return Reg{p[0], p[1]}; }
  static Reg load_bf16(const uint16_t* p) { return Reg{from_bf16(p[0]), from_bf16(p[1])}; }
  static Reg load_f16(const uint16_t* p) { return Reg{from_f16(p[0]), from_f16(p[1])}; }
  static Reg interleave_lo(Reg a, Reg b) { return __builtin_shufflevector(a, b, 0, 2); }
  static Reg interleave_hi(Reg a, Reg b) { return __builtin_shufflevector(a, b, 1, 3); }
};

struct U64 {
  typedef uint64_t Reg __attribute__((vector_size(16)));
  static constexpr int W = 2;
  static Reg load(const uint64_t* p) { return *reinterpret_cast<const Reg*>(p); }
  static Reg set1(uint64_t x) { return Reg{x, x}; }
  static Reg add(Reg a, Reg b) { return a + b; }
  static Reg mul32(Reg a, Reg b) { return low32(a) * low32(b); }
  static Reg high32(Reg a) { return a >> 32; }
  static Reg low32(Reg a) { return a & set1(0xffffffffu); }
  static Reg bit_xor(Reg a, Reg b) { return a ^ b; }
  /// Bit j = bytes[j] != 0, eight bytes at a time: the multiplication gathers the low bit of each byte.
  static uint64_t nonzero64(const uint8_t* bytes) {
    constexpr uint64_t kLow7 = 0x7f7f7f7f7f7f7f7fu;
    uint64_t result = 0;
    for (int j = 0; j < 64; j += 8) {
      uint64_t x = 0;
      for (int i = 0; i < 8; ++i) x |= static_cast<uint64_t>(bytes[j + i]) << (8 * i);
      const uint64_t nonzero = ((((x & kLow7) + kLow7) | x) >> 7) & 0x0101010101010101u;
      result |= (nonzero * 0x0102040810204080u >> 56) << j;
    }
    return result;
  }
  static uint64_t at_least(Reg a, Reg b) { return uint64_t{a[0] >= b[0]} | uint64_t{a[1] >= b[1]} << 1; }
};

/// Products of codes for quantized.kernel.h, in integers of 32 bits.
struct Code {
  typedef int32_t Int __attribute__((vector_size(16)));
  typedef int32_t Codes __attribute__((vector_size(16)));
  typedef int32_t Unaligned __attribute__((vector_size(16), aligned(1), may_alias));
  static constexpr int kRows = kRegisters == 32 ? 4 : 2;
  static constexpr int kBytes = 4;
  static Int set1(int32_t x) { return x - Int{}; }
  template <int kBits>
  static Codes load(const uint8_t* p, int half) {
    const Codes bytes = *reinterpret_cast<const Unaligned*>(p);
    return kBits == 8 ? bytes : bytes >> (4 * half) & 0x0f0f0f0f;
  }
  struct Row {
    int32_t code[4];
  };
  static Row broadcast(const char* row) {
    Row x;
    ATTN_UNROLL
    for (int i = 0; i < 4; ++i) x.code[i] = static_cast<int8_t>(row[i]);
    return x;
  }
  static Int step(Codes codes, const Row& x, Int sum) {
    ATTN_UNROLL
    for (int i = 0; i < 4; ++i) sum += (codes >> (8 * i) & 255) * x.code[i];
    return sum;
  }
  static F32::Reg to_float(Int x) { return __builtin_convertvector(x, F32::Reg); }
  /// Whole numbers of at most 127 in 4 lanes.
  static void store(F32::Reg codes, char* out, int64_t) {
    for (int i = 0; i < 4; ++i) out[i] = static_cast<char>(static_cast<int8_t>(codes[i]));
  }
};

}  // namespace
}  // namespace attn::kernels
