// The kernels on matrix tiles as they are, over tiles in software: a kernel set of the tests alone. main.cpp offers it.
#include "kernels/vec_avx512.h"

#include "kernels/tile_gemm.kernel.h"
#include "kernels/tile_table.kernel.h"
#include "unit_twin.h"

namespace attn::kernels {
namespace {

constexpr TileKernels bf16_kernels = bf16_on_tiles<TwinUnit>;
constexpr ProductKernels f32_products = products_on_tiles<TwinUnit>;

}  // namespace

extern const Isa isa_amx_emulated = {.name = "amx_emulated", .bf16 = &bf16_kernels, .f32_products = &f32_products};

}  // namespace attn::kernels
