// What every way of matmul() does at the end of a product.
#pragma once

#include "ops/blocks.h"

namespace attn::ops {

/// c from row `row` and column `column` on, with the options' bias and addend.
inline kernels::ProductResult product_result(const View<2>& c, const MatmulOptions& options, int64_t row,
                                             int64_t column) {
  const kernels::Rows out = rows_at(c, {.row = row, .column = column});
  const ConstView<2> added = options.accumulate ? ConstView<2>(c) : options.addend;
  const kernels::ConstRows addend = rows_at(added, {.row = row, .column = column});
  return {.out = out.data,
          .out_stride = out.stride,
          .out_type = out.type,
          .bias = element_at(options.bias, column),
          .addend = addend.data,
          .addend_stride = addend.stride};
}

/// c becomes the addend, to which the product is then added.
inline void begin_with_addend(const View<2>& c, MatmulOptions& options) {
  if (!options.addend) return;
  if (options.addend.data != c.data) convert(options.addend, c);
  options.addend = {};
  options.accumulate = true;
}

/// The activation of a block that its task has completed, which is in the cache.
inline void activate_block(const View<2>& c, const MatmulOptions& options, const RowBlock& block) {
  if (!options.activation) return;
  kernels_for(c.dtype).activate({.function = static_cast<int>(*options.activation),
                                 .rows = block.rows,
                                 .columns = block.columns,
                                 .x = rows_at(ConstView<2>(c), block),
                                 .up = {},
                                 .y = rows_at(c, block)});
}

}  // namespace attn::ops
