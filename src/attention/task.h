// Tasks of the operator: the kernels' own preparations, and results too small to matter flushed to 0.
#pragma once

#include "attention/arithmetic.h"
#include "core/subnormals.h"
#include "kernels/entered.h"

namespace attn::detail {

/// While it lives, kernels of `tk` may run on this thread.
class InKernels {
 public:
  explicit InKernels(const TileKernels& tk) : entered_(tk) {}

 private:
  kernels::Entered<TileKernels> entered_;
  FlushSubnormals flush_;
};

}  // namespace attn::detail
