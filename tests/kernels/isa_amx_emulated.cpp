// The kernels on matrix tiles as they are, over tiles in software: kernel sets of the tests alone. main.cpp offers
// them.
#include "kernels/vec_avx512.h"

#include "kernels/amx_table.kernel.h"
#include "unit_twin.h"

namespace attn::kernels {
namespace {

constexpr Isa tiles = isa_of_tiles<TwinUnit, TwinFp16Unit>("amx_emulated");

/// As on a CPU that multiplies no float16.
constexpr Isa without_fp16() {
  Isa isa = tiles;
  isa.f16_forward = nullptr;
  return isa;
}
constexpr TileKernels for_any_rows(TileKernels kernels) { return for_more_rows(kernels, 0, 0); }
constexpr TileKernels bf16_for_any_rows = for_any_rows(bf16_on_tiles<TwinUnit>);
constexpr TileKernels f16_for_any_rows = for_any_rows(f16_on_tiles<TwinUnit>);

/// On tiles, and float32 in parts, however few rows there are, so that small cases test it.
constexpr Isa with_parts_always() {
  Isa isa = without_fp16();
  isa.name = "amx_emulated_parts";
  isa.f32 = isa.f32_parts[2];
  isa.bf16 = &bf16_for_any_rows;
  isa.f16 = &f16_for_any_rows;
  return isa;
}
/// Bfloat16 without tiles: the other two test them.
constexpr Isa with_fp16() {
  Isa isa = tiles;
  isa.name = "amx_emulated_fp16";
  isa.bf16 = isa.bf16_few = nullptr;
  return isa;
}

}  // namespace

extern const Isa isa_amx_emulated = without_fp16();
extern const Isa isa_amx_emulated_parts = with_parts_always();
extern const Isa isa_amx_emulated_fp16 = with_fp16();

}  // namespace attn::kernels
