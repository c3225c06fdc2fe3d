// The mixer by linear attention: projections, convolution, features and gates around the operator.
#include "attn/nn_mixers.h"

#include <cmath>

#include "attn/autograd_operations.h"
#include "nn/check.h"

namespace attn::nn {
namespace {

constexpr int64_t kMaxWidth = 1024;
constexpr uint64_t kProjectionSeed = 1;  // Performer's projection: drawn anew when a model is opened, not stored

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
  check_convolution_width(checker, "convolution", o.convolution, 0);
  for (const auto& [name, value] : {std::pair{"scale", o.scale}, {"norm_epsilon", o.norm_epsilon}})
    checker.require(value >= 0 && std::isfinite(value), [&, n = name, v = value] {
      return std::string(n) + " is " + std::to_string(v) + ", must be finite and at least 0";
    });
  checker.require(o.beta != MixerBeta::step || o.decay == MixerDecay::token,
                  "beta step is the step of a decay by token: decay must be token");
  checker.require(o.convolution > 0 || !o.convolution_bias, "convolution_bias needs a convolution");
  checker.require(!o.gate_first || (o.gate != MixerGate::none && o.norm != MixerNorm::none),
                  "gate_first orders a gate and a norm: both must be given");
}

}  // namespace

LinearMixerOptions gated_delta_net(int64_t heads, int64_t head_dim, int64_t value_heads) {
  return {.heads = heads,
          .value_heads = value_heads,
          .head_dim = head_dim,
          .convolution = 4,
          .decay = MixerDecay::token,
          .delta = true,
          .beta = MixerBeta::sigmoid,
          .l2norm = true,
          .norm = MixerNorm::heads,
          .gate = MixerGate::silu};
}

LinearMixerOptions retention(int64_t heads, int64_t head_dim) {
  return {.heads = heads,
          .head_dim = head_dim,
          .decay = MixerDecay::head,
          .norm = MixerNorm::heads,
          .gate = MixerGate::silu};
}

LinearMixerOptions mamba2(int64_t heads, int64_t head_dim, int64_t state_dim, int64_t groups) {
  return {.heads = groups,
          .value_heads = heads,
          .head_dim = state_dim,
          .value_dim = head_dim,
          .convolution = 4,
          .convolution_bias = true,
          .decay = MixerDecay::token,
          .beta = MixerBeta::step,
          .scale = 1,
          .skip = true,
          .norm = MixerNorm::groups,
          .gate = MixerGate::silu,
          .gate_first = true};
}

namespace {

/// log(1 - 2^(-5 - h)) of each head.
Array retention_decays(int64_t heads, DType dtype) {
  std::vector<double> logs;
  for (int64_t h = 0; h < heads; ++h) logs.push_back(std::log1p(-std::exp2(-5.0 - static_cast<double>(h))));
  const Array wide(logs, {heads}), decays(dtype, {heads});
  ops::convert(wide.flat(), decays.flat());
  return decays;
}

}  // namespace

LinearMixer::LinearMixer(const Scope& scope, int64_t width, const LinearMixerOptions& given)
    : Mixer("LinearMixer", scope), options(given) {
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
  if (o.convolution_bias)
    convolution_bias = (scope / "convolution").variable("bias", {channels()}, ParameterRole::bias);
  if (o.beta == MixerBeta::sigmoid) beta = Linear(scope / "beta", width, o.value_heads, {.bias = o.bias});
  if (o.decay == MixerDecay::token || o.decay == MixerDecay::row) {
    const int64_t decays = o.value_heads * (o.decay == MixerDecay::row ? o.head_dim : 1);
    decay = Linear(scope / "decay", width, decays, {.bias = false});
    rate = (scope / "decay").variable("rate", {o.value_heads}, ParameterRole::decay);
    offset = (scope / "decay").variable("offset", {decays}, ParameterRole::bias);
  }
  const DType wide = dtype() == DType::float64 ? DType::float64 : DType::float32;
  if (o.beta == MixerBeta::step) zero_rate_ = Value(Array(wide, {o.value_heads}));
  if (o.decay == MixerDecay::head) constant_decay_ = Value(retention_decays(o.value_heads, wide));
  if (o.features == MixerFeatures::performer)
    projection_ = Value(autograd::orthogonal_projection(o.head_dim, o.head_dim, dtype(), kProjectionSeed));
  if (o.skip) skip = scope.variable("skip", {o.value_heads}, ParameterRole::scale);
  if (o.norm != MixerNorm::none)
    norm =
        (scope / "norm").variable("weight", {o.norm == MixerNorm::groups ? values : o.value_dim}, ParameterRole::scale);
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
  MixerState fresh;
  fresh.parts.push_back(Array(dtype() == DType::float64 ? DType::float64 : DType::float32,
                              {B, options.value_heads, options.head_dim, options.value_dim + options.normalize}));
  if (options.convolution > 0) fresh.parts.push_back(Array(dtype(), {B, channels(), options.convolution - 1}));
  return fresh;
}

void LinearMixer::check_call(const Tape& tape, const Value& x, const MixerInputs& inputs) const {
  Checker checker(name());
  if (check_made(checker, qkv.weight) && check_rows(checker, "x", x, qkv.weight.shape()[1], dtype()) && inputs.state)
    check_state(checker, tape, inputs, new_state(x.shape()[0]));
  checker.done();
}

/// The decay and beta of x's tokens, and the options of the operator.
autograd::LinearMixing LinearMixer::mixing(Tape& tape, const Value& x) const {
  const LinearMixerOptions& o = options;
  autograd::LinearMixing m{.delta = o.delta, .l2norm = o.l2norm};
  m.normalize = o.normalize;
  m.scale = o.scale;
  m.log_decay = constant_decay_;
  if (o.beta == MixerBeta::sigmoid) m.beta = sigmoid(tape, beta(tape, x));
  if (!rate) return m;
  const Value steps = decay(tape, x);
  m.log_decay = decay_logarithm(tape, steps, rate, offset);
  if (o.beta == MixerBeta::step) m.beta = scale(tape, decay_logarithm(tape, steps, zero_rate_, offset), -1);
  return m;
}

Value LinearMixer::normed(Tape& tape, const Value& y) const {
  if (options.norm == MixerNorm::none) return y;
  if (options.norm == MixerNorm::heads)
    return rms_norm_columns(tape, y, {{0, options.value_heads, norm}}, options.norm_epsilon);
  std::vector<autograd::ColumnRuns> groups;
  const int64_t width = y.shape()[2] / options.heads;
  for (int64_t first = 0; first < y.shape()[2]; first += width)
    groups.push_back({first, 1, slice(tape, norm, 0, first, first + width)});
  return rms_norm_columns(tape, y, std::move(groups), options.norm_epsilon);
}

/// The norm and the gate, in the order that the options want.
Value LinearMixer::finished(Tape& tape, const Value& x, const Value& y) const {
  if (options.gate == MixerGate::none) return normed(tape, y);
  const Value g = gate(tape, x);
  const Value factor = options.gate == MixerGate::silu ? activate(tape, ops::Activation::silu, g) : sigmoid(tape, g);
  return options.gate_first ? normed(tape, multiply(tape, y, factor)) : multiply(tape, normed(tape, y), factor);
}

Value LinearMixer::operator()(Tape& tape, const Value& x, const MixerInputs& inputs) const {
  check_call(tape, x, inputs);
  const Tape::NameScope scope(tape, short_name());
  const LinearMixerOptions& o = options;
  Value rows = qkv(tape, x);
  if (convolution) {
    View<3> kept;
    if (inputs.state) kept = inputs.state->parts[1];
    rows = causal_convolution(tape, rows, convolution, convolution_bias, true, inputs.cu_seqlens, kept);
  }
  const int64_t features = o.heads * o.head_dim;
  autograd::Heads q{rows, 0, o.heads, o.head_dim}, k{rows, features, o.heads, o.head_dim};
  if (o.features != MixerFeatures::none) {
    const Value both = slice(tape, rows, 2, 0, 2 * features);
    q.array = k.array =
        o.features == MixerFeatures::elu ? elu_plus_one(tape, both) : positive_features(tape, both, projection_);
  }
  autograd::LinearMixing with = mixing(tape, x);
  with.cu_seqlens = inputs.cu_seqlens;
  if (inputs.state) with.state = inputs.state->parts[0];
  Value y = linear_attention(tape, q, k, {rows, 2 * features, o.value_heads, o.value_dim}, with);
  if (o.skip) {
    const Value v = slice(tape, rows, 2, 2 * features, channels());
    y = add(tape, y, scale_heads(tape, v, reshape(tape, skip, {1, o.value_heads})));
  }
  return output(tape, finished(tape, x, y));
}

}  // namespace attn::nn
