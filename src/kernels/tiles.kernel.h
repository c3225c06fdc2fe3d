// Fills the tables of table.h for one instruction set.
//
// Computes nothing itself: it names, for each arithmetic, which template does which job.
// Loops: none. Requires: the vector types F32, F64 and U64 of a vec_<isa>.h included before.
#pragma once

#include "kernels/few.kernel.h"
#include "kernels/gemm.kernel.h"
#include "kernels/grad.kernel.h"
#include "kernels/lanes.kernel.h"
#include "kernels/rows.kernel.h"
#include "kernels/softmax.kernel.h"

namespace attn::kernels {
namespace {

inline int64_t out_index_panel(int64_t d, int64_t row, int64_t, int64_t stride) { return d * stride + row; }
inline int64_t out_index_few(int64_t d, int64_t row, int64_t, int64_t stride) { return row * stride + d; }

/// Rows in lanes; arithmetic, keys and values in V's type.
template <class V, class U>
constexpr TileKernels panel_kernels(const char* name, int operand) {
  using Dot = FmaDot<V>;
  constexpr int bytes = sizeof(typename V::T);
  return {.name = name,
          .lanes = V::W,
          .panel = 3 * V::W,
          .acc_bytes = bytes,
          .operand = operand,
          .operand_bytes = bytes,
          .query_bytes = bytes,
          .key_pair = 1,
          .depth_multiple = 1,
          .row_major = false,
          .scale_in_scores = false,
          .values_in_place = true,
          .weight_bytes = bytes,
          .pack_query = pack_panel<V>,
          .pack_panel = pack_panel<V>,
          .unpack_panel = unpack_panel<V>,
          .unpack_out = unpack_panel<V>,
          .load_rows = load_rows<V>,
          .store_rows = store_rows<V>,
          .pack_keys = load_rows<V>,
          .pack_values = load_rows<V>,
          .pack_outer = load_rows<V>,
          .out_index = out_index_panel,
          .all_finite = all_finite<V>,
          .dot_rows = dot_rows<F64>,
          .scores = scores<Dot>,
          .scores_softmax = scores_softmax<Dot>,
          .transform = transform<V>,
          .softmax = softmax<Dot>,
          .values = values<Dot>,
          .update = update<V>,
          .exceeds = exceeds<V>,
          .rescale = rescale<V>,
          .inverse = inverse<V>,
          .merge = merge<V>,
          .scores_probabilities = scores_probabilities<Dot>,
          .probabilities = probabilities<V>,
          .grad = grad<Dot>,
          .outer = outer<Dot>,
          .dropout = dropout<U>,
          .mask = mask_lanes<U>};
}

/// The decode variant: at most `lanes` rows, accumulators row-major. Keys and values of kType stay as they are in
/// memory.
template <class V, int kType, class Dot>
constexpr TileKernels few_kernels(TileKernels base) {
  base.name = "float32, few rows";
  base.operand = kType;
  base.panel = V::W;
  base.depth_multiple = V::W;
  base.row_major = true;
  base.pack_query = pack_query_few<V>;
  base.unpack_out = store_rows<V>;
  base.out_index = out_index_few;
  base.scores = scores_few<Dot>;
  base.scores_softmax = scores_softmax_few<Dot>;
  base.values = values_few<FewValues<V, kType>>;
  base.rescale = rescale_few<V>;
  if constexpr (kType != kFloat32) {
    base.operand_bytes = 2;
    base.pack_keys = copy_rows<kType>;
    base.pack_values = copy_rows<kType>;
  }
  return base;
}

constexpr TileKernels f32_kernels = panel_kernels<F32, U64>("float32", kFloat32);
constexpr TileKernels f64_kernels = panel_kernels<F64, U64>("float64", kFloat64);
constexpr TileKernels f32_few_kernels = few_kernels<F32, kFloat32, FmaDot<F32>>(f32_kernels);
constexpr TileKernels f32_few_bf16_kernels = few_kernels<F32, kBfloat16, WideningDot<F32, kBfloat16>>(f32_kernels);
constexpr TileKernels f32_few_f16_kernels = few_kernels<F32, kFloat16, WideningDot<F32, kFloat16>>(f32_kernels);

}  // namespace
}  // namespace attn::kernels
