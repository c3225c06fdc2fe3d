// The multiply-add units and loads of AArch64, in assembly: exactly these instructions, whatever the compiler.
#include "attn/peaks.h"
#include "peaks/read.h"

namespace attn::peaks {
namespace {

#define ATTN_CLOBBERS                                                                                                 \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", \
      "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "cc", "memory"

#define ATTN_TO_25 "2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25"

// 24 accumulators hide six cycles of latency on four pipes. All are zero: no overflow, no denormals.
// Laid out by hand, a line of assembly a line.
// clang-format off
#define ATTN_FOR_EACH(registers, line) ".irp r, " registers "\n" line "\n.endr\n"

#define ATTN_FMA_LOOP(lanes)                                                                         \
  asm volatile(ATTN_FOR_EACH("0,1," ATTN_TO_25, "movi v\\r\\().2d, #0")                              \
               "1:\n"                                                                                \
               ATTN_FOR_EACH(ATTN_TO_25, "fmla v\\r\\()." lanes ", v0." lanes ", v1." lanes)         \
               "subs %0, %0, #1\n b.ne 1b\n"                                                         \
               : "+r"(loops) : : ATTN_CLOBBERS)
// clang-format on

void neon_f32(int64_t loops) { ATTN_FMA_LOOP("4s"); }
void neon_f64(int64_t loops) { ATTN_FMA_LOOP("2d"); }

// flops: accumulators x lanes x 2. NEON belongs to the baseline of the architecture.
constexpr Unit kUnits[] = {
    {"baseline", DType::float32, "fmla 4s", 24 * 4 * 2, neon_f32},
    {"baseline", DType::float64, "fmla 2d", 24 * 2 * 2, neon_f64},
    {"neon", DType::float32, "fmla 4s", 24 * 4 * 2, neon_f32},
    {"neon", DType::float64, "fmla 2d", 24 * 2 * 2, neon_f64},
};

}  // namespace

std::span<const Unit> units() { return kUnits; }

void read_memory(const char* begin, const char* end) {
  asm volatile(
      "1: .rept 8\n ldp q0, q1, [%0], #32\n ldp q2, q3, [%0], #32\n .endr\n"
      "cmp %0, %1\n b.lo 1b\n"
      : "+r"(begin)
      : "r"(end)
      : ATTN_CLOBBERS);
}

}  // namespace attn::peaks
