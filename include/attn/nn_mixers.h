// nn: a mixer of tokens by linear attention: the layer of RetNet, gated linear attention, Mamba 2's and gated delta
// nets, depending on its options.
//
// ```cpp
// #include "attn/autograd_operations.h"
// #include "attn/nn_linear.h"
// using namespace attn;
// int main() {
//   nn::Parameters parameters({.seed = 1});
//   const nn::LinearMixer layer(nn::Scope(parameters) / "mixer", 64, nn::gated_delta_net(4, 16, 4));
//   autograd::Tape tape({.record = true});
//   const nn::Value x(Array(DType::float32, {2, 10, 64}));
//   tape.backward(autograd::sum(tape, layer(tape, x)));
// }
// ```
//
// x [B, L, C] -> q, k, v by one projection -> [short convolution, SiLU] -> [features] -> linear_attention() -> [norm of
// each head] -> [times a gate] -> output projection. docs/operators/linear_attention.md defines the operator.
#pragma once

#include <span>
#include <vector>

#include "attn/autograd_linear.h"
#include "attn/nn_layers.h"

#pragma GCC visibility push(default)
namespace attn::nn {

/// How fast the state of a LinearMixer forgets.
enum class MixerDecay {
  none,   ///< not at all
  head,   ///< a constant a head, 1 - 2^(-5 - h), as RetNet
  token,  ///< -exp(rate) softplus(W x + offset), a number a head and token, as Mamba 2 and gated delta nets
  row     ///< the same for each of the Dk rows of the state, as GLA and Kimi delta attention
};
constexpr auto enum_names(MixerDecay) { return std::to_array<std::string_view>({"none", "head", "token", "row"}); }
/// What q and k are before they enter the state.
enum class MixerFeatures {
  none,
  elu  ///< elu(x) + 1, as in Katharopoulos et al. 2020
};
constexpr auto enum_names(MixerFeatures) { return std::to_array<std::string_view>({"none", "elu"}); }
/// What multiplies the output before its projection: nothing, or a function of W x.
enum class MixerGate { none, sigmoid, silu };
constexpr auto enum_names(MixerGate) { return std::to_array<std::string_view>({"none", "sigmoid", "silu"}); }

struct LinearMixerOptions {
  int64_t heads = 1;        ///< H, of q and k
  int64_t value_heads = 0;  ///< Hv, a multiple of H; 0 = heads
  int64_t head_dim = 0;     ///< Dk, at most 1024; 0 = C / heads, which must be whole
  int64_t value_dim = 0;    ///< Dv, at most 1024; 0 = head_dim
  int64_t convolution = 0;  ///< W of a short causal convolution with SiLU on q, k and v, at most 8; 0 = none
  MixerDecay decay = MixerDecay::none;
  MixerFeatures features = MixerFeatures::none;
  bool delta = false;      ///< the delta rule
  bool beta = false;       ///< a token writes sigmoid(W x) of its value
  bool l2norm = false;     ///< q and k have length 1
  bool normalize = false;  ///< the output is divided by the sum of its weights
  bool head_norm = false;  ///< an RMS norm of each head's output, with one learned scale [Dv]
  MixerGate gate = MixerGate::none;
  bool bias = false;           ///< of the projections
  double norm_epsilon = 1e-6;  ///< of head_norm
};
/// The layer of gated delta nets (Yang et al. 2024, arXiv:2412.06464) with so many heads of q and k, features a head,
/// and a short convolution over four tokens. value_heads 0 = heads.
LinearMixerOptions gated_delta_net(int64_t heads, int64_t head_dim, int64_t value_heads = 0);
/// RetNet's layer (Sun et al. 2023, arXiv:2307.08621) without rotary positions.
LinearMixerOptions retention(int64_t heads, int64_t head_dim);

/// What a mixer keeps of the tokens so far, for generation. Its size does not depend on their number.
struct MixerState {
  Array convolution;  ///< [B, channels, W - 1], of the layer's type; empty without a convolution
  Array state;        ///< [B, Hv, Dk, Dv], or Dv + 1 with normalize; float32, or float64
  int64_t bytes() const;
};

struct MixerInputs {
  std::span<const int64_t> cu_seqlens = {};  ///< [n + 1], from 0 to L: x [1, L, C] is n packed sequences
  MixerState* state = nullptr;               ///< x follows the tokens of this state, which is updated; inference only
};

class LinearMixer : public Layer {
 public:
  LinearMixer() : Layer("LinearMixer") {}
  LinearMixer(const Scope& scope, int64_t width, const LinearMixerOptions& options);
  /// x [B, L, C] -> [B, L, C]
  Value operator()(Tape& tape, const Value& x, const MixerInputs& inputs = {}) const;
  /// The state before the first token, for a batch of B.
  MixerState new_state(int64_t B) const;

  /// qkv [2 H Dk + Hv Dv, C], beta [Hv, C], decay [Hv or Hv Dk, C], gate [Hv Dv, C], output [C, Hv Dv].
  Linear qkv, beta, decay, gate, output;
  Value convolution;   ///< [2 H Dk + Hv Dv, W]
  Value rate, offset;  ///< [Hv], [Hv or Hv Dk]: of the decay
  Value norm;          ///< [Dv]
  LinearMixerOptions options;

 private:
  int64_t channels() const;
  Value log_decay(Tape& tape, const Value& x) const;
  Value gated(Tape& tape, const Value& x, const Value& y) const;
  void check_call(const Tape& tape, const Value& x, const MixerInputs& inputs) const;
  Value constant_decay_;  // of MixerDecay::head
};

}  // namespace attn::nn
#pragma GCC visibility pop
