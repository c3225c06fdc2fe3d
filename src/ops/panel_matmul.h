// Dense products on vectors, for matmul(): c = a b, with the columns of b packed in panels.
#pragma once

#include "attn/ops.h"
#include "core/shared_buffer.h"

namespace attn::kernels {
struct TileKernels;
}

namespace attn::ops {

/// The columns of a matrix as kernels multiply by them. 16-bit numbers keep their 16 bits.
class PackedColumns {
 public:
  /// All threads pack b for the active kernels, which will multiply whatever is active then. b is not needed
  /// afterwards.
  explicit PackedColumns(const ConstView<2>& b);
  int64_t bytes() const { return memory_.bytes(); }

 private:
  friend void multiply_panels(const ConstView<2>&, const ConstView<2>&, const View<2>&, const MatmulOptions&,
                              const PackedColumns*);
  const kernels::TileKernels* kernels_;
  SharedBuffer memory_;
};

/// c = f(a b (+ bias) (+ addend)), checked before; at least one term. If `packed` is given, it is of b, whose numbers
/// are not read. An element's bits depend on its row of a, its column of b, its bias and addend, and K alone.
void multiply_panels(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options,
                     const PackedColumns* packed = nullptr);

}  // namespace attn::ops
