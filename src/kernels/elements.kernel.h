// Fills the tables of elements_table.h for one instruction set.
//
// Computes nothing itself. Loops: none. Requires: the vector types F32, F64 and U64 of a vec_<isa>.h included before.
#pragma once

#include "kernels/activation.kernel.h"
#include "kernels/dropout.kernel.h"
#include "kernels/elementwise.kernel.h"
#include "kernels/loss.kernel.h"
#include "kernels/matvec.kernel.h"
#include "kernels/norm.kernel.h"
#include "kernels/rotary.kernel.h"

namespace attn::kernels {
namespace {

/// Arithmetic in V. Angles and sums of squares are in double whatever V is.
template <class V>
constexpr ElementKernels element_kernels() {
  return {.activate = activate<V>,
          .activate_grad = activate_grad<V>,
          .add = add<V>,
          .scale = scale<V>,
          .add_rows = add_rows<V>,
          .drop = drop<V, U64>,
          .rotate = rotate<V>,
          .angles = angles<F64>,
          .norm = norm<V>,
          .norm_grad = norm_grad<V>,
          .exp_sum = exp_sum<V>,
          .softmax_grad = softmax_grad<V>,
          .adam = adam<V>,
          .sum_of_squares = sum_of_squares<F64>};
}

constexpr ElementKernels with_matvec(ElementKernels base) {
  base.matvec_bytes = matvec_bytes<F32>;
  base.matvec_pack = matvec_pack<F32>;
  base.matvec = matvec<F32>;
  return base;
}

constexpr ElementKernels f32_elements = with_matvec(element_kernels<F32>());
constexpr ElementKernels f64_elements = element_kernels<F64>();

}  // namespace
}  // namespace attn::kernels
