// Linear attention and the short convolution on the tape: the operators in place on [B, L, C], and their backward.
#include "attn/autograd_linear.h"

#include "attn/linear_convolution.h"
#include "autograd/attention.h"

namespace attn::autograd {
namespace {

/// [Hv], [B, L, Hv] or [B, L, Hv Dk] as the operator takes a decay.
View<4> decay_view(const Array& decay, const Heads& v, int64_t depth) {
  if (!decay) return {};
  const std::vector<int64_t>& shape = decay.shape();
  const int64_t heads = v.heads;
  if (shape.size() == 1) return {decay.data(), decay.dtype(), {1, heads, 1, 1}};
  const int64_t B = shape[0], L = shape[1], width = shape[2] / heads;
  return {decay.data(), decay.dtype(), {B, heads, L, width == depth ? depth : 1}, {L * shape[2], width, shape[2], 1}};
}
View<3> beta_view(const Array& beta) {
  if (!beta) return {};
  const std::vector<int64_t>& shape = beta.shape();
  return {beta.data(), beta.dtype(), {shape[0], shape[2], shape[1]}, {shape[1] * shape[2], 1, shape[2]}};
}

bool has_shape(const Value& x, const std::vector<int64_t>& shape) { return x.shape() == shape; }

void check_arguments(const Tape& tape, const Heads& q, const Heads& k, const Heads& v, const LinearMixing& m) {
  Checker checker("linear_attention");
  for (const auto& [name, heads] : {std::pair{"q", &q}, {"k", &k}, {"v", &v}})
    if (require_value(checker, name, heads->array))
      require_inside(checker, (std::string(name) + ": ").c_str(), *heads, heads->array.data());
  if (checker.ok()) {
    const int64_t B = q.array.shape()[0], L = q.array.shape()[1], H = v.heads;
    if (m.log_decay && !has_shape(m.log_decay, {H}) && !has_shape(m.log_decay, {B, L, H}) &&
        !has_shape(m.log_decay, {B, L, H * q.width}))
      refuse_form(
          checker, "log_decay", m.log_decay,
          "[Hv], [B, L, Hv] or [B, L, Hv Dk], of " + std::to_string(H) + " heads and Dk = " + std::to_string(q.width));
    if (m.beta && !has_shape(m.beta, {B, L, H}))
      refuse_form(checker, "beta", m.beta, "[B, L, Hv] = " + to_string(Shape<3>{B, L, H}));
    checker.require(!m.state || !tape.recording(), "a state is for inference, and the tape records");
  }
  checker.done();
}

Array like(const Tape& tape, const Value& x) { return x.wants_gradient() ? tape.array(x.dtype(), x.shape()) : Array(); }

}  // namespace

Value linear_attention(Tape& tape, const Heads& q, const Heads& k, const Heads& v, const LinearMixing& m) {
  check_arguments(tape, q, k, v, m);
  const Value decay = m.log_decay, beta = m.beta;
  const auto options = [=] {
    LinearAttentionOptions o;
    if (m.scale != 0) o.scale = m.scale;
    if (decay) o.log_decay = decay_view(decay.data(), v, q.width);
    if (beta) o.beta = beta_view(beta.data());
    o.delta = m.delta;
    o.l2norm = m.l2norm;
    o.normalize = m.normalize;
    o.initial_state = m.state;
    o.cu_seqlens = m.cu_seqlens;
    return o;
  };
  const Array data = tape.array(q.array.dtype(), {q.array.shape()[0], q.array.shape()[1], v.heads * v.width});
  const Heads out{{}, 0, v.heads, v.width};
  attn::linear_attention(q.view(), k.view(), v.view(), out.view_of(data), options(), m.state);
  Value y = tape.result("linear_attention", data, {q.array, k.array, v.array, decay, beta});
  tape.record(y, [=, &tape] {
    HeadGradients gradients(tape);
    LinearAttentionGradients to;
    to.dq = gradients.of(q, covered(q, {&q, &k, &v}));
    to.dk = gradients.of(k, covered(k, {&q, &k, &v}));
    to.dv = gradients.of(v, covered(v, {&q, &k, &v}));
    const Array ddecay = like(tape, decay), dbeta = like(tape, beta);
    if (ddecay) to.dlog_decay = decay_view(ddecay, v, q.width);
    if (dbeta) to.dbeta = beta_view(dbeta);
    linear_attention_backward(q.view(), k.view(), v.view(), out.view_of(y.gradient()), to, options());
    gradients.hand_over();
    if (ddecay) tape.add_gradient(decay, ddecay);
    if (dbeta) tape.add_gradient(beta, dbeta);
  });
  return y;
}

Value causal_convolution(Tape& tape, const Value& x, const Value& weight, const Value& bias, bool silu,
                         std::span<const int64_t> cu_seqlens, View<3> state) {
  Checker checker("causal_convolution");
  require_rank(checker, "x", x, 3, "[B, L, C]");
  require_rank(checker, "weight", weight, 2, "[C, W]");
  if (bias) require_rank(checker, "bias", bias, 1, "[C]");
  checker.require(!state || !tape.recording(), "a state is for inference, and the tape records");
  checker.done();
  const auto options = [=] {
    CausalConvolutionOptions o;
    if (bias) o.bias = bias.data().vector();
    o.silu = silu;
    o.initial_state = state;
    o.cu_seqlens = cu_seqlens;
    return o;
  };
  const Array data = tape.array(x.dtype(), x.shape());
  attn::causal_convolution(x.data(), weight.data(), data, options(), state);
  Value y = tape.result("causal_convolution", data, {x, weight, bias});
  tape.record(y, [=, &tape] {
    const Array dx = like(tape, x), dweight = like(tape, weight), dbias = like(tape, bias);
    CausalConvolutionGradients to;
    if (dx) to.dx = dx;
    if (dweight) to.dweight = dweight;
    if (dbias) to.dbias = dbias.vector();
    causal_convolution_backward(x.data(), weight.data(), y.gradient(), to, options());
    if (dx) tape.add_gradient(x, dx);
    if (dweight) tape.add_gradient(weight, dweight);
    if (dbias) tape.add_gradient(bias, dbias);
  });
  return y;
}

}  // namespace attn::autograd
