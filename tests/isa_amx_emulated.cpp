// The kernels on matrix tiles as they are, over tiles in software: kernel sets of the tests alone. main.cpp offers
// them.
#include "kernels/vec_avx512.h"

#include "kernels/amx_table.kernel.h"
#include "unit_twin.h"

namespace attn::kernels {
namespace {

/// Float32 in parts however few rows there are, so that small cases test it.
constexpr Isa with_parts_always() {
  Isa isa = isa_of_tiles<TwinUnit>("amx_emulated_parts");
  isa.f32 = isa.f32_parts[2];
  return isa;
}

}  // namespace

extern const Isa isa_amx_emulated = isa_of_tiles<TwinUnit>("amx_emulated");
extern const Isa isa_amx_emulated_parts = with_parts_always();

}  // namespace attn::kernels
