// autograd: what a loss of one's own is made of, beside the operations of layers (attn/autograd.h): arithmetic with
// broadcasting, sums, softmax, and other shapes of the same numbers. docs/tape.md has a training with such a loss, and
// how to record an operation that is not here.
//
// x is of any floating type, and several values of one; 16-bit numbers are computed in float32 and rounded once. Axes
// count from 0. Every function throws Error, before anything is computed, for empty values, other types and other
// shapes than its comment says.
#pragma once

#include <vector>

#include "attn/autograd.h"

#pragma GCC visibility push(default)
namespace attn::autograd {

/// a - b and a b, element by element, as add(). Broadcast as in NumPy: axes are matched from the last one on, and one
/// that is 1 or is not there repeats. [B, L, C] with [L, 1] is [B, L, C].
Value subtract(Tape& tape, const Value& a, const Value& b);
Value multiply(Tape& tape, const Value& a, const Value& b);
/// 1 / (1 + exp(-x)).
Value sigmoid(Tape& tape, const Value& x);

/// The sum of all elements [1], in float32 or float64. mean() is in attn/autograd_statistics.h.
Value sum(Tape& tape, const Value& x);
/// The sum, or mean, along one axis, which stays with extent 1: it broadcasts against x. A mean of nothing is an Error.
Value sum_over(Tape& tape, const Value& x, int64_t axis);
Value mean_over(Tape& tape, const Value& x, int64_t axis);
/// exp(x_c) / sum_c exp(x_c) over the last axis, and its logarithm. A row of -infinity alone is NaN, as in PyTorch.
Value softmax(Tape& tape, const Value& x);
Value log_softmax(Tape& tape, const Value& x);
/// The mean of (x - target)^2 over all elements [1], in float32 or float64; both of one shape, not empty.
Value mean_squared_error(Tape& tape, const Value& x, const Value& target);

/// The values one after the other along an axis; their other axes are equal.
Value concat(Tape& tape, const std::vector<Value>& values, int64_t axis);
/// The indices begin .. end - 1 of an axis, 0 <= begin <= end <= its extent.
Value slice(Tape& tape, const Value& x, int64_t axis, int64_t begin, int64_t end);
/// x with two of its axes exchanged.
Value transpose(Tape& tape, const Value& x, int64_t axis, int64_t other);
/// The same memory under another shape of the same count.
Value reshape(Tape& tape, const Value& x, std::vector<int64_t> shape);

}  // namespace attn::autograd
#pragma GCC visibility pop
