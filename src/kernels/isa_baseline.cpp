// What every x86-64 has (SSE2); also the fallback of other machines.
#include "kernels/vec_generic.h"

#include "kernels/elements.kernel.h"
#include "kernels/tiles.kernel.h"

namespace attn::kernels {

extern const Isa isa_baseline = {"baseline",           &f32_kernels, &f32_few_kernels, &f32_few_bf16_kernels,
                                 &f32_few_f16_kernels, &f64_kernels, nullptr,          nullptr,
                                 &f32_elements,        &f64_elements};

}  // namespace attn::kernels
