// autograd: recurrences on the tape: linear attention with the functions that are applied before it, the short
// convolution, LSTM.
//
// ```cpp
// #include "attn/autograd_linear.h"
// #include "attn/autograd_operations.h"
// using namespace attn::autograd;
// int main() {
//   Tape tape({.record = true});
//   const Value x(attn::Array({1.f, -2.f, 0.5f, 3.f, 1.f, 1.f, 2.f, -1.f, 0.f}, {1, 3, 3}), true);
//   const Value f = elu_plus_one(tape, x);  // one head: columns 0 to 2 are q, k and v
//   const Value y = linear_attention(tape, {f, 0, 1, 1}, {f, 1, 1, 1}, {x, 2, 1, 1}, {.normalize = true});
//   tape.backward(sum(tape, y));
// }
// ```
//
// docs/operators/linear_attention.md defines the operator and its options.
#pragma once

#include <span>

#include "attn/autograd.h"
#include "attn/linear_attention.h"

#pragma GCC visibility push(default)
namespace attn::autograd {

/// What linear_attention() takes beside q, k and v. Spans and views must live until backward() has run.
struct LinearMixing {
  Value log_decay = {};  ///< [Hv], [B, L, Hv] or [B, L, Hv Dk], at most 0; float32 or wider, or x's type
  Value beta = {};       ///< [B, L, Hv]
  bool delta = false;    ///< this and the following as in LinearAttentionOptions
  bool l2norm = false;
  bool normalize = false;
  double scale = 0;  ///< 0 = 1 / sqrt(Dk)
  std::span<const int64_t> cu_seqlens = {};
  /// The state before the first token, [B, Hv, Dk, Dv], which becomes that after the last one. Inference only.
  View<4> state = {};
};

/// out [B, L, Hv Dv] = linear_attention(q, k, v): q and k have H heads of Dk columns, v Hv heads of Dv.
Value linear_attention(Tape& tape, const Heads& q, const Heads& k, const Heads& v, const LinearMixing& mixing = {});

/// causal_convolution() of x [B, L, C] with weight [C, W] and bias [C], or an empty one. `state` [B, C, W - 1], in
/// inference only, are the tokens before x and become those at its end. cu_seqlens must live until backward() has run.
Value causal_convolution(Tape& tape, const Value& x, const Value& weight, const Value& bias, bool silu,
                         std::span<const int64_t> cu_seqlens = {}, View<3> state = {});

/// ops::lstm() of x [B, L, 4 H], the inputs' part of the gates, with weight [4 H, H]: [B, L, H]. `state` [2, B, H], in
/// inference only, is h and c before x and becomes that at its end; float32, or float64 where x is. cu_seqlens must
/// live until backward() has run.
Value lstm(Tape& tape, const Value& x, const Value& weight, std::span<const int64_t> cu_seqlens = {},
           View<3> state = {});

/// -exp(rate_h) log(1 + exp(x + offset)): the logarithm of a learned decay, as Mamba 2 and gated delta nets have it.
///   x [.., C], rate [H], offset [C], C a multiple of H; the result is float32, or float64 where x is.
Value decay_logarithm(Tape& tape, const Value& x, const Value& rate, const Value& offset);

/// elu(x) + 1: x + 1 for x > 0, exp(x) otherwise (Katharopoulos et al. 2020): positive features.
Value elu_plus_one(Tape& tape, const Value& x);

/// Performer's positive features (Choromanski et al. 2021, arXiv:2009.14794) of each head of x [B, L, H D]:
/// exp(w_i^T y - |y|^2 / 2) / sqrt(m) with y = x / D^(1/4). Their products estimate exp(<q, k> / sqrt(D)).
///   projection [m, D], of x's type, as orthogonal_projection() draws it; the result is [B, L, H m].
Value positive_features(Tape& tape, const Value& x, const Value& projection);

/// m rows of D normal numbers, each D of them orthogonal to each other, with the lengths of independent rows. Another
/// seed draws other features.
Array orthogonal_projection(int64_t m, int64_t D, DType dtype, uint64_t seed);

}  // namespace attn::autograd
#pragma GCC visibility pop
