// nn: mixers, the layers that may be in a block in place of attention: linear attention as in RetNet, gated linear
// attention, Mamba 2 and gated delta nets, a gated short convolution, an LSTM, and mixers of your own.
//
// ```cpp
// #include "attn/autograd_operations.h"
// #include "attn/nn_mixers.h"
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
// A mixer is causal: a token depends on itself and on earlier tokens. A class derived from Mixer goes into a block by
// BlockOptions::mixer and into a model by models::Config::mixer; examples/06_own_mixer.cpp has one.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "attn/autograd_linear.h"
#include "attn/nn_layers.h"

#pragma GCC visibility push(default)
namespace attn::nn {

/// What a mixer keeps of the tokens so far, for generation.
struct MixerState {
  std::vector<Array> parts = {};  ///< each [B, ..]; their meaning is the mixer's own
  int64_t bytes() const;
  /// Replaces the batch by the given sequences of it, by index; an index may repeat. Throws Error for other indices.
  void select(std::span<const int64_t> sequences);
};

struct MixerInputs {
  std::span<const int64_t> cu_seqlens = {};  ///< [n + 1], from 0 to L: x [1, L, C] is n packed sequences
  MixerState* state = nullptr;               ///< x follows the tokens of this state, which is updated; inference only
};

/// A causal layer over the tokens of a sequence. A derived class passes on the name of its class and its scope.
class Mixer : public Layer {
 public:
  virtual ~Mixer() = default;
  /// x [B, L, C] -> [B, L, C]
  virtual Value operator()(Tape& tape, const Value& x, const MixerInputs& inputs = {}) const = 0;
  /// The state before the first token, for a batch of B. A mixer that does not override this cannot generate: it throws
  /// Error.
  virtual MixerState new_state(int64_t B) const;

 protected:
  using Layer::Layer;
};
/// Makes the mixer of a block of this width, with its parameters in `scope`.
using MixerMaker = std::function<std::shared_ptr<const Mixer>(const Scope& scope, int64_t width)>;

// -------------------------------------------------------------------------------------------------- linear attention

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
  elu,       ///< elu(x) + 1, as in Katharopoulos et al. 2020
  performer  ///< Dk positive random features, as in Choromanski et al. 2021: autograd::positive_features()
};
constexpr auto enum_names(MixerFeatures) { return std::to_array<std::string_view>({"none", "elu", "performer"}); }
/// What multiplies the output before its projection: nothing, or a function of W x.
enum class MixerGate { none, sigmoid, silu };
constexpr auto enum_names(MixerGate) { return std::to_array<std::string_view>({"none", "sigmoid", "silu"}); }
/// The factor on what a token writes into the state.
enum class MixerBeta {
  none,     ///< 1
  sigmoid,  ///< sigmoid(W x), as in gated delta nets
  step      ///< softplus(W x + offset), the step of Mamba 2, with the W and offset of MixerDecay::token
};
constexpr auto enum_names(MixerBeta) { return std::to_array<std::string_view>({"none", "sigmoid", "step"}); }
/// An RMS norm with a learned scale of the output before its projection.
enum class MixerNorm {
  none,
  heads,  ///< of each head, one scale [Dv]
  groups  ///< of the value heads together that share a head of q and k, a scale [Hv Dv], as in Mamba 2
};
constexpr auto enum_names(MixerNorm) { return std::to_array<std::string_view>({"none", "heads", "groups"}); }

struct LinearMixerOptions {
  int64_t heads = 1;        ///< H, of q and k
  int64_t value_heads = 0;  ///< Hv, a multiple of H; 0 = heads
  int64_t head_dim = 0;     ///< Dk, at most 1024; 0 = C / heads, which must be whole
  int64_t value_dim = 0;    ///< Dv, at most 1024; 0 = head_dim
  int64_t convolution = 0;  ///< W of a short causal convolution with SiLU on q, k and v, at most 8; 0 = none
  bool convolution_bias = false;
  MixerDecay decay = MixerDecay::none;
  MixerFeatures features = MixerFeatures::none;
  bool delta = false;  ///< the delta rule
  MixerBeta beta = MixerBeta::none;
  bool l2norm = false;     ///< q and k have length 1
  double scale = 0;        ///< factor on q; 0 = 1 / sqrt(Dk)
  bool normalize = false;  ///< the output is divided by the sum of its weights
  bool skip = false;       ///< the output of a head gains a learned factor times v, as in Mamba 2
  MixerNorm norm = MixerNorm::none;
  MixerGate gate = MixerGate::none;
  bool gate_first = false;     ///< the gate comes before the norm, as in Mamba 2
  bool bias = false;           ///< of the projections of q, k, v and of the output
  double norm_epsilon = 1e-6;  ///< of the norm
};
/// The layer of gated delta nets (Yang et al. 2024, arXiv:2412.06464) with so many heads of q and k, features a head,
/// and a short convolution over four tokens. value_heads 0 = heads.
LinearMixerOptions gated_delta_net(int64_t heads, int64_t head_dim, int64_t value_heads = 0);
/// RetNet's layer (Sun et al. 2023, arXiv:2307.08621) without rotary positions.
LinearMixerOptions retention(int64_t heads, int64_t head_dim);
/// Mamba 2's layer (Dao and Gu 2024, arXiv:2405.21060): `groups` heads of q and k (C and B there) of `state_dim`
/// features, `heads` of v, whose width is `head_dim`.
LinearMixerOptions mamba2(int64_t heads, int64_t head_dim, int64_t state_dim, int64_t groups = 1);

/// x -> q, k, v by one projection -> [short convolution, SiLU] -> [features] -> linear_attention() -> [norm] -> [times
/// a gate] -> output projection. docs/operators/linear_attention.md defines the operator.
class LinearMixer : public Mixer {
 public:
  LinearMixer() : Mixer("LinearMixer") {}
  LinearMixer(const Scope& scope, int64_t width, const LinearMixerOptions& options);
  Value operator()(Tape& tape, const Value& x, const MixerInputs& inputs = {}) const override;
  /// The state [B, Hv, Dk, Dv], or Dv + 1 with normalize, in float32 or float64, then the last W - 1 tokens of the
  /// convolution, [B, channels, W - 1], in the layer's type. Its size does not depend on the number of tokens.
  MixerState new_state(int64_t B) const override;

  /// qkv [2 H Dk + Hv Dv, C], beta [Hv, C], decay [Hv or Hv Dk, C], gate [Hv Dv, C], output [C, Hv Dv].
  Linear qkv, beta, decay, gate, output;
  Value convolution, convolution_bias;  ///< [2 H Dk + Hv Dv, W], [2 H Dk + Hv Dv]
  Value rate, offset;                   ///< [Hv], [Hv or Hv Dk]: of the decay
  Value skip;                           ///< [Hv]
  Value norm;                           ///< [Dv] or [Hv Dv]
  LinearMixerOptions options;

 private:
  int64_t channels() const;
  autograd::LinearMixing mixing(Tape& tape, const Value& x) const;
  Value normed(Tape& tape, const Value& y) const;
  Value finished(Tape& tape, const Value& x, const Value& y) const;
  void check_call(const Tape& tape, const Value& x, const MixerInputs& inputs) const;
  Value projection_;      // [Dk, Dk], of MixerFeatures::performer
  Value constant_decay_;  // of MixerDecay::head
  Value zero_rate_;       // of MixerBeta::step: a rate of 0 leaves the softplus
};

// --------------------------------------------------------------------------------------------- a convolution as mixer

struct ShortConvolutionOptions {
  int64_t width = 3;  ///< W, tokens that one output reads; 1 to 8
  bool bias = false;  ///< of the projections and of the convolution
};
/// The gated short convolution of LFM2 (Liquid AI 2025, arXiv:2511.23404): x -> b, c, h by one projection ->
/// c * convolution(b * h) -> output projection.
class ShortConvolution : public Mixer {
 public:
  ShortConvolution() : Mixer("ShortConvolution") {}
  ShortConvolution(const Scope& scope, int64_t width, const ShortConvolutionOptions& options = {});
  Value operator()(Tape& tape, const Value& x, const MixerInputs& inputs = {}) const override;
  /// The last W - 1 tokens of the convolution, [B, C, W - 1].
  MixerState new_state(int64_t B) const override;

  Linear input, output;                 ///< [3 C, C], [C, C]
  Value convolution, convolution_bias;  ///< [C, W], [C]
  ShortConvolutionOptions options;
};

// ---------------------------------------------------------------------------------------------------------------- LSTM

struct LstmOptions {
  int64_t hidden_dim = 0;  ///< H; 0 = the width of the model, and then there is no output projection
};
/// An LSTM layer as torch.nn.LSTM has it, with one bias: gates = x W^T + b -> ops::lstm() -> [output projection].
/// Sequential in the tokens: a step is a product with as many rows as there are sequences.
class Lstm : public Mixer {
 public:
  Lstm() : Mixer("Lstm") {}
  Lstm(const Scope& scope, int64_t width, const LstmOptions& options = {});
  Value operator()(Tape& tape, const Value& x, const MixerInputs& inputs = {}) const override;
  /// h and c, [B, 2 H], in float32 or float64.
  MixerState new_state(int64_t B) const override;

  Linear input;     ///< [4 H, C], with a bias: input, forget, cell and output gates
  Value recurrent;  ///< [4 H, H]
  Linear output;    ///< [C, H], where hidden_dim is given
  LstmOptions options;
};

}  // namespace attn::nn
#pragma GCC visibility pop
