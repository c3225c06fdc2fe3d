// Element types: sizes, names, and the two 16-bit formats in software. These conversions define what the library means
// by bfloat16 and float16; SIMD kernels have to agree with them bit by bit.
#include <bit>

#include "attn/core.h"

namespace attn {
namespace {

constexpr uint32_t kSignBit = 0x80000000u;
constexpr uint32_t kInfinity = 0x7f800000u;  // float32; larger magnitudes are NaN

// value / 2^shift, rounded to nearest, ties to even; shift is 1 to 31.
uint32_t shift_right_rounded(uint32_t value, uint32_t shift) {
  const uint32_t quotient = value >> shift;
  const uint32_t rest = value - (quotient << shift);
  const uint32_t half = 1u << (shift - 1);
  return quotient + ((rest > half || (rest == half && (quotient & 1u))) ? 1u : 0u);
}

// The float16 bits of a float32 magnitude (sign bit clear).
uint32_t half_magnitude(uint32_t magnitude) {
  constexpr uint32_t half_infinity = 0x7c00u;
  constexpr uint32_t quiet_nan = 0x7e00u;
  constexpr uint32_t overflow = 0x47800000u;  // 2^16; from 65520 on, rounding carries over into infinity by itself
  constexpr uint32_t smallest_normal = 0x38800000u;  // 2^-14
  constexpr uint32_t underflow = 0x33000000u;        // 2^-25, the tie between zero and the smallest subnormal
  constexpr uint32_t rebias = (127u - 15u) << 23;
  if (magnitude > kInfinity) return quiet_nan | ((magnitude >> 13) & 0x3ffu);
  if (magnitude >= overflow) return half_infinity;
  if (magnitude >= smallest_normal) return shift_right_rounded(magnitude - rebias, 13);
  if (magnitude <= underflow) return 0;
  const uint32_t exponent = magnitude >> 23;
  const uint32_t fraction = (magnitude & 0x7fffffu) | 0x800000u;
  return shift_right_rounded(fraction, 126u - exponent);  // counts in units of 2^-24
}

}  // namespace

int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::float32: return 4;
    case DType::float64: return 8;
    case DType::bfloat16: return 2;
    case DType::float16: return 2;
    case DType::boolean: return 1;
    case DType::int32: return 4;
    case DType::int64: return 8;
  }
  return 0;
}

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::float32: return "float32";
    case DType::float64: return "float64";
    case DType::bfloat16: return "bfloat16";
    case DType::float16: return "float16";
    case DType::boolean: return "boolean";
    case DType::int32: return "int32";
    case DType::int64: return "int64";
  }
  return "unknown";
}

bool is_floating(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::bfloat16 || dtype == DType::float16;
}

bfloat16::bfloat16(float value) {
  const uint32_t word = std::bit_cast<uint32_t>(value);
  const bool nan = (word & ~kSignBit) > kInfinity;
  // Rounding could carry a NaN's fraction over into infinity or zero: cut it and set its quiet bit instead.
  bits = static_cast<uint16_t>(nan ? (word >> 16) | 0x40u : shift_right_rounded(word, 16));
}

bfloat16::operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float16::float16(float value) {
  const uint32_t word = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (word & kSignBit) >> 16;
  bits = static_cast<uint16_t>(sign | half_magnitude(word & ~kSignBit));
}

float16::operator float() const {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // exact
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t wide_exponent = exponent == 31 ? 255 : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide_exponent << 23 | fraction << 13);
}

}  // namespace attn
