// Products of float32 and 16-bit numbers on matrix tiles, for matmul().
#pragma once

#include <vector>

#include "attn/ops.h"
#include "core/shared_buffer.h"

namespace attn::kernels {
struct ProductKernels;
}

namespace attn::ops {

inline bool is_known(Float32Precision precision) { return precision <= Float32Precision::fast; }

bool has_tiles();
/// True if this CPU has tiles and a product c = a b, a [M, K], b [K, N], gains by them.
bool pays_on_tiles(int64_t M, int64_t N, int64_t K);
/// b as the kernels that were active take it, float32 in the precision of this process. They read b itself too, except
/// bfloat16.
class TileFactor {
 public:
  /// b of float32, bfloat16 or float16, with at least one term. Only where the active kernels have tiles.
  explicit TileFactor(const ConstView<2>& b);
  /// True if a product with these options takes it.
  bool fits(const MatmulOptions& options) const;
  /// From column `column`, the first of a panel, on, of the part of the sum that begins at `term`.
  const void* at(int64_t column, int64_t term) const;
  int64_t bytes() const;
  const kernels::ProductKernels& kernels() const { return *kernels_; }

 private:
  const kernels::ProductKernels* kernels_;
  int parts_;
  DType dtype_;
  int64_t columns_, terms_;
  std::vector<SharedBuffer> packed_;  // one for each part of the sum
};

/// c = a b (+ bias), none of float64, checked before; at least one term. `packed`, if given, is of b and fits the
/// options; otherwise only where the active kernels have tiles.
void multiply_on_tiles(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options,
                       const TileFactor* packed = nullptr);

}  // namespace attn::ops
