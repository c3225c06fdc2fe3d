// Arrays that a call exchanges and adds up: dense copies, sums, and results in the caller's types.
#pragma once

#include "attn/core.h"

namespace attn::cluster {

/// Copies elements of one type and shape; any strides.
void copy(const ConstView<4>& from, const View<4>& to);
/// to += from: float32 or float64, of one shape, with rows that are dense.
void add(const ConstView<4>& from, const View<4>& to);

/// sum += x: float32 or float64, both dense and of one shape.
void add_arrays(const Array& sum, const Array& x);

/// Writes a dense float32 or float64 array as elements of `to`, which has its shape; zeros where there is none.
void store(const Array& from, const View<4>& to);
void store(const Array& from, const View<3>& to);

}  // namespace attn::cluster
