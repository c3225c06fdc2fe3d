// Fills the tables of table.h for one instruction set.
//
// Computes nothing itself: it names, for each arithmetic, which template does which job.
// Loops: none. Requires: the vector types F32, F64 and U64 of a vec_<isa>.h included before.
#pragma once

#include "kernels/across.kernel.h"
#include "kernels/gemm.kernel.h"
#include "kernels/grad.kernel.h"
#include "kernels/lanes.kernel.h"
#include "kernels/operands.kernel.h"
#include "kernels/products.kernel.h"
#include "kernels/rows.kernel.h"
#include "kernels/single.kernel.h"
#include "kernels/softmax.kernel.h"
#include "kernels/statistics.kernel.h"

namespace attn::kernels {
namespace {

// Panels that share one pass over a block of keys: 3 panels of 48 read K and V once per 144 queries (72 flop a byte).
constexpr int kGroupPanels = 3;
// Up to so many where the pass packs K and V first. Against heads that are contiguously, [B, L, H, D] of 2048 tokens
// takes 5 % longer in groups of 6, 3 in groups of 12, 2 in groups of 18 (Zen 5, float32, D = 64).
constexpr int kWideGroupPanels = 12;
// Backward: dK and dV move once per 3 x 48 rows; with twice as many, a call takes 2 to 5 % longer at D = 128.
constexpr int kGradientPanels = 3;
// Absolute blocks and chunks: a row meets the same keys in the same groups in every call, which is what makes its
// bits independent of the schedule. Block: the forward is flat within 1 % from 192 to 512 keys. Chunk: the unit that
// threads may split; a merge every 2048 keys costs under 0.5 % of the arithmetic.
constexpr int64_t kBlockKeys = 256;
constexpr int64_t kChunkKeys = 2048;
// One row reads keys and values as streams that take turns: blocks of 256 take 4 to 13 % longer where heads are
// contiguous, 0 to 5 in [B, L, H, D] (Zen 4).
constexpr int64_t kSingleBlockKeys = 512;
// Backward: K, V, dK, dV and the three tiles of a block of 128 keys stay in a 1 MiB L2 up to D = 128.
constexpr int64_t kGradientKeys = 128;
// Whole groups of 8 keys keep the micro-tiles and the pairs of the 16-bit layouts aligned.
constexpr int kTileStep = 8;

// Rows further apart are packed, once a block and group: in place they fall into few sets of the first-level cache and
// on a page each. [B, L, H, D], 16 heads of D = 64, 1024 tokens: 11 % slower than contiguous heads in place, 4 % packed
// (Zen 4; the bfloat16 kernels, which pack values anyway, gain nothing by packing keys).
constexpr int kFarBytes = 1024;

/// Rows in lanes; arithmetic, keys and values in V's type, kType.
template <class V, class U, int kType>
constexpr TileKernels panel_kernels(const char* name) {
  using Dot = FmaDot<V>;
  constexpr int bytes = sizeof(typename V::T);
  constexpr Operand rows = operand<bytes, stride_as_is, 1>(in_place_near<kType, 1, kFarBytes>, load_rows<V>);
  return {.name = name,
          .lanes = V::W,
          .panel = 3 * V::W,
          .acc_bytes = bytes,
          .type = kType,
          .unit_type = kType,
          .score_products = 1,
          .sum_products = 1,
          .least_rows = 0,
          .least_gradient_rows = 0,
          .any_order = nullptr,
          .own_bits = false,
          .late_values = false,
          .by_sums = false,
          .bounded = false,
          .group_panels = kGroupPanels,
          .wide_group_panels = kWideGroupPanels,
          .gradient_panels = kGradientPanels,
          .block_keys = kBlockKeys,
          .gradient_keys = kGradientKeys,
          .chunk_keys = kChunkKeys,
          .tile_step = kTileStep,
          .key_step = 1,
          .key_rows = rows,
          .value_rows = rows,
          .outer_rows = operand<bytes, stride_of_sums<V::W>, 1>(never_in_place, load_rows<V>),
          .one_row_format = true,
          .one_format = true,
          .query_bytes = query_bytes<bytes, 1>,
          .weights_bytes = weights_bytes<bytes, 1>,
          .accumulator_bytes = accumulator_bytes<bytes, 1>,
          .enter = nullptr,
          .leave = nullptr,
          .pack_query = pack_panel<V>,
          .pack_panel = pack_panel<V>,
          .unpack_panel = unpack_panel<V>,
          .unpack_out = unpack_panel<V>,
          .load_rows = load_rows<V>,
          .store_rows = store_rows<V>,
          .all_finite = all_finite<V>,
          .decode_rows = decode_rows<F32>,
          .dot_rows = dot_rows<F64>,
          .multiply_panel = multiply_panel_of<V>,
          .scores = scores<Dot>,
          .scores_softmax = scores_softmax<Dot>,
          .transform = transform<V>,
          .softmax = softmax<Dot>,
          .values = values<Dot>,
          .values_non_finite = values_non_finite<Dot, index_in_lanes>,
          .scores_of_heads = nullptr,
          .values_of_heads = nullptr,
          .update = update<V>,
          .exceeds = exceeds<V>,
          .rescale = rescale<V>,
          .inverse = inverse<V>,
          .merge = merge<V>,
          .scores_probabilities = scores_probabilities<Dot>,
          .probabilities = probabilities<Dot>,
          .grad = grad<Dot>,
          .outer = outer<Dot>,
          .outer_non_finite = outer_non_finite<Dot>,
          .dropout = dropout<U>,
          .mask = mask_lanes<U>,
          .row_sums = row_sums<Dot>,
          .column_sums = column_sums<V>,
          .masked_sums = masked_sums<V>,
          .label_sums = label_sums<V>,
          .above = above<V>,
          .statistics_grad = statistics_grad<Dot>};
}

/// The decode variant: at most `lanes` rows, accumulators row-major. Keys and values of kType stay as they are in
/// memory.
template <class V, int kType, class Dot>
constexpr TileKernels few_kernels(TileKernels base) {
  constexpr int bytes = kType == kFloat32 ? 4 : 2;
  void (*pack)(const RowsArgs&) = load_rows<V>;
  if constexpr (kType != kFloat32) pack = copy_rows<kType>;
  base.name = "float32 multiply-adds, few rows";
  base.type = kType;
  base.panel = V::W;
  base.key_rows = operand<bytes, stride_padded<V::W>, 1>(in_place<kType, V::W>, pack);
  base.value_rows = operand<bytes, stride_as_is, 1>(in_place<kType, 1>, pack);
  base.query_bytes = query_bytes<4, V::W>;
  base.accumulator_bytes = accumulator_bytes<4, V::W>;
  base.pack_query = pack_query_few<V>;
  base.unpack_out = unpack_out_few<V>;
  base.scores = scores_few<InOrder<Dot>>;
  base.scores_softmax = scores_softmax_few<InOrder<Dot>>;
  base.values = values_few<FewValues<V, kType>>;
  base.values_non_finite = values_non_finite<FmaDot<V>, index_in_rows<V>>;
  base.rescale = rescale_few<V>;
  return base;
}

/// The decode variant of a quantized KV cache: a key's scale multiplies its scores, a value's scale its weights.
template <class V, class Dot>
constexpr TileKernels few_int8_kernels(TileKernels few) {
  few.name = "float32 multiply-adds, few rows, 8-bit keys and values";
  few.type = kInt8;
  few.key_rows = operand<1, stride_of_int8<V::W>, 1>(in_place<kInt8, V::W>, copy_int8_rows);
  few.value_rows = operand<1, stride_of_int8<1>, 1>(in_place<kInt8, 1>, copy_int8_rows);
  few.all_finite = all_finite_int8;
  few.scores = scores_few<Across<Dot>>;
  few.scores_softmax = scores_softmax_few<Across<Dot>>;
  few.values = values_few<FewValues<V, kInt8>>;
  return few;
}

/// The decode variant with scores in another order.
template <class Dot>
constexpr TileKernels across_kernels(TileKernels few, const char* name) {
  few.name = name;
  few.scores = scores_few<Across<Dot>>;
  few.scores_softmax = scores_softmax_few<Across<Dot>>;
  return few;
}
constexpr TileKernels with_any_order(TileKernels few, const TileKernels& any_order) {
  few.any_order = &any_order;
  return few;
}

/// One row, in an order of additions of its own: keys of the decode variant, scores and weights [count].
template <class V, int kType, class Dot>
constexpr TileKernels single_kernels(TileKernels few) {
  few.name = "float32 multiply-adds, one row";
  few.any_order = nullptr;
  few.tile_step = 1;
  few.block_keys = kSingleBlockKeys;
  few.weights_bytes = [](int64_t keys, int /*width*/) { return keys * int64_t{sizeof(typename V::T)}; };
  few.accumulator_bytes = [](int64_t depth, int /*width*/) { return accumulator_bytes<4, V::W>(depth, 1); };
  few.query_bytes = [](int64_t n, int /*width*/) { return query_bytes<4, V::W>(n, 1); };
  few.scores = scores_single<Dot>;
  few.scores_softmax = nullptr;
  few.transform = nullptr;
  few.softmax = softmax_single<V>;
  few.values = values_single<V, kType>;
  few.scores_of_heads = scores_single_of_heads<Dot>;
  few.values_of_heads = values_single_of_heads<V, kType>;
  few.values_non_finite = nullptr;
  return few;
}

constexpr TileKernels f32_kernels = panel_kernels<F32, U64, kFloat32>("float32 multiply-adds");
constexpr TileKernels f64_kernels = panel_kernels<F64, U64, kFloat64>("float64 multiply-adds");
template <int kType, class Dot>
constexpr TileKernels f32_across_kernels = across_kernels<Dot>(few_kernels<F32, kType, Dot>(f32_kernels),
                                                               "float32 multiply-adds, few rows, any order");
template <int kType, class Dot>
constexpr TileKernels f32_few_of() {
  constexpr TileKernels few = few_kernels<F32, kType, Dot>(f32_kernels);
  if constexpr (F32::kAcross) return with_any_order(few, f32_across_kernels<kType, Dot>);
  else return few;
}
constexpr TileKernels f32_few_kernels = f32_few_of<kFloat32, FmaDot<F32>>();
constexpr TileKernels f32_few_bf16_kernels = f32_few_of<kBfloat16, WideningDot<F32, kBfloat16>>();
constexpr TileKernels f32_few_f16_kernels = f32_few_of<kFloat16, WideningDot<F32, kFloat16>>();
using Int8Dot = WideningDot<F32, kInt8>;
constexpr TileKernels f32_few_int8_kernels =
    few_int8_kernels<F32, Int8Dot>(few_kernels<F32, kFloat32, FmaDot<F32>>(f32_kernels));
constexpr TileKernels f32_single_int8_kernels = single_kernels<F32, kInt8, Int8Dot>(f32_few_int8_kernels);
constexpr TileKernels f32_single_kernels = single_kernels<F32, kFloat32, FmaDot<F32>>(f32_few_kernels);
constexpr TileKernels f32_single_f16_kernels =
    single_kernels<F32, kFloat16, WideningDot<F32, kFloat16>>(f32_few_f16_kernels);
constexpr TileKernels f32_single_bf16_kernels =
    single_kernels<F32, kBfloat16, WideningDot<F32, kBfloat16>>(f32_few_bf16_kernels);

}  // namespace
}  // namespace attn::kernels
