// Dropout of elements: y = factor x where the element's random word is at least `threshold`, otherwise 0.
//
// Element n draws word n % 4 of philox(seed, {n / 4 low, n / 4 high, stream low, stream high}) (Salmon et al., SC'11).
// Loops: rows; blocks of columns, for which the ten rounds run with counters in the 64-bit lanes and leave one bit an
// element; then vectors of columns under those bits.
#pragma once

#include "kernels/columns.kernel.h"
#include "kernels/math.kernel.h"
#include "kernels/philox.kernel.h"

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
  const Reg threshold = U::set1(args.threshold);
  uint64_t result = 0;
  for (int first = 0; first < 16; first += kLanes) {
    const Reg counter = U::add(U::set1(16 * word + static_cast<uint64_t>(first)), U::load(lane));
    Reg words[4] = {counter, U::high32(counter), U::set1(args.stream & 0xffffffffu), U::set1(args.stream >> 32)};
    philox<U>(args.seed, words);
    ATTN_UNROLL
    for (int n = 0; n < 4; ++n) result |= spread_by_four(U::at_least(U::low32(words[n]), threshold)) << (4 * first + n);
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
