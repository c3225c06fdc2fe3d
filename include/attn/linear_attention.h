// linear_attention: attention with a state of fixed size in place of keys and values: linear attention, RetNet, gated
// linear attention, Mamba 2, DeltaNet, gated delta nets and Kimi delta attention, forward, backward and decode.
//
//   S_t = A_t S_{t-1} + k_t u_t^T       u_t = beta_t (v_t - [delta] (A_t S_{t-1})^T k_t)       out_t = scale S_t^T q_t
//
// ```cpp
// #include "attn/linear_attention.h"
// int main() {
//   attn::Tensor<float, 4> q({1, 4, 100, 64}), k({1, 4, 100, 64}), v({1, 8, 100, 32}), out({1, 8, 100, 32});
//   attn::Tensor<float, 4> log_decay({1, 8, 100, 1}), state({1, 8, 64, 32});
//   attn::Tensor<float, 3> beta({1, 8, 100});
//   attn::Random random(1);
//   for (attn::Tensor<float, 4>* x : {&q, &k, &v}) attn::fill_normal(*x, random);
//   std::fill(beta.begin(), beta.end(), 0.5f);
//   std::fill(log_decay.begin(), log_decay.end(), -0.1f);
//   attn::linear_attention(q, k, v, out, {.log_decay = log_decay, .beta = beta, .delta = true, .l2norm = true}, state);
// }
// ```
//
// docs/operators/linear_attention.md defines every option and says which paper is which set of options. Time and memory
// are linear in the length. Results are bitwise equal for any number of threads, and a sequence's results do not depend
// on the other sequences of the call. Every function checks all arguments first: it throws attn::Error with every
// reason before it writes anything. Views and spans are borrowed until the function returns.
//
// Sources: Katharopoulos et al. 2020 (arXiv:2006.16236); Sun et al. 2023 (arXiv:2307.08621); Dao & Gu 2024
// (arXiv:2405.21060); Yang et al. 2024 (arXiv:2312.06635, 2406.06484, 2412.06464); Kimi Team 2025 (arXiv:2510.26692).
#pragma once

#include <optional>
#include <span>

#include "attn/core.h"

#pragma GCC visibility push(default)
namespace attn {

/// The options of linear_attention(). All of them compose. Views and spans are borrowed until the call returns. An axis
/// written X|1 has extent X or 1; extent 1 is broadcast. N is the number of sequences: B, or that of cu_seqlens.
struct LinearAttentionOptions {
  std::optional<double> scale = {};  ///< of the output, without effect with normalize; absent: 1 / sqrt(Dk)
  /// log A_t: how much of the state a token keeps, at most 0; floating [B|1, Hv|1, L|1, Dk|1]. [1, Hv, 1, 1] is a
  /// constant a head, [B, Hv, L, 1] a number a token, [B, Hv, L, Dk] one for each row of the state. Absent: A_t = 1.
  ConstView<4> log_decay = {};
  ConstView<3> beta = {};  ///< floating [B, Hv, L], any number; absent: 1
  bool delta = false;      ///< the delta rule: a token writes what its value differs by from what the state returns
  bool l2norm = false;     ///< q and k are divided by sqrt(sum of squares + l2norm_epsilon) first
  double l2norm_epsilon = 1e-6;
  /// Divides the output by the sum of its weights, which is one more value column, of ones: states are then [N, Hv, Dk,
  /// Dv + 1]. An output whose weights sum to exactly 0 is 0. q and k should be positive features.
  bool normalize = false;
  ConstView<4> initial_state = {};           ///< float32 (float64 for float64) [N, Hv, Dk, Dv]; absent: 0
  std::span<const int64_t> cu_seqlens = {};  ///< [N + 1], packed sequences, B = 1: the start of each in L, then its end
};

/// out = linear_attention(q, k, v).
///   q, k [B, H, L, Dk], v and out [B, Hv, L, Dv]: one floating type for all; any strides. Hv is a multiple of H; value
///   head h reads query and key head h / (Hv / H). Dk and Dv are at most 1024.
///   final_state, if wanted: the state after the last token, [N, Hv, Dk, Dv], of initial_state's type. It may be the
///   memory of initial_state.
/// A sequence without tokens has its initial state as its final state. Tokens of no sequence get out = 0. One token is
/// one step of decoding: it reads and writes the state once.
void linear_attention(ConstView<4> q, ConstView<4> k, ConstView<4> v, View<4> out,
                      const LinearAttentionOptions& options = {}, View<4> final_state = {});

/// The gradients that linear_attention_backward() writes. A view without data is not computed. A gradient's type may
/// differ from q's, as float32 for 16-bit inputs.
struct LinearAttentionGradients {
  View<4> dq = {};              ///< [B, H, L, Dk]
  View<4> dk = {};              ///< [B, H, L, Dk]
  View<4> dv = {};              ///< [B, Hv, L, Dv]
  View<4> dlog_decay = {};      ///< shape of log_decay, summed over its broadcast axes
  View<3> dbeta = {};           ///< [B, Hv, L]
  View<4> dinitial_state = {};  ///< [N, Hv, Dk, Dv], also where no initial state was given
};

/// Gradients of a loss from dout [B, Hv, L, Dv] and, if given, dfinal_state [N, Hv, Dk, Dv], of the states' type. The
/// options are the forward's. States are recomputed: a thread holds those of 256 chunks of 64 tokens at most, one for
/// every 256 chunks before and, where Hv > H, dq and dk of the longest sequence. The gradients are overwritten.
void linear_attention_backward(ConstView<4> q, ConstView<4> k, ConstView<4> v, ConstView<4> dout,
                               const LinearAttentionGradients& gradients, const LinearAttentionOptions& options = {},
                               ConstView<4> dfinal_state = {});

/// The recurrence as plain float64 loops, token by token: the oracle of the tests. Arguments as above, of any element
/// type. One thread.
namespace reference {
void linear_attention(ConstView<4> q, ConstView<4> k, ConstView<4> v, View<4> out,
                      const LinearAttentionOptions& options = {}, View<4> final_state = {});
void linear_attention_backward(ConstView<4> q, ConstView<4> k, ConstView<4> v, ConstView<4> dout,
                               const LinearAttentionGradients& gradients, const LinearAttentionOptions& options = {},
                               ConstView<4> dfinal_state = {});
}  // namespace reference

}  // namespace attn
#pragma GCC visibility pop
