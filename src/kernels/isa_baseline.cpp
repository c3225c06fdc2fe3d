// What every x86-64 has (SSE2); also the fallback of other machines.
#include "kernels/vec_generic.h"

#include "kernels/isa.kernel.h"

namespace attn::kernels {

extern const Isa isa_baseline = isa_of_vectors("baseline");

}  // namespace attn::kernels
