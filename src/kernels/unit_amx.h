// Intel's matrix tiles: eight registers of 16 rows x 64 bytes, and C += A B of bfloat16 pairs in float32 (AMX-BF16).
//
//   C[m][n] += sum_p A[m][2p] B[p][2n] + A[m][2p+1] B[p][2n+1]      16 x 16 results, 32 products each, 16 cycles
// The instructions are written out: g++ 12 names 8 of the 64 bytes that ldtilecfg reads as its input. To the compiler a
// load reads nothing, so that sums may stay in registers across it; fence() is between what C++ writes and its
// load. Requires: permission of the operating system (kernels/dispatch.cpp asks for it).
#pragma once

#include "kernels/table.h"

namespace attn::kernels {
namespace {

struct AmxUnit {
  static constexpr int kElement = kBfloat16;  // of A and B

  /// Eight whole tiles; what was configured before goes to `before`, 64 bytes.
  static void configure(void* before) {
    struct alignas(64) Configuration {
      uint8_t palette, start_row, reserved[14];
      uint16_t row_bytes[16];
      uint8_t rows[16];
    } whole = {};
    whole.palette = 1;
    for (int t = 0; t < 8; ++t) {
      whole.row_bytes[t] = 64;
      whole.rows[t] = 16;
    }
    asm volatile("sttilecfg %0" : "=m"(*static_cast<Configuration*>(before)));
    asm volatile("ldtilecfg %0" ::"m"(whole));
  }
  /// Nothing configured gives the tiles back.
  static void restore(const void* before) {
    struct Bytes {
      char bytes[64];
    };
    asm volatile("ldtilecfg %0" ::"m"(*static_cast<const Bytes*>(before)));
  }

  static void fence() { asm volatile("" ::: "memory"); }

  template <int kTile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  /// 16 rows of 64 bytes, `stride` bytes apart.
  template <int kTile>
  static void load(const void* p, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(kTile));
  }
  /// The same for what passes by once: it shall not push out what the first-level cache is needed for.
  template <int kTile>
  static void stream(const void* p, int64_t stride) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(kTile));
  }
  template <int kTile>
  static void store(void* p, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kSum, int kA, int kB>
  static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
  }

  /// 32 numbers as bfloat16. Every CPU with these tiles has the instruction.
  static void store_bf16(void* p, __m512 first, __m512 second) {
    __m512i pairs;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(pairs) : "v"(first), "v"(second));
    _mm512_storeu_si512(p, pairs);
  }
};

/// The same of float16 pairs (AMX-FP16), whose subnormal numbers count; subnormal sums are 0 here too.
struct AmxFp16Unit : AmxUnit {
  static constexpr int kElement = kFloat16;

  /// tdpfp16ps, which older assemblers do not know: VEX.128.F2.0F38.W0 5C, kB in the prefix.
  template <int kSum, int kA, int kB>
  static void multiply() {
    constexpr int kPrefix = (~kB & 15) << 3 | 3, kRegisters = 0xc0 | kSum << 3 | kA;
    asm volatile(".byte 0xc4, 0xe2, %c0, 0x5c, %c1" ::"i"(kPrefix), "i"(kRegisters));
  }
};

}  // namespace
}  // namespace attn::kernels
