// The functions of attn/c_linear.h.
#include "c/arguments.h"

using attn::View;
using attn::c::Arguments;
using attn::c::guarded;

attn_status attn_linear_attention(const attn_tensor* q, const attn_tensor* k, const attn_tensor* v,
                                  const attn_tensor* out, const attn_tensor* final_state,
                                  const attn_linear_options* options) {
  return guarded([&] {
    Arguments a("attn_linear_attention");
    const View<4> q4 = a.base<4>("q", q), k4 = a.base<4>("k", k), v4 = a.base<4>("v", v);
    const View<4> out4 = a.tensor<4>("out", out), final4 = a.optional<4>("final_state", final_state);
    const attn::LinearAttentionOptions o = a.options(options);
    a.call([&] { attn::linear_attention(q4, k4, v4, out4, o, final4); });
  });
}

attn_status attn_linear_attention_backward(const attn_tensor* q, const attn_tensor* k, const attn_tensor* v,
                                           const attn_tensor* dout, const attn_tensor* dfinal_state,
                                           const attn_linear_gradients* gradients, const attn_linear_options* options) {
  return guarded([&] {
    Arguments a("attn_linear_attention_backward");
    const View<4> q4 = a.base<4>("q", q), k4 = a.base<4>("k", k), v4 = a.base<4>("v", v);
    const View<4> dout4 = a.tensor<4>("dout", dout), dfinal4 = a.optional<4>("dfinal_state", dfinal_state);
    const attn::LinearAttentionGradients g = a.gradients(gradients);
    const attn::LinearAttentionOptions o = a.options(options);
    a.call([&] { attn::linear_attention_backward(q4, k4, v4, dout4, g, o, dfinal4); });
  });
}

attn_status attn_causal_convolution(const attn_tensor* x, const attn_tensor* weight, const attn_tensor* out,
                                    const attn_tensor* final_state, const attn_convolution_options* options) {
  return guarded([&] {
    Arguments a("attn_causal_convolution");
    const View<3> x3 = a.base<3>("x", x);
    const View<2> weight2 = a.base<2>("weight", weight);
    const View<3> out3 = a.tensor<3>("out", out), final3 = a.optional<3>("final_state", final_state);
    const attn::CausalConvolutionOptions o = a.options(options);
    a.call([&] { attn::causal_convolution(x3, weight2, out3, o, final3); });
  });
}

attn_status attn_causal_convolution_backward(const attn_tensor* x, const attn_tensor* weight, const attn_tensor* dout,
                                             const attn_tensor* dfinal_state,
                                             const attn_convolution_gradients* gradients,
                                             const attn_convolution_options* options) {
  return guarded([&] {
    Arguments a("attn_causal_convolution_backward");
    const View<3> x3 = a.base<3>("x", x);
    const View<2> weight2 = a.base<2>("weight", weight);
    const View<3> dout3 = a.tensor<3>("dout", dout), dfinal3 = a.optional<3>("dfinal_state", dfinal_state);
    const attn::CausalConvolutionGradients g = a.gradients(gradients);
    const attn::CausalConvolutionOptions o = a.options(options);
    a.call([&] { attn::causal_convolution_backward(x3, weight2, dout3, g, o, dfinal3); });
  });
}
