// What VNNI adds to AVX-512: compiled with its flags and -mavx512vnni. dispatch.cpp puts the two together.
#include "kernels/vec_avx512.h"

#include "kernels/quantized.kernel.h"

namespace attn::kernels {
namespace {

/// Four products and their sum in one instruction.
struct Vnni {
  using Int = __m512i;
  using Codes = __m512i;
  static constexpr int kRows = 6;  // 6 x 2 sums of either kind: 24 of 32 registers
  static constexpr int kBytes = 4;
  static Int set1(int32_t x) { return _mm512_set1_epi32(x); }
  template <int kBits>
  static Codes load(const uint8_t* p, int half) {
    const __m512i bytes = _mm512_loadu_si512(p);
    if constexpr (kBits == 8) return bytes;
    else return _mm512_and_si512(half ? _mm512_srli_epi16(bytes, 4) : bytes, _mm512_set1_epi8(15));
  }
  static __m512i broadcast(const char* row) {
    int32_t four;
    __builtin_memcpy(&four, row, 4);
    return _mm512_set1_epi32(four);
  }
  static Int step(Codes codes, __m512i x, Int sum) { return _mm512_dpbusd_epi32(sum, codes, x); }
  static __m512 to_float(Int x) { return _mm512_cvtepi32_ps(x); }
  /// Whole numbers of at most 127 in 16 lanes, four of them every `stride` bytes.
  static void store(__m512 codes, char* out, int64_t stride) {
    alignas(16) char bytes[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(bytes), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(codes)));
    ATTN_UNROLL
    for (int i = 0; i < 4; ++i) __builtin_memcpy(out + i * stride, bytes + i * 4, 4);
  }
};

constexpr QuantizedKernels vnni_kernels = quantized_kernels<F32, Vnni>();

}  // namespace

extern const Isa isa_avx512_vnni = {.name = "avx512_vnni", .quantized = &vnni_kernels};

}  // namespace attn::kernels
