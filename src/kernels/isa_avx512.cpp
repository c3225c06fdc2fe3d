// AVX-512: compiled with -mavx512{f,bw,dq,vl} -mfma -mf16c.
#include "kernels/vec_avx512.h"

#include "kernels/isa.kernel.h"

namespace attn::kernels {

extern const Isa isa_avx512 = isa_of_vectors("avx512");

}  // namespace attn::kernels
