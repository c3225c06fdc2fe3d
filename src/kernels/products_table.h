// The contract of float32 matrix products on tiles.
#pragma once

#include "kernels/table.h"

namespace attn::kernels {

struct ProductKernels {};

}  // namespace attn::kernels
