// Rows of a KV cache in 8 bits: n whole numbers from -127 to 127, and after them their scale, a float.
#pragma once

#include "attn/core.h"

namespace attn::detail {

/// Rounds x[0 .. n) to multiples of max |x| / 127, n at most 1024, and writes them to `row`. A row with a number that
/// is not finite, or too large for a float, has the scale NaN: all of it is NaN then.
void store_int8_row(DType dtype, const void* x, int64_t stride, int64_t n, void* row);

}  // namespace attn::detail
