// core: element types. Includes of every header begin here, so this one checks the language.
//
// ```cpp
// #include "attn/core_dtype.h"
// int main() {
//   attn::bfloat16 x(0.1F);
//   x += 1;  // computed in float, rounded once
//   return attn::size_of(attn::dtype_of<attn::bfloat16>()) == 2 && float{x} == 1.1015625F ? 0 : 1;
// }
// ```
#pragma once

#if __cplusplus < 202002L
#error "attention.cpp needs C++20: compile with -std=c++20 (GCC 12, Clang 14 or newer)"
#include "attn/needs C++20"  // There is no such file: the compiler ends here, not after hundreds of errors.
#endif

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>

#pragma GCC visibility push(default)
namespace attn {

enum class DType : uint8_t { float32, float64, bfloat16, float16, boolean, int32, int64 };

/// The precision of float32 products on CPUs with matrix tiles, whose operands are bfloat16. Other CPUs use full.
enum class Float32Precision : uint8_t {
  full,  ///< three bfloat16 parts, six products: the accuracy of float32 arithmetic
  high,  ///< two parts, three products: 16 bits
  fast   ///< one part, one product: rounded to bfloat16
};
constexpr auto enum_names(Float32Precision) { return std::to_array<std::string_view>({"full", "high", "fast"}); }

/// Bytes of one element.
int64_t size_of(DType dtype);
/// "float32", "bfloat16", ...
std::string_view name_of(DType dtype);
/// True for float32, float64, bfloat16 and float16.
bool is_floating(DType dtype);

/// The upper half of a float32: 8 exponent bits, 7 fraction bits. Conversion from float rounds to nearest even and is
/// explicit, except in an assignment. Conversion to float is implicit and exact; arithmetic gives floats.
struct bfloat16 {
  uint16_t bits = 0;
  bfloat16() = default;
  explicit bfloat16(float value);
  bfloat16& operator=(float value) { return *this = bfloat16(value); }
  operator float() const;
};

/// IEEE 754 binary16. Conversion from float rounds to nearest even; numbers beyond 65504 become infinite.
struct float16 {
  uint16_t bits = 0;
  float16() = default;
  explicit float16(float value);
  float16& operator=(float value) { return *this = float16(value); }
  operator float() const;
};

/// a += b, a -= b, a *= b, a /= b: computed in float, rounded once.
template <class Half>
concept HalfFloat = std::is_same_v<Half, bfloat16> || std::is_same_v<Half, float16>;
template <HalfFloat Half>
Half& operator+=(Half& a, float b) {
  return a = a + b;
}
template <HalfFloat Half>
Half& operator-=(Half& a, float b) {
  return a = a - b;
}
template <HalfFloat Half>
Half& operator*=(Half& a, float b) {
  return a = a * b;
}
template <HalfFloat Half>
Half& operator/=(Half& a, float b) {
  return a = a / b;
}

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::float32;
  else if constexpr (std::is_same_v<T, double>) return DType::float64;
  else if constexpr (std::is_same_v<T, bfloat16>) return DType::bfloat16;
  else if constexpr (std::is_same_v<T, float16>) return DType::float16;
  else if constexpr (std::is_same_v<T, bool>) return DType::boolean;
  else if constexpr (std::is_same_v<T, int32_t>) return DType::int32;
  else {
    static_assert(std::is_same_v<T, int64_t>, "attn has no such element type");
    return DType::int64;
  }
}

}  // namespace attn
#pragma GCC visibility pop
