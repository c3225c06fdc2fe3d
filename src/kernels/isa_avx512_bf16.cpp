// What BF16 dot products add to AVX-512: compiled with its flags and -mavx512bf16. dispatch.cpp puts the two together.
#include "kernels/vec_avx512.h"

#include "kernels/bf16.kernel.h"
#include "kernels/tiles.kernel.h"

namespace attn::kernels {
namespace {

constexpr TileKernels with_bf16_products(TileKernels base) {
  base.name = "bfloat16 dot products";
  base.type = base.unit_type = kBfloat16;
  base.key_step = 2;
  base.key_rows = operand<2, stride_padded<2>, 2>(in_place_near<kBfloat16, 2, kFarBytes>, copy_rows<kBfloat16>);
  base.value_rows = operand<2, stride_as_is, 2>(never_in_place, pair_rows_bf16);
  base.outer_rows = operand<2, stride_of_sums<16>, 2>(never_in_place, pair_rows_bf16);
  base.one_row_format = base.one_format = false;
  base.query_bytes = query_bytes<2, 2>;
  base.weights_bytes = weights_bytes<2, 2>;
  base.pack_query = pack_query_bf16;
  base.multiply_panel = multiply_panel<Bf16Dot>;
  base.scores = scores<Bf16Dot>;
  base.scores_softmax = scores_softmax<Bf16Dot>;
  base.softmax = softmax<Bf16Dot>;
  base.values = values<Bf16Dot>;
  base.values_non_finite = values_non_finite<Bf16Dot, index_in_lanes>;
  base.scores_probabilities = scores_probabilities<Bf16Dot>;
  base.grad = grad<Bf16Dot>;
  base.statistics_grad = statistics_grad<Bf16Dot>;
  base.outer = outer<Bf16Dot>;
  base.outer_non_finite = outer_non_finite<Bf16Dot>;
  return base;
}

constexpr TileKernels with_few_rows(TileKernels base) {
  base.name = "bfloat16 dot products, few rows";
  base.panel = 16;
  base.key_rows = operand<2, stride_padded<32>, 2>(in_place<kBfloat16, 32>, copy_rows<kBfloat16>);
  base.value_rows = operand<2, stride_as_is, 2>(in_place<kBfloat16, 1>, copy_rows<kBfloat16>);
  base.query_bytes = query_bytes<2, 32>;
  base.accumulator_bytes = accumulator_bytes<4, 16>;
  base.pack_query = pack_query_few_bf16;
  base.unpack_out = unpack_out_few_bf16;
  base.scores = scores_few<InOrder<Bf16Dot>>;
  base.scores_softmax = scores_softmax_few<InOrder<Bf16Dot>>;
  base.values = values_few<FewValuePairs>;
  base.values_non_finite = values_non_finite<Bf16Dot, index_in_rows_bf16>;
  base.rescale = rescale_few<F32>;
  return base;
}

constexpr TileKernels bf16_kernels = with_bf16_products(f32_kernels);
constexpr TileKernels bf16_across_kernels =
    across_kernels<Bf16Dot>(with_few_rows(bf16_kernels), "bfloat16 dot products, few rows, any order");
constexpr TileKernels bf16_few_kernels = with_any_order(with_few_rows(bf16_kernels), bf16_across_kernels);

}  // namespace

extern const Isa isa_avx512_bf16 = {
    .name = "avx512_bf16", .bf16 = &bf16_kernels, .bf16_few = &bf16_few_kernels, .bf16_dense = &bf16_kernels};

}  // namespace attn::kernels
