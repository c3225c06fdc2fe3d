// Something of each library that attn::models is linked with, and of attn::attn under it.
#include <attn/attn.h>

int main() {
  attn::Tensor<float, 2> a({2, 3}), b({3, 2}), c({2, 2});
  for (int64_t n = 0; n < a.count(); ++n) a[n] = b[n] = 1;
  attn::ops::matmul(a, b, c);
  if (c[3] != 3) return 1;
  attn::ops::scale(c, 2, c);  // element kernels, which attn::attn owns
  if (c[3] != 6) return 2;
  if (attn::text::characters_of("\u03b1\u03b2")->vocab_size() != 2) return 3;
  if (attn::io::crc32("123456789") != 0xcbf43926) return 4;
  try {
    attn::ops::matmul(a, a, c);
  } catch (const attn::Error&) {
    return 0;
  }
  return 5;
}
