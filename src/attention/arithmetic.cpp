#include "attention/arithmetic.h"

#include <algorithm>

#include "kernels/dispatch.h"

namespace attn::detail {

namespace {

// Up to 8 of 16 lanes the decode kernels beat the panel kernels on Zen 4.
constexpr int64_t kFewRows = 8;
// Cutting keys and values into parts pays from so many rows on: 19 % of a call with 256 rows, 9 with 2048 (Sapphire
// Rapids, prototype).
constexpr int64_t kManyRows = 256;

// Weights reach 2^8 against their reference (online_softmax.cpp), and dropout multiplies them by 1 / (1 - p): 2^15
// then.
constexpr double kMostDropoutOfFloat16 = 1 - 1 / 128.0;

/// The kernels of a row alone; null where those of few rows are as quick.
const TileKernels* single_kernels(const kernels::Isa& isa, DType dtype, bool is_int8) {
  if (is_int8) return isa.f32_single_int8;
  if (dtype == DType::float32) return isa.f32_single;
  if (dtype == DType::float16) return isa.f32_single_f16;
  return isa.f32_single_bf16;
}

const TileKernels& few_kernels(const kernels::Isa& isa, DType dtype, int64_t rows, const AttentionOptions& options) {
  if (dtype == DType::float32) return *isa.f32_few;
  if (dtype == DType::float16) return *isa.f32_few_f16;
  const bool widened = !isa.bf16_few || (rows < isa.bf16_few->least_rows && !options.batch_invariant);
  return widened ? *isa.f32_few_bf16 : *isa.bf16_few;
}

}  // namespace

const TileKernels& row_kernels(DType dtype, int64_t rows, const AttentionOptions& options) {
  const kernels::Isa& isa = active_kernels();
  if (dtype == DType::float64) return *isa.f64;
  const TileKernels* own = dtype == DType::bfloat16 ? isa.bf16 : dtype == DType::float16 ? isa.f16 : nullptr;
  if (own && (rows >= own->least_rows || options.batch_invariant)) return *own;
  const int parts = 3 - static_cast<int>(options.float32_precision);
  const bool in_parts =
      dtype == DType::float32 && rows >= kManyRows && !options.batch_invariant && isa.f32_parts[parts - 1];
  return in_parts ? *isa.f32_parts[parts - 1] : *isa.f32;
}

const TileKernels& gradient_kernels(DType dtype, int64_t rows, const AttentionOptions& options) {
  const TileKernels& own = row_kernels(dtype, rows, options);
  return rows < own.least_gradient_rows && !options.batch_invariant ? *active_kernels().f32 : own;
}

const TileKernels& forward_kernels(DType dtype, int64_t rows, const AttentionOptions& options, bool is_int8) {
  const kernels::Isa& isa = active_kernels();
  if (!is_few(dtype, rows, options)) {
    const bool weights_fit = options.dropout <= kMostDropoutOfFloat16;
    if (dtype == DType::float16 && isa.f16_forward && weights_fit) return *isa.f16_forward;
    return row_kernels(dtype, rows, options);
  }
  if (rows == 1 && !options.batch_invariant && plain_scores(options))
    if (const TileKernels* single = single_kernels(isa, dtype, is_int8)) return *single;
  if (is_int8 && !options.batch_invariant) return *isa.f32_few_int8;
  const TileKernels& few = few_kernels(isa, dtype, rows, options);
  return few.any_order && !options.batch_invariant ? *few.any_order : few;
}

bool masks_alone(const AttentionOptions& o) {
  return o.softcap == 0 && o.dropout == 0 && !o.bias && o.alibi_slopes.empty();
}

bool plain_scores(const AttentionOptions& o) {
  return masks_alone(o) && !o.mask && !o.query_segment_ids && !o.blocks.given();
}

bool is_few(DType dtype, int64_t rows, const AttentionOptions& options) {
  if (dtype == DType::float64) return false;
  if (options.batch_invariant && row_kernels(dtype, rows, options).own_bits) return false;
  return rows <= std::min<int64_t>(kFewRows, active_kernels().f32_few->lanes);
}

}  // namespace attn::detail
