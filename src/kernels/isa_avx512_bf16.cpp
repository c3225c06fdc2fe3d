// What BF16 dot products add to AVX-512: compiled with its flags and -mavx512bf16. dispatch.cpp puts the two together.
#include "kernels/vec_avx512.h"

#include "kernels/bf16.kernel.h"
#include "kernels/tiles.kernel.h"

namespace attn::kernels {
namespace {

constexpr TileKernels with_bf16_products(TileKernels base, const char* name) {
  base.name = name;
  base.operand = kBfloat16;
  base.operand_bytes = base.query_bytes = 2;
  base.key_pair = 2;
  base.depth_multiple = 2;
  base.scale_in_scores = true;
  base.values_in_place = false;
  base.weight_bytes = 2;
  base.pack_query = pack_query_bf16;
  base.pack_keys = copy_rows<kBfloat16>;
  base.pack_values = pair_rows_bf16;
  base.pack_outer = pair_rows_bf16;
  base.scores = scores<Bf16Dot>;
  base.scores_softmax = scores_softmax<Bf16Dot>;
  base.softmax = softmax<Bf16Dot>;
  base.values = values<Bf16Dot>;
  base.scores_probabilities = scores_probabilities<Bf16Dot>;
  base.grad = grad<Bf16Dot>;
  base.outer = outer<Bf16Dot>;
  return base;
}

constexpr TileKernels with_few_rows(TileKernels base, const char* name) {
  base.name = name;
  base.panel = 16;
  base.depth_multiple = 32;
  base.row_major = true;
  base.values_in_place = true;
  base.pack_query = copy_rows<kBfloat16>;
  base.unpack_out = store_rows_few_bf16;
  base.out_index = out_index_few_bf16;
  base.pack_values = copy_rows<kBfloat16>;
  base.scores = scores_few<Bf16Dot>;
  base.scores_softmax = scores_softmax_few<Bf16Dot>;
  base.values = values_few<FewValuePairs>;
  base.rescale = rescale_few<F32>;
  return base;
}

constexpr TileKernels bf16_kernels = with_bf16_products(f32_kernels, "bfloat16");
constexpr TileKernels bf16_few_kernels = with_few_rows(bf16_kernels, "bfloat16, few rows");

}  // namespace

extern const Isa isa_avx512_bf16 = {"avx512_bf16", nullptr,       nullptr,           nullptr, nullptr,
                                    nullptr,       &bf16_kernels, &bf16_few_kernels, nullptr, nullptr};

}  // namespace attn::kernels
