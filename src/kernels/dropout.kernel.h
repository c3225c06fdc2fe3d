// Dropout of elements: y = factor x where the element's random word is at least `threshold`, otherwise 0.
//
// Element n draws word n % 4 of philox(seed, {n / 4 low, n / 4 high, stream low, stream high}) (Salmon et al., SC'11).
// Loops: rows; blocks of columns, for which the ten rounds run with counters in the 64-bit lanes and leave one bit an
// element; then vectors of columns under those bits.
#pragma once

#include "kernels/columns.kernel.h"
#include "kernels/math.kernel.h"

namespace attn::kernels {
namespace {

/// Bit i of 8 goes to bit 4 i.
inline uint64_t spread_by_four(uint64_t x) {
  x = (x | x << 12) & 0x000f000fu;
  x = (x | x << 6) & 0x03030303u;
  return (x | x << 3) & 0x11111111u;
}

/// The bits of elements 64 word .. 64 word + 63: set where the element is kept.
template <class U>
inline uint64_t kept_bits(const DropArgs& args, uint64_t word) {
  using Reg = typename U::Reg;
  constexpr int kLanes = U::W;
  alignas(64) uint64_t lane[kLanes];
  for (int i = 0; i < kLanes; ++i) lane[i] = static_cast<uint64_t>(i);
  const Reg m0 = U::set1(0xD2511F53u), m1 = U::set1(0xCD9E8D57u);
  const Reg threshold = U::set1(args.threshold);
  uint64_t result = 0;
  for (int first = 0; first < 16; first += kLanes) {
    const Reg counter = U::add(U::set1(16 * word + static_cast<uint64_t>(first)), U::load(lane));
    Reg c0 = counter, c1 = U::high32(counter);
    Reg c2 = U::set1(args.stream & 0xffffffffu), c3 = U::set1(args.stream >> 32);
    uint32_t k0 = static_cast<uint32_t>(args.seed), k1 = static_cast<uint32_t>(args.seed >> 32);
    ATTN_UNROLL
    for (int round = 0; round < 10; ++round) {
      const Reg p0 = U::mul32(c0, m0), p1 = U::mul32(c2, m1);
      c0 = U::bit_xor(U::bit_xor(U::high32(p1), c1), U::set1(k0));
      c2 = U::bit_xor(U::bit_xor(U::high32(p0), c3), U::set1(k1));
      c1 = p1;
      c3 = p0;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    const uint64_t kept = spread_by_four(U::at_least(U::low32(c0), threshold)) |
                          spread_by_four(U::at_least(U::low32(c1), threshold)) << 1 |
                          spread_by_four(U::at_least(U::low32(c2), threshold)) << 2 |
                          spread_by_four(U::at_least(U::low32(c3), threshold)) << 3;
    result |= kept << (4 * first);
  }
  return result;
}

template <class V, class U>
void drop(const DropArgs& args) {
  constexpr int64_t kWords = 64, kBlock = 64 * kWords;
  const typename V::Reg factor = constant<V>(args.factor);
  for (int64_t r = 0; r < args.rows; ++r) {
    const ConstRow x = row_of(args.x, r);
    const Row y = row_of(args.y, r);
    for (int64_t first = 0; first < args.columns; first += kBlock) {
      const int64_t end = first + kBlock < args.columns ? first + kBlock : args.columns;
      const uint64_t element = static_cast<uint64_t>(args.first + r * args.index_stride + first);
      const uint64_t word = element / 64, words = (element % 64 + static_cast<uint64_t>(end - first) + 63) / 64;
      uint64_t bits[kWords + 2];  // one for an unaligned start, one that is read but not used
      for (uint64_t i = 0; i < words; ++i) bits[i] = kept_bits<U>(args, word + i);
      bits[words] = 0;
      for_columns<V>(first, end, [&](int64_t j, auto lanes) {
        const uint64_t place = element % 64 + static_cast<uint64_t>(j - first), shift = place % 64;
        const uint64_t low = bits[place / 64] >> shift, high = bits[place / 64 + 1] << 1 << (63 - shift);
        lanes.store(y, j, V::select(V::mask(low | high), V::mul(factor, lanes.load(x, j)), V::zero()));
      });
    }
  }
}

}  // namespace
}  // namespace attn::kernels
