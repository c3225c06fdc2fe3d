// AVX2: compiled with -mavx2 -mfma -mf16c.
#include "kernels/vec_avx2.h"

#include "kernels/elements.kernel.h"
#include "kernels/tiles.kernel.h"

namespace attn::kernels {

extern const Isa isa_avx2 = {"avx2",       &f32_kernels, &f32_few_kernels, &f32_few_bf16_kernels, &f32_few_f16_kernels,
                             &f64_kernels, nullptr,      nullptr,          &f32_elements,         &f64_elements};

}  // namespace attn::kernels
