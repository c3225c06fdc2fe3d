// aarch64: NEON is part of the base architecture.
#include "kernels/vec_generic.h"

#include "kernels/isa.kernel.h"

namespace attn::kernels {

extern const Isa isa_neon = isa_of_vectors("neon");

}  // namespace attn::kernels
