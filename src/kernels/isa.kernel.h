// The kernel sets that every instruction set has.
//
// Computes nothing itself. Loops: none. Requires: a vec_<isa>.h included before.
#pragma once

#include "kernels/elements.kernel.h"
#include "kernels/linear.kernel.h"
#include "kernels/quantized.kernel.h"
#include "kernels/tiles.kernel.h"

namespace attn::kernels {
namespace {

constexpr QuantizedKernels quantized_table = quantized_kernels<F32, Code>();

constexpr Isa isa_of_vectors(const char* name) {
  return {.name = name,
          .f32 = &f32_kernels,
          .f32_few = &f32_few_kernels,
          .f32_few_bf16 = &f32_few_bf16_kernels,
          .f32_few_f16 = &f32_few_f16_kernels,
          .f32_few_int8 = &f32_few_int8_kernels,
          .f32_single = &f32_single_kernels,
          .f32_single_bf16 = &f32_single_bf16_kernels,
          .f32_single_f16 = &f32_single_f16_kernels,
          .f32_single_int8 = &f32_single_int8_kernels,
          .f64 = &f64_kernels,
          .f32_dense = &f32_kernels,
          .f32_elements = &f32_elements,
          .f64_elements = &f64_elements,
          .f32_linear = &f32_linear,
          .f64_linear = &f64_linear,
          .quantized = &quantized_table};
}

}  // namespace
}  // namespace attn::kernels
