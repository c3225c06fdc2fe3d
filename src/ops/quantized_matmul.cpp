// Products with weights of 8 and 4 bits: the rows are quantized once, by all threads; a task multiplies a block of rows
// by a group of panels.
#include "ops/quantized_matmul.h"

#include <algorithm>
#include <cmath>

#include "ops/product_result.h"

namespace attn::ops {
namespace {

constexpr int64_t kLeastGroup = 16;
constexpr int64_t kPanelsBytes = int64_t{1} << 17;       // of weights that few rows read: 6 to 12 us from memory
constexpr int64_t kAlonePanelsBytes = int64_t{1} << 18;  // a smaller product is over before another thread would wake
constexpr int64_t kTaskWork = int64_t{1} << 23;          // multiply-adds of a task with many rows: 20 to 40 us
constexpr int64_t kTaskRows = 96;                        // whose codes stay in the second cache
constexpr int64_t kRowsWork = 16384;                     // numbers of a task that quantizes rows

/// What rows and columns have in common: terms in whole groups, those in multiples of 16.
kernels::QuantizedFormat format_of(const QuantizedMatrix& w) {
  const int64_t group = round_up(std::min(w.group, w.terms), kLeastGroup);
  return {
      .bits = w.bits, .zero = w.zero, .offsets = !w.offsets.empty(), .terms = round_up(w.terms, group), .group = group};
}

/// The largest power of two that is at most the largest scale or offset of a row: float16 holds the others relative
/// to it. If all are 0, 1.
float factor_of(const QuantizedMatrix& w, int64_t row) {
  float largest = 0;
  for (int64_t g = row * w.groups(); g < (row + 1) * w.groups(); ++g) {
    largest = std::max(largest, std::abs(w.scales[static_cast<size_t>(g)]));
    if (!w.offsets.empty()) largest = std::max(largest, std::abs(w.offsets[static_cast<size_t>(g)]));
  }
  return largest > 0 ? std::ldexp(1.0f, std::max(std::ilogb(largest), -126)) : 1.0f;
}

/// Of a row with one scale, that scale, so that it is not rounded.
float exact_factor_of(const QuantizedMatrix& w, int64_t row) {
  const float scale = w.scales[static_cast<size_t>(row)];
  return w.groups() == 1 && w.offsets.empty() && scale != 0 ? scale : factor_of(w, row);
}

}  // namespace

QuantizedColumns::QuantizedColumns(const QuantizedMatrix& w)
    : kernels_(active_kernels().quantized), format_(format_of(w)), size_{w.terms, w.rows} {
  const int64_t panels = div_up(w.rows, kernels_->panel), groups = w.groups();
  memory_ = SharedBuffer(panels * kernels_->panel_bytes(format_));
  parallel_for(panels, [&](int64_t n) {
    const int64_t first = n * kernels_->panel, columns = std::min<int64_t>(kernels_->panel, w.rows - first);
    std::vector<float> factors, scales, offsets;
    for (int64_t row = first; row < first + columns; ++row) {
      const float factor = exact_factor_of(w, row);
      factors.push_back(factor);
      for (int64_t g = row * groups; g < (row + 1) * groups; ++g) {
        scales.push_back(w.scales[static_cast<size_t>(g)] / factor);
        if (format_.offsets) offsets.push_back(w.offsets[static_cast<size_t>(g)] / factor);
      }
    }
    kernels_->pack_columns({.format = format_,
                            .columns = columns,
                            .terms = w.terms,
                            .codes = w.codes.data() + first * w.terms,
                            .factors = factors.data(),
                            .scales = scales.data(),
                            .offsets = format_.offsets ? offsets.data() : nullptr,
                            .packed = static_cast<char*>(memory_.data()) + n * kernels_->panel_bytes(format_)});
  });
}

void QuantizedColumns::unpack(int64_t row, float* out) const {
  kernels_->unpack_column({.format = format_,
                           .packed = panel(row / kernels_->panel),
                           .column = row % kernels_->panel,
                           .terms = size_[0],
                           .out = out});
}

void multiply_quantized(const ConstView<2>& a, const QuantizedColumns& b, const View<2>& c,
                        const MatmulOptions& options) {
  const kernels::QuantizedKernels& k = *b.kernels_;
  const int64_t M = c.size[0], N = c.size[1], K = a.size[1], row_bytes = k.row_bytes(b.format_);
  char* rows = static_cast<char*>(thread_scratch(M * row_bytes));
  const int64_t group = round_up(std::max<int64_t>(1, kRowsWork / K), k.tile);
  parallel_for_flushed(div_up(M, group), [&](int64_t task) {
    const int64_t first = task * group;
    k.quantize_rows({.format = b.format_,
                     .rows = std::min(group, M - first),
                     .terms = K,
                     .x = rows_at(a, {.row = first}),
                     .packed = rows + first * row_bytes});
  });
  const int64_t height = std::min(M, round_up(kTaskRows, k.tile)), down = div_up(M, height);
  const int64_t panel_bytes = k.panel_bytes(b.format_), panels = div_up(N, k.panel);
  int64_t step = std::min(div_up(kPanelsBytes, panel_bytes), div_up(kTaskWork, height * K * k.panel));
  if (M <= k.tile && panels * panel_bytes <= kAlonePanelsBytes) step = panels;
  parallel_for_flushed(down * div_up(panels, step), [&](int64_t task) {
    const int64_t row = task % down * height, panel = task / down * step, column = panel * k.panel;
    const RowBlock block{row, std::min(height, M - row), column, std::min(step * k.panel, N - column)};
    k.multiply({.format = b.format_,
                .rows = block.rows,
                .columns = block.columns,
                .packed_rows = rows + row * row_bytes,
                .panels = b.panel(panel),
                .result = product_result(c, options, row, column)});
    activate_block(c, options, block);
  });
}

}  // namespace attn::ops
