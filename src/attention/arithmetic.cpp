#include "attention/arithmetic.h"

#include <algorithm>

#include "kernels/dispatch.h"

namespace attn::detail {

const TileKernels& select_kernels(DType dtype, bool few) {
  const kernels::Isa& isa = active_kernels();
  if (dtype == DType::float64) return *isa.f64;
  if (dtype == DType::bfloat16 && isa.bf16) return few ? *isa.bf16_few : *isa.bf16;
  if (!few) return *isa.f32;
  return dtype == DType::bfloat16 ? *isa.f32_few_bf16 : dtype == DType::float16 ? *isa.f32_few_f16 : *isa.f32_few;
}

int64_t few_rows(DType dtype) { return dtype == DType::float64 ? 0 : std::min(8, select_kernels(dtype, true).lanes); }

}  // namespace attn::detail
