// What a PackedMatrix holds.
#pragma once

#include <optional>

#include "ops/panel_matmul.h"
#include "ops/quantized_matmul.h"
#include "ops/tile_matmul.h"

namespace attn::ops {

/// One of the three, or none where b is empty.
struct PackedMatrix::Form {
  ConstView<2> b;  // of `quantized` the size alone
  std::optional<TileFactor> tiles;
  std::optional<PackedColumns> panels;
  std::optional<QuantizedColumns> quantized;
};

}  // namespace attn::ops
