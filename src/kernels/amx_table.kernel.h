// Fills the tables of table.h with products on matrix tiles; what happens between the products is AVX-512's.
//
// Computes nothing itself. Loops: none. Requires: as parts.kernel.h; a Unit with the instructions of unit_amx.h.
#pragma once

#include "kernels/amx_few.kernel.h"
#include "kernels/amx_gemm.kernel.h"
#include "kernels/amx_softmax.kernel.h"
#include "kernels/tiles.kernel.h"

namespace attn::kernels {
namespace {

// Two vectors of rows: 2 x 2 tiles take one load a product. 32 x 128 queries (8 KiB), weights of 256 keys (16) and sums
// (16) fill the 48 KiB of a first-level cache with two slices of scores. The panel before, whose product with the
// values is late, has as many weights: at D = 128 some of them come from the second level.
constexpr int kTilePanel = 32;
// Packing keys and values takes a fifth of a pass with 256 rows and a twentieth with 1024 (prototype, D = 128).
constexpr int kTileGroupPanels = 8;
constexpr int kWideTileGroupPanels = 32;
// A chunk begins with a look for references and ends with states to merge: from 4096 tokens on, chunks of 2048 keys
// take 2 to 10 % longer.
constexpr int64_t kTileChunkKeys = 4096;
// Sums of dK and dV move once for so many panels, each of which is one step of their sums.
constexpr int kTileGradientPanels = 8;

/// Keys of a unit's own type in place, if they are near each other.
template <class Dot>
constexpr Operand key_parts() {
  constexpr int P = Dot::kParts;
  if constexpr (Dot::kNear)
    return operand<2, stride_padded<kTileSum>, kTileSum>(in_place_near<Dot::kType, kTileSum, kFarBytes>,
                                                         pack_keys_parts<Dot>);
  return operand<2, stride_of_key_parts<P>, kTileSum>(never_in_place, pack_keys_parts<Dot>);
}

/// What the forward takes.
template <class Dot>
constexpr TileKernels with_tile_forward(TileKernels base, const char* name) {
  using Unit = typename Dot::Unit;
  constexpr int P = Dot::kParts;
  base.name = name;
  base.chunk_keys = kTileChunkKeys;
  base.type = Dot::kType;
  base.unit_type = kBfloat16;  // tiles multiply float16 at the same rate
  base.score_products = Dot::kScoreProducts;
  base.sum_products = Dot::kSumProducts;
  base.own_bits = Dot::kType != kBfloat16;
  base.late_values = base.by_sums = true;
  base.bounded = Dot::kBounded;
  if constexpr (Dot::kBounded) base.all_finite = all_in_range<Dot>;
  base.panel = kTilePanel;
  base.group_panels = kTileGroupPanels;
  base.wide_group_panels = kWideTileGroupPanels;
  base.tile_step = base.key_step = kTileSum;
  base.key_rows = key_parts<Dot>();
  base.value_rows = {.row_step = kTileSum,
                     .in_place = never_in_place,
                     .pack = pack_values_parts<Dot>,
                     .stride = stride_as_is,
                     .bytes = value_parts_bytes<P>};
  base.one_row_format = base.one_format = false;
  base.query_bytes = query_parts_bytes<P>;
  base.weights_bytes = weights_bytes<2 * P, 2>;
  base.accumulator_bytes = accumulator_bytes<4, kTileRows>;
  base.enter = enter_tiles<Unit>;
  base.leave = leave_tiles<Unit>;
  base.pack_query = pack_query_parts<Dot>;
  base.scores = scores<Dot>;
  base.scores_softmax = tile_scores_softmax<Dot>;
  base.softmax = softmax<Dot>;
  base.values = tile_values<Dot>;
  base.values_non_finite = values_non_finite<Dot, index_in_lanes>;
  return base;
}

/// And the backward.
template <class Dot>
constexpr TileKernels with_tile_products(TileKernels base, const char* name) {
  constexpr int P = Dot::kParts;
  base = with_tile_forward<Dot>(base, name);
  base.gradient_panels = kTileGradientPanels;
  base.outer_rows = {.row_step = kTileSum,
                     .in_place = never_in_place,
                     .pack = pack_outer_parts<Dot>,
                     .stride = stride_of_sums<F32::W>,
                     .bytes = outer_parts_bytes<P>};
  base.scores_probabilities = scores_probabilities<Dot>;
  base.probabilities = probabilities<Dot>;
  base.row_sums = row_sums<Dot>;
  base.grad = grad<Dot>;
  base.statistics_grad = statistics_grad<Dot>;
  base.outer = tile_outer<Dot>;
  base.outer_non_finite = outer_non_finite<Dot>;
  return base;
}

// A panel has 32 rows of products however few it holds. 512 tokens of 12 heads of 64 in sequences of so many, speed
// beside AVX-512: bfloat16 backward of 8, 16, 24, 32: 0.61, 0.83, 1.06, 1.30; float16 of 16, 24, 32, 40, 48, 56, 64:
// forward 0.52, 0.66, 0.75, 0.72, 0.78, 0.98, 1.00, backward 0.61, 0.73, 0.87, 0.79, 0.90, 1.04, 1.20.
constexpr int kLeastGradientRowsOfBfloat16 = 17, kLeastRowsOfFloat16 = 49;

constexpr TileKernels for_more_rows(TileKernels base, int least_rows, int least_gradient_rows) {
  base.least_rows = least_rows;
  base.least_gradient_rows = least_gradient_rows;
  return base;
}

template <class Unit>
constexpr TileKernels bf16_on_tiles =
    for_more_rows(with_tile_products<TileDot<Unit, 1, kBfloat16>>(f32_kernels, "bfloat16 on matrix tiles"), 0,
                  kLeastGradientRowsOfBfloat16);
// One row reads at 91 % of a plain read's bandwidth with widened numbers and at 69 on tiles, eight at 58 and 71
// (prototype, D = 128); between them nothing was measured.
constexpr int kLeastRowsOnTiles = 5;

template <class Unit>
constexpr TileKernels with_few_rows_on_tiles(TileKernels base) {
  base.name = "bfloat16 on matrix tiles, few rows";
  base.panel = F32::W;
  base.least_rows = kLeastRowsOnTiles;
  base.late_values = false;
  base.key_rows = operand<2, stride_padded<kTileSum>, kTileSum>(in_place<kBfloat16, kTileSum>, copy_rows<kBfloat16>);
  base.value_rows = operand<2, stride_as_is, kTileSum>(in_place<kBfloat16, 1>, copy_rows<kBfloat16>);
  base.unpack_out = unpack_out_few<F32>;
  base.values = tile_values_few<Unit>;
  base.values_non_finite = values_non_finite<TileDot<Unit, 1, kBfloat16>, index_in_rows<F32>>;
  base.rescale = rescale_few<F32>;
  return base;
}
template <class Unit>
constexpr TileKernels bf16_few_on_tiles = with_few_rows_on_tiles<Unit>(bf16_on_tiles<Unit>);

template <class Unit>
constexpr TileKernels f16_on_tiles = for_more_rows(
    with_tile_products<TileDot<Unit, 2, kFloat16>>(f32_kernels, "float16 as two bfloat16 parts on matrix tiles"),
    kLeastRowsOfFloat16, kLeastRowsOfFloat16);
/// Whole numbers of float16, the forward alone: gradients may leave its range.
template <class Unit>
constexpr TileKernels f16_forward_on_tiles = with_tile_forward<TileDot<Unit, 1, kFloat16>>(f32_kernels,
                                                                                           "float16 on matrix tiles");
constexpr const char* kF32PartsNames[] = {"float32 rounded to bfloat16 on matrix tiles",
                                          "float32 as two bfloat16 parts on matrix tiles, three products for one",
                                          "float32 as three bfloat16 parts on matrix tiles, six products for one"};
template <class Unit, int parts>
constexpr TileKernels f32_on_tiles = with_tile_products<TileDot<Unit, parts, kFloat32>>(f32_kernels,
                                                                                        kF32PartsNames[parts - 1]);

/// What tiles add to an instruction set.
template <class Unit, class Fp16Unit>
constexpr Isa isa_of_tiles(const char* name) {
  return {.name = name,
          .bf16 = &bf16_on_tiles<Unit>,
          .bf16_few = &bf16_few_on_tiles<Unit>,
          .f16 = &f16_on_tiles<Unit>,
          .f16_forward = &f16_forward_on_tiles<Fp16Unit>,
          .f32_parts = {&f32_on_tiles<Unit, 1>, &f32_on_tiles<Unit, 2>, &f32_on_tiles<Unit, 3>},
          .products = &products_on_tiles<Unit>};
}

}  // namespace
}  // namespace attn::kernels
