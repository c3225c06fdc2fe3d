// Philox 4x32-10 (Salmon et al., SC'11) in vectors: lane n turns the counter c[0..3] of its own into four random words.
//
//   round: (c0, c1, c2, c3) <- (high(m1 c2) ^ c1 ^ k0, low(m1 c2), high(m0 c0) ^ c3 ^ k1, low(m0 c0));  k0, k1 += Weyl
// Words are in 64-bit lanes, for products of 64 bits; bits above 32 are rubbish after a round, and no round reads them.
#pragma once

#include "kernels/portable.h"

namespace attn::kernels {
namespace {

template <class U>
inline void philox(uint64_t seed, typename U::Reg (&c)[4]) {
  using Reg = typename U::Reg;
  const Reg m0 = U::set1(0xD2511F53u), m1 = U::set1(0xCD9E8D57u);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  ATTN_UNROLL
  for (int round = 0; round < 10; ++round) {
    const Reg p0 = U::mul32(c[0], m0), p1 = U::mul32(c[2], m1);
    c[0] = U::bit_xor(U::bit_xor(U::high32(p1), c[1]), U::set1(k0));
    c[2] = U::bit_xor(U::bit_xor(U::high32(p0), c[3]), U::set1(k1));
    c[1] = p1;
    c[3] = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

}  // namespace
}  // namespace attn::kernels
