// causal_convolution: the short convolution along the tokens that gated delta nets, Mamba and LFM2 have in front of
// their mixer, forward, backward and decode.
//
//   out[b, t, c] = act(bias[c] + sum over j < W of weight[c, j] x[b, t - (W - 1) + j, c])
//
// ```cpp
// #include "attn/linear_convolution.h"
// int main() {
//   attn::Tensor<float, 3> x({2, 100, 64}), out({2, 100, 64}), state({2, 64, 3});
//   attn::Tensor<float, 2> weight({64, 4});
//   attn::Random random(1);
//   attn::fill_normal(x, random);
//   attn::fill_normal(weight, random, 0.5);
//   attn::causal_convolution(x, weight, out, {.silu = true}, state);
//   const attn::View<3> next = x.view().slice(1, 0, 1), y = out.view().slice(1, 0, 1);
//   attn::causal_convolution(next, weight, y, {.silu = true, .initial_state = state}, state);  // one step of decoding
// }
// ```
//
// docs/operators/causal_convolution.md has the page. Results are bitwise equal for any number of threads and any
// strides, and a sequence's results do not depend on the other sequences of the call. Every function checks all
// arguments first: it throws attn::Error with every reason before it writes anything. Views and spans are borrowed
// until the function returns.
//
// Sources: Gu & Dao 2023 (arXiv:2312.00752); Yang et al. 2024 (arXiv:2412.06464).
#pragma once

#include <span>

#include "attn/core.h"

#pragma GCC visibility push(default)
namespace attn {

/// The options of causal_convolution(). Views and spans are borrowed until the call returns. N is the number of
/// sequences: B, or that of cu_seqlens.
struct CausalConvolutionOptions {
  ConstView<1> bias = {};  ///< floating [C]; absent: 0
  bool silu = false;       ///< act(z) = z / (1 + exp(-z)); otherwise act(z) = z
  /// The tokens before each sequence, the last one at the end; x's type, [N, C, W - 1 or more], of which the last W - 1
  /// are read. Absent: 0.
  ConstView<3> initial_state = {};
  std::span<const int64_t> cu_seqlens = {};  ///< [N + 1], packed sequences, B = 1: the start of each in L, then its end
  /// int32 or int64 [B, L]. A token reads only tokens of its own id, and a token with a negative id is padding: its
  /// out is 0. Not together with states.
  ConstView<2> segment_ids = {};
};

/// out = causal_convolution(x, weight).
///   x and out [B, L, C]: one floating type for both; any strides. Of [B, C, L] give the view permute({0, 2, 1}).
///   weight [C, W], 1 <= W <= 8: floating, any strides. weight[c, W - 1] multiplies the token itself.
///   final_state, if wanted: as many of the last tokens of each sequence as it has place for, and of initial_state
///   before it where the sequence is shorter; x's type, [N, C, W - 1 or more]. It may be the memory of initial_state.
/// Sums run in float32, in float64 for float64. Tokens of no sequence get out = 0. One token, with states, is one step
/// of decoding.
void causal_convolution(ConstView<3> x, ConstView<2> weight, View<3> out, const CausalConvolutionOptions& options = {},
                        View<3> final_state = {});

/// The gradients that causal_convolution_backward() writes. A view without data is not computed. A gradient is of any
/// floating type, as float32 for 16-bit inputs; float64 only where x is.
struct CausalConvolutionGradients {
  View<3> dx = {};              ///< [B, L, C]
  View<2> dweight = {};         ///< [C, W]
  View<1> dbias = {};           ///< [C]
  View<3> dinitial_state = {};  ///< [N, C, W - 1], also where no initial state was given
};

/// Gradients of a loss from dout [B, L, C], of x's type, and, if given, dfinal_state [N, C, W - 1], floating. options
/// are those of the forward, with W - 1 tokens in initial_state. The function recomputes what the activation was
/// applied to. It overwrites the gradients.
void causal_convolution_backward(ConstView<3> x, ConstView<2> weight, ConstView<3> dout,
                                 const CausalConvolutionGradients& gradients,
                                 const CausalConvolutionOptions& options = {}, ConstView<3> dfinal_state = {});

/// The sums as plain float64 loops: the oracle of the tests. Arguments as above, of any floating type. One thread.
namespace reference {
void causal_convolution(ConstView<3> x, ConstView<2> weight, View<3> out, const CausalConvolutionOptions& options = {},
                        View<3> final_state = {});
void causal_convolution_backward(ConstView<3> x, ConstView<2> weight, ConstView<3> dout,
                                 const CausalConvolutionGradients& gradients,
                                 const CausalConvolutionOptions& options = {}, ConstView<3> dfinal_state = {});
}  // namespace reference

}  // namespace attn
#pragma GCC visibility pop
