// What matrix tiles add to AVX-512: compiled with its flags. dispatch.cpp puts the two together.
#include "kernels/vec_avx512.h"

#include "kernels/tile_gemm.kernel.h"
#include "kernels/tile_table.kernel.h"
#include "kernels/unit_amx.h"

namespace attn::kernels {
namespace {

constexpr TileKernels bf16_kernels = bf16_on_tiles<AmxUnit>;
constexpr ProductKernels f32_products = products_on_tiles<AmxUnit>;

}  // namespace

extern const Isa isa_amx = {.name = "amx", .bf16 = &bf16_kernels, .f32_products = &f32_products};

}  // namespace attn::kernels
