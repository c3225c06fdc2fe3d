// The largest element of an array.
#pragma once

#include "attn/core.h"

namespace attn::linear {

/// The largest of all elements but NaN; -infinity where there is none.
double largest_element(const ConstView<4>& x);

}  // namespace attn::linear
