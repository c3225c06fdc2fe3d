// autograd: operations for losses of your own, in addition to those of layers (attn/autograd.h): arithmetic with
// broadcasting, sums, softmax, shapes. docs/tape.md trains a layer with such a loss.
//
// ```cpp
// #include "attn/autograd_operations.h"
// using namespace attn::autograd;
// int main() {
//   Tape tape({.record = true});
//   const Value x(attn::Array(attn::DType::float32, {4, 8}), true), target(attn::Array(attn::DType::float32, {4, 8}));
//   const Value loss = mean_squared_error(tape, softmax(tape, x), target);
//   tape.backward(loss);  // x.gradient() is now dloss / dx
// }
// ```
//
// All values of a call have one floating type. 16-bit numbers are computed in float32 and rounded once. Axes count from
// 0. Every function throws Error, before it computes anything, for empty values and for types and shapes that its
// comment does not allow.
#pragma once

#include <vector>

#include "attn/autograd.h"

#pragma GCC visibility push(default)
namespace attn::autograd {

/// a - b and a b, element by element, like add(). They broadcast as NumPy does: axes are matched from the last one, and
/// an axis that is missing or has extent 1 repeats. [B, L, C] with [L, 1] gives [B, L, C].
Value subtract(Tape& tape, const Value& a, const Value& b);
Value multiply(Tape& tape, const Value& a, const Value& b);
/// 1 / (1 + exp(-x)).
Value sigmoid(Tape& tape, const Value& x);

/// The sum of all elements [1], in float32 or float64. mean() is in attn/autograd_statistics.h.
Value sum(Tape& tape, const Value& x);
/// The sum, or mean, along one axis. The axis stays with extent 1, so that the result broadcasts against x. mean_over()
/// throws Error for an extent of 0.
Value sum_over(Tape& tape, const Value& x, int64_t axis);
Value mean_over(Tape& tape, const Value& x, int64_t axis);
/// exp(x_c) / sum_c exp(x_c) over the last axis, and its logarithm. A row of -infinity alone is NaN, as in PyTorch.
Value softmax(Tape& tape, const Value& x);
Value log_softmax(Tape& tape, const Value& x);
/// The mean of (x - target)^2 over all elements [1], in float32 or float64; both of one shape, not empty.
Value mean_squared_error(Tape& tape, const Value& x, const Value& target);

/// Concatenates values along an axis; their other axes must be equal.
Value concat(Tape& tape, const std::vector<Value>& values, int64_t axis);
/// Indices begin .. end - 1 of an axis, 0 <= begin <= end <= extent.
Value slice(Tape& tape, const Value& x, int64_t axis, int64_t begin, int64_t end);
/// x with two axes exchanged.
Value transpose(Tape& tape, const Value& x, int64_t axis, int64_t other);
/// The same memory in another shape of the same count.
Value reshape(Tape& tape, const Value& x, std::vector<int64_t> shape);
/// Some rows of x [.., C], in the order of `index`: row index[n] of all rows of x is row n of the result [shape .., C].
Value select_rows(Tape& tape, const Value& x, std::vector<int64_t> index, std::vector<int64_t> shape);

}  // namespace attn::autograd
#pragma GCC visibility pop
