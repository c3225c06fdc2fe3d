// Products with weights of 8 and 4 bits, for matmul().
#pragma once

#include <string_view>

#include "attn/ops_quantized.h"
#include "core/shared_buffer.h"
#include "kernels/dispatch.h"
#include "kernels/quantized_table.h"

namespace attn::ops {

/// Throws Error with all that is wrong with the matrix.
void check_quantized(std::string_view operation, const QuantizedMatrix& w);

/// Weights as the kernels multiply by them, those of the instruction set that was active at construction.
class QuantizedColumns {
 public:
  /// The matrix is checked.
  explicit QuantizedColumns(const QuantizedMatrix& w);
  Shape<2> size() const { return size_; }
  int64_t bytes() const { return memory_.bytes(); }
  /// One row of W.
  void unpack(int64_t row, float* out) const;

 private:
  friend void multiply_quantized(const ConstView<2>&, const QuantizedColumns&, const View<2>&, const MatmulOptions&);
  const void* panel(int64_t n) const {
    return static_cast<const char*>(memory_.data()) + n * kernels_->panel_bytes(format_);
  }
  const kernels::QuantizedKernels* kernels_;
  kernels::QuantizedFormat format_;
  Shape<2> size_;  // [K, N]
  SharedBuffer memory_;
};

/// c = f(a b (+ bias) (+ addend)), checked before; at least one term. An element's bits depend on its row of a, its
/// column of b, its bias and addend alone.
void multiply_quantized(const ConstView<2>& a, const QuantizedColumns& b, const View<2>& c,
                        const MatmulOptions& options);

}  // namespace attn::ops
