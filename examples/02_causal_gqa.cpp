// A causal layer with eight query heads over two key/value heads, forward and backward, and what the library says of
// it.
#include <cstdio>

#include "attn/attn.h"

using Rows = attn::Tensor<float, 4>;  // [B, heads, tokens, width]

int main() {
  Rows q({1, 8, 256, 64}), k({1, 2, 256, 64}), v({1, 2, 256, 64}), out({1, 8, 256, 64}), dout({1, 8, 256, 64});
  Rows dq(q.size()), dk(k.size()), dv(v.size());
  attn::Tensor<float, 3> lse({1, 8, 256});
  attn::Random random(42);
  for (Rows* x : {&q, &k, &v, &dout}) attn::fill_normal(*x, random);

  attn::AttentionOptions options;
  options.causal = true;
  attn::attention(q, k, v, out, lse, options);
  attn::attention_backward(q, k, v, out, lse, dout, {.dq = dq, .dk = dk, .dv = dv, .dbias = {}, .dsink = {}}, options);

  std::printf("out %.4f  dq %.4f  dk %.4f  dv %.4f\n", out[out.count() - 1], dq[dq.count() - 1], dk[0], dv[0]);
  std::printf("forward   %s\n", attn::explain(q, k, v, options).path.c_str());
  std::printf("backward  %s\n", attn::explain_backward(q, k, v, options).path.c_str());
}
