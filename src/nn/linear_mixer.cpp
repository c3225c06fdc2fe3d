// The mixer by linear attention: projections, convolution, features and gates around the operator.
#include "attn/nn_linear.h"

#include <cmath>

#include "attn/autograd_operations.h"
#include "nn/check.h"

namespace attn::nn {
namespace {

constexpr int64_t kMaxWidth = 1024, kMaxConvolution = 8;

void check_mixer(Checker& checker, int64_t width, const LinearMixerOptions& o) {
  check_extent(checker, "", "width", width);
  check_extent(checker, "", "heads", o.heads);
  check_option(checker, "", "value_heads", o.value_heads);
  check_option(checker, "", "head_dim", o.head_dim);
  check_option(checker, "", "value_dim", o.value_dim);
  if (!checker.ok()) return;
  checker.require(o.head_dim > 0 || width % o.heads == 0, [&] {
    return "heads is " + std::to_string(o.heads) + ", must divide the width " + std::to_string(width) +
           " where head_dim is not given";
  });
  checker.require(o.value_heads % o.heads == 0, [&] {
    return "value_heads is " + std::to_string(o.value_heads) + ", must be a multiple of heads, " +
           std::to_string(o.heads);
  });
  for (const auto& [name, dim] :
       {std::pair{"head_dim", o.head_dim > 0 ? o.head_dim : width / o.heads}, {"value_dim", o.value_dim}})
    checker.require(dim <= kMaxWidth, [&, n = name, d = dim] {
      return std::string(n) + " is " + std::to_string(d) + ", must be at most " + std::to_string(kMaxWidth);
    });
  checker.require(o.convolution >= 0 && o.convolution <= kMaxConvolution, [&] {
    return "convolution is " + std::to_string(o.convolution) + ", must be in [0, " + std::to_string(kMaxConvolution) +
           "]";
  });
  checker.require(o.norm_epsilon >= 0 && std::isfinite(o.norm_epsilon), [&] {
    return "norm_epsilon is " + std::to_string(o.norm_epsilon) + ", must be finite and at least 0";
  });
}

}  // namespace

LinearMixerOptions gated_delta_net(int64_t heads, int64_t head_dim, int64_t value_heads) {
  return {.heads = heads,
          .value_heads = value_heads,
          .head_dim = head_dim,
          .convolution = 4,
          .decay = MixerDecay::token,
          .delta = true,
          .beta = true,
          .l2norm = true,
          .head_norm = true,
          .gate = MixerGate::silu};
}

LinearMixerOptions retention(int64_t heads, int64_t head_dim) {
  return {.heads = heads, .head_dim = head_dim, .decay = MixerDecay::head, .head_norm = true, .gate = MixerGate::silu};
}

int64_t MixerState::bytes() const {
  return convolution.count() * size_of(convolution.dtype()) + state.count() * size_of(state.dtype());
}

LinearMixer::LinearMixer(const Scope& scope, int64_t width, const LinearMixerOptions& given)
    : Layer("LinearMixer", scope), options(given) {
  Checker checker(name());
  check_mixer(checker, width, options);
  checker.done();
  LinearMixerOptions& o = options;
  if (o.value_heads == 0) o.value_heads = o.heads;
  if (o.head_dim == 0) o.head_dim = width / o.heads;
  if (o.value_dim == 0) o.value_dim = o.head_dim;
  const int64_t values = o.value_heads * o.value_dim;
  qkv = Linear(scope / "qkv", width, channels(), {.bias = o.bias});
  if (o.convolution > 0)
    convolution = (scope / "convolution").variable("weight", {channels(), o.convolution}, ParameterRole::convolution);
  if (o.beta) beta = Linear(scope / "beta", width, o.value_heads, {.bias = o.bias});
  if (o.decay == MixerDecay::token || o.decay == MixerDecay::row) {
    const int64_t decays = o.value_heads * (o.decay == MixerDecay::row ? o.head_dim : 1);
    decay = Linear(scope / "decay", width, decays, {.bias = false});
    rate = (scope / "decay").variable("rate", {o.value_heads}, ParameterRole::decay);
    offset = (scope / "decay").variable("offset", {decays}, ParameterRole::bias);
  } else if (o.decay == MixerDecay::head) {
    std::vector<double> logs;
    for (int64_t h = 0; h < o.value_heads; ++h) logs.push_back(std::log1p(-std::exp2(-5.0 - static_cast<double>(h))));
    const Array wide(logs, {o.value_heads}),
        constants(dtype() == DType::float64 ? dtype() : DType::float32, {o.value_heads});
    ops::convert(wide.flat(), constants.flat());
    constant_decay_ = Value(constants);
  }
  if (o.head_norm) norm = (scope / "norm").variable("weight", {o.value_dim}, ParameterRole::scale);
  if (o.gate != MixerGate::none) gate = Linear(scope / "gate", width, values, {.bias = o.bias});
  output = Linear(scope / "output", values, width, {.bias = o.bias, .residual = true});
}

int64_t LinearMixer::channels() const {
  return 2 * options.heads * options.head_dim + options.value_heads * options.value_dim;
}

MixerState LinearMixer::new_state(int64_t B) const {
  Checker checker(name());
  check_made(checker, qkv.weight);
  check_extent(checker, "", "B", B);
  checker.done();
  MixerState s;
  if (options.convolution > 0) s.convolution = Array(dtype(), {B, channels(), options.convolution - 1});
  s.state = Array(dtype() == DType::float64 ? DType::float64 : DType::float32,
                  {B, options.value_heads, options.head_dim, options.value_dim + options.normalize});
  return s;
}

void LinearMixer::check_call(const Tape& tape, const Value& x, const MixerInputs& inputs) const {
  Checker checker(name());
  if (check_made(checker, qkv.weight) && check_rows(checker, "x", x, qkv.weight.shape()[1], dtype()) && inputs.state) {
    const MixerState expected = new_state(x.shape()[0]);
    checker.require(!tape.recording(), "a state is for inference, and the tape records");
    checker.require(inputs.cu_seqlens.empty(), "a state is for sequences of a batch, not for packed ones");
    for (const auto& [part, given, wanted] : {std::tuple{"state", &inputs.state->state, &expected.state},
                                              {"convolution", &inputs.state->convolution, &expected.convolution}})
      checker.require(given->shape() == wanted->shape() && given->dtype() == wanted->dtype(),
                      [&, p = part, g = given, w = wanted] {
                        return std::string("the state's ") + p + " is " + g->describe() + ", must be " + w->describe() +
                               ": new_state() makes it";
                      });
  }
  checker.done();
}

Value LinearMixer::log_decay(Tape& tape, const Value& x) const {
  if (options.decay == MixerDecay::none) return {};
  if (options.decay == MixerDecay::head) return constant_decay_;
  return decay_logarithm(tape, decay(tape, x), rate, offset);
}

/// The norm of each head, and the gate.
Value LinearMixer::gated(Tape& tape, const Value& x, const Value& y) const {
  Value out = y;
  if (options.head_norm) {
    const std::vector<int64_t> shape = out.shape();
    const Value heads = reshape(tape, out, {shape[0] * shape[1] * options.value_heads, options.value_dim});
    out = reshape(tape, rms_norm(tape, heads, norm, options.norm_epsilon), shape);
  }
  if (options.gate == MixerGate::none) return out;
  const Value g = gate(tape, x);
  return multiply(tape, out,
                  options.gate == MixerGate::silu ? activate(tape, ops::Activation::silu, g) : sigmoid(tape, g));
}

Value LinearMixer::operator()(Tape& tape, const Value& x, const MixerInputs& inputs) const {
  check_call(tape, x, inputs);
  const Tape::ErrorScope scope(tape, name());
  const LinearMixerOptions& o = options;
  Value rows = qkv(tape, x);
  if (convolution) {
    View<3> kept;
    if (inputs.state) kept = inputs.state->convolution;
    rows = causal_convolution(tape, rows, convolution, {}, true, inputs.cu_seqlens, kept);
  }
  const int64_t features = o.heads * o.head_dim;
  autograd::Heads q{rows, 0, o.heads, o.head_dim}, k{rows, features, o.heads, o.head_dim};
  if (o.features == MixerFeatures::elu) {
    const Value positive = elu_plus_one(tape, slice(tape, rows, 2, 0, 2 * features));
    q.array = k.array = positive;
  }
  autograd::LinearMixing mixing{.log_decay = log_decay(tape, x), .delta = o.delta, .l2norm = o.l2norm};
  mixing.normalize = o.normalize;
  mixing.cu_seqlens = inputs.cu_seqlens;
  if (o.beta) mixing.beta = sigmoid(tape, beta(tape, x));
  if (inputs.state) mixing.state = inputs.state->state;
  const Value y = linear_attention(tape, q, k, {rows, 2 * features, o.value_heads, o.value_dim}, mixing);
  return output(tape, gated(tape, x, y));
}

}  // namespace attn::nn
