// What matrix tiles add to AVX-512: compiled with its flags. dispatch.cpp puts the two together, without what AMX-FP16
// has if the CPU does not.
#include "kernels/vec_avx512.h"

#include "kernels/amx_table.kernel.h"
#include "kernels/unit_amx.h"

namespace attn::kernels {
extern const Isa isa_amx = isa_of_tiles<AmxUnit, AmxFp16Unit>("amx_fp16");

}  // namespace attn::kernels
