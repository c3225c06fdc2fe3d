// The multiply-add units and loads of x86-64, in assembly: a compiler may fold, spill or reorder what must be exactly
// these instructions, and this way the file needs no flags and the program around it runs on any x86-64.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "attn/attention.h"
#include "attn/peaks.h"
#include "peaks/read.h"

namespace attn::peaks {
namespace {

// The rest of the vector registers are unknown to code without flags, which therefore holds nothing in them.
#define ATTN_CLOBBERS                                                                                                 \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", \
      "xmm14", "xmm15", "cc", "memory"

#define ATTN_TO_15 "2,3,4,5,6,7,8,9,10,11,12,13,14,15"
#define ATTN_TO_25 ATTN_TO_15 ",16,17,18,19,20,21,22,23,24,25"

// Laid out by hand, a line of assembly a line.
// clang-format off
#define ATTN_FOR_EACH(registers, line) ".irp r, " registers "\n" line "\n.endr\n"

// 14 or 24 accumulators hide six cycles of latency on two pipes. All are zero: no overflow, no denormals.
#define ATTN_FMA_LOOP(instruction, v, accumulators)                                                \
  asm volatile(ATTN_FOR_EACH("0,1," accumulators, "vxorps %%" v "\\r, %%" v "\\r, %%" v "\\r")     \
               "1: .rept 4\n"                                                                      \
               ATTN_FOR_EACH(accumulators, instruction " %%" v "0, %%" v "1, %%" v "\\r")          \
               ".endr\n dec %0\n jnz 1b\n vzeroupper\n"                                            \
               : "+r"(loops) : : ATTN_CLOBBERS)

// Before FMA: as many multiplications as additions, which some cores issue to pipes of their own.
#define ATTN_SSE2_LOOP(multiply, add)                                                              \
  asm volatile(ATTN_FOR_EACH("0,1," ATTN_TO_15, "xorps %%xmm\\r, %%xmm\\r")                        \
               "1: .rept 4\n"                                                                      \
               ATTN_FOR_EACH("2,3,4,5,6,7,8", multiply " %%xmm0, %%xmm\\r")                        \
               ATTN_FOR_EACH("9,10,11,12,13,14,15", add " %%xmm1, %%xmm\\r")                       \
               ".endr\n dec %0\n jnz 1b\n"                                                         \
               : "+r"(loops) : : ATTN_CLOBBERS)

// Sixteen independent sums, each of one load a loop.
#define ATTN_READ_LOOP(load_and_add, loop_bytes)                                                   \
  asm volatile("1:\n"                                                                              \
               ATTN_FOR_EACH("0,1," ATTN_TO_15, load_and_add)                                      \
               "add $" loop_bytes ", %0\n cmp %1, %0\n jb 1b\n"                                    \
               : "+r"(begin) : "r"(end) : ATTN_CLOBBERS)
// clang-format on

void sse2_f32(int64_t loops) { ATTN_SSE2_LOOP("mulps", "addps"); }
void sse2_f64(int64_t loops) { ATTN_SSE2_LOOP("mulpd", "addpd"); }
void avx2_f32(int64_t loops) { ATTN_FMA_LOOP("vfmadd231ps", "ymm", ATTN_TO_15); }
void avx2_f64(int64_t loops) { ATTN_FMA_LOOP("vfmadd231pd", "ymm", ATTN_TO_15); }
void avx512_f32(int64_t loops) { ATTN_FMA_LOOP("vfmadd231ps", "zmm", ATTN_TO_25); }
void avx512_f64(int64_t loops) { ATTN_FMA_LOOP("vfmadd231pd", "zmm", ATTN_TO_25); }
void avx512_bf16(int64_t loops) { ATTN_FMA_LOOP("vdpbf16ps", "zmm", ATTN_TO_25); }

/// Four products of 16 x 16 x 32 and the loads of their operands, which the first-level cache has: what kernels can
/// reach. Random numbers, because the clock depends on them: zeros from registers run a quarter faster.
void amx_bf16(int64_t loops) {
  struct Operands {
    alignas(64) uint16_t tiles[4][16 * 32];
    alignas(64) uint8_t whole_tiles[64] = {1};
    Operands() {
      uint32_t state = 1;
      for (auto& tile : tiles)
        for (uint16_t& x : tile) {
          state = state * 1664525 + 1013904223;
          x = static_cast<uint16_t>((state >> 16 & 0x8000) | 0x3f00 | (state >> 8 & 0xff));  // 0.5 to 2, either sign
        }
      for (int t = 0; t < 8; ++t) {
        whole_tiles[16 + 2 * t] = 64;
        whole_tiles[48 + t] = 16;
      }
    }
  };
  static const Operands operands;
  asm volatile("ldtilecfg %0" ::"m"(operands.whole_tiles));
  asm volatile(
      "tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n tilezero %%tmm3\n"
      "1: .rept 4\n"
      "tileloadd (%1,%2,1), %%tmm4\n tileloadd 2048(%1,%2,1), %%tmm6\n tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n"
      "tileloadd 3072(%1,%2,1), %%tmm7\n tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n"
      "tileloadd 1024(%1,%2,1), %%tmm5\n tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n"
      ".endr\n dec %0\n jnz 1b\n tilerelease\n"
      : "+r"(loops)
      : "r"(operands.tiles), "r"(int64_t{64})
      : "cc", "memory");
}

// flops: repeats x accumulators x lanes x 2 (x 2 for pairs); one for each instruction and lane without FMA.
constexpr Unit kUnits[] = {
    {"baseline", DType::float32, "mulps + addps", 4 * 14 * 4, sse2_f32},
    {"baseline", DType::float64, "mulpd + addpd", 4 * 14 * 2, sse2_f64},
    {"avx2", DType::float32, "vfmadd231ps ymm", 4 * 14 * 8 * 2, avx2_f32},
    {"avx2", DType::float64, "vfmadd231pd ymm", 4 * 14 * 4 * 2, avx2_f64},
    {"avx512", DType::float32, "vfmadd231ps zmm", 4 * 24 * 16 * 2, avx512_f32},
    {"avx512", DType::float64, "vfmadd231pd zmm", 4 * 24 * 8 * 2, avx512_f64},
    {"avx512_bf16", DType::bfloat16, "vdpbf16ps zmm", 4 * 24 * 16 * 2 * 2, avx512_bf16},
    {"amx", DType::float32, "vfmadd231ps zmm", 4 * 24 * 16 * 2, avx512_f32},
    {"amx", DType::float64, "vfmadd231pd zmm", 4 * 24 * 8 * 2, avx512_f64},
    {"amx", DType::bfloat16, "tdpbf16ps, loaded", 4 * 4 * 16 * 16 * 32 * 2, amx_bf16},
};

void sse2_read(const char* begin, const char* end) { ATTN_READ_LOOP("paddd 16*\\r(%0), %%xmm\\r", "256"); }
void avx2_read(const char* begin, const char* end) {
  ATTN_READ_LOOP("vpaddd 32*\\r(%0), %%ymm\\r, %%ymm\\r", "512");
  asm volatile("vzeroupper");
}

}  // namespace

std::span<const Unit> units() { return kUnits; }

void read_memory(const char* begin, const char* end) {
  static const bool has_avx2 = [] {
    const std::vector<std::string> isas = available_isas();
    return std::find(isas.begin(), isas.end(), "avx2") != isas.end();
  }();
  (has_avx2 ? avx2_read : sse2_read)(begin, end);
}

}  // namespace attn::peaks
