// A zero query weighs both keys alike: the output is the mean of the values. An error of the library is caught here.
#include <attn/attn.h>

int main() {
  attn::Tensor<float, 4> q({1, 1, 1, 2}), k({1, 1, 2, 2}), v({1, 1, 2, 1}), out({1, 1, 1, 1});
  v[0] = 1;
  v[1] = 3;
  attn::attention(q, k, v, out);
  if (out[0] != 2) return 1;
  try {
    attn::attention(q, k, q, out);
  } catch (const attn::Error& error) {
    return error.operation() == "attention" ? 0 : 2;
  }
  return 3;
}
