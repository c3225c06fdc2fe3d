// The end of dense products, on vectors and on matrix tiles: out = sums (+ bias) (+ addend), in the type of out.
//
// Loops: rows, vectors of columns. The sums of a call are in the first-level cache.
#pragma once

#include "kernels/columns.kernel.h"

namespace attn::kernels {
namespace {

/// Row 0 and column 0 of the sums are row `row` and column `column` of the result.
template <class V>
__attribute__((noinline)) void finish_rows(const ProductResult& result, const typename V::T* sums, int64_t sums_stride,
                                           int64_t row, int64_t rows, int64_t column, int64_t columns) {
  const auto* bias = static_cast<const typename V::T*>(result.bias);
  for (int64_t r = 0; r < rows; ++r, sums += sums_stride) {
    const Row out = row_of(Rows{result.out, result.out_stride, result.out_type}, row + r);
    ConstRow addend{nullptr, result.out_type};
    if (result.addend) addend = row_of(ConstRows{result.addend, result.addend_stride, result.out_type}, row + r);
    for_columns<V>(column, column + columns, [&](int64_t j, auto lanes) {
      typename V::Reg value = V::load(sums + j - column);
      if (bias) value = V::add(value, lanes.load(bias, j));
      if (addend.data) value = V::add(lanes.load(addend, j), value);
      lanes.store(out, j, value);
    });
  }
}

}  // namespace
}  // namespace attn::kernels
