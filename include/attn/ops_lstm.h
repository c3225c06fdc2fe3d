// ops: the recurrence of an LSTM layer (Hochreiter & Schmidhuber 1997, with the forget gates of Gers et al. 2000),
// forward and backward.
//
// ```cpp
// #include "attn/ops_lstm.h"
// int main() {
//   attn::Tensor<float, 2> x({7, 4 * 16}), weight({4 * 16, 16}), out({7, 16});  // two sequences, of 3 and 4 tokens
//   attn::Random random(1);
//   attn::fill_normal(x, random), attn::fill_normal(weight, random);
//   const int64_t cu_seqlens[] = {0, 3, 7};
//   attn::ops::lstm(x, weight, cu_seqlens, out);
// }
// ```
//
// With [i f g o] = x_t + h_(t-1) weight^T, the order of PyTorch's torch.nn.LSTM, each sequence computes from its first
// row to its last
//   c_t = sigmoid(f) c_(t-1) + sigmoid(i) tanh(g)        h_t = sigmoid(o) tanh(c_t)        out_t = h_t
// x, weight and out have one floating type, and cells are float32 (float64 for float64). The last bits of a sequence
// may depend on how many other sequences the call has, as those of a product do.
#pragma once

#include <span>

#include "attn/core.h"

#pragma GCC visibility push(default)
namespace attn::ops {

/// What the backward takes of the forward; float32, or float64 for float64.
struct LstmTrace {
  View<2> gates = {};  ///< [R, 4 H] sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
  View<2> cells = {};  ///< [R, H] c
};

/// out [R, H] of x [R, 4 H], the part of the gates that the inputs and the bias give, and weight [4 H, H]. Sequence b
/// has the rows cu_seqlens[b] to cu_seqlens[b + 1] - 1, at least one; cu_seqlens [n + 1] begins with 0 and ends with R.
///   trace  an output, or none
///   state  h and c before the first row, which become those after the last one: [2, n, H] of the type of cells, its
///          last stride 1. Without it both begin as zeros
void lstm(ConstView<2> x, ConstView<2> weight, std::span<const int64_t> cu_seqlens, View<2> out,
          const LstmTrace& trace = {}, View<3> state = {});

/// dx [R, 4 H] and dweight [4 H, H] of a call without a state. It adds to dweight, which is the gradient of a parameter
/// or has the type of out.
void lstm_backward(ConstView<2> weight, std::span<const int64_t> cu_seqlens, ConstView<2> out, const LstmTrace& trace,
                   ConstView<2> dout, View<2> dx, View<2> dweight);

}  // namespace attn::ops
#pragma GCC visibility pop
