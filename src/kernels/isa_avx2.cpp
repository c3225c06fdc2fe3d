// AVX2: compiled with -mavx2 -mfma -mf16c.
#include "kernels/vec_avx2.h"

#include "kernels/isa.kernel.h"

namespace attn::kernels {

extern const Isa isa_avx2 = isa_of_vectors("avx2");

}  // namespace attn::kernels
