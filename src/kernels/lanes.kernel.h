// Lane masks: one 64-bit word a key, bit r for row r of the panel.
//
//   dropout      bit = philox(seed, {j/4, i, b, h | high bits})[j % 4] >= threshold     (Salmon et al., SC'11)
//   mask_lanes   bit = (row_r[key] != 0), from the bytes of a boolean mask
// Loops: dropout runs the ten rounds with rows in lanes, 4 keys a call; mask_lanes gathers 64 keys of every row as one
// word and transposes the 64 x 64 bits.
// Requires: at most 64 rows; nothing is read beyond a row's keys.
#pragma once

#include "kernels/philox.kernel.h"

namespace attn::kernels {
namespace {

/// Dropout: bit r of keep[key] is set where philox(seed, {j/4, i, b, h | high bits})[j % 4] >= threshold.
template <class U>
void dropout(const DropoutArgs& args) {
  alignas(64) uint64_t query[kMaxWidth], head[kMaxWidth];
  for (int lane = 0; lane < args.width; ++lane) {
    query[lane] = static_cast<uint64_t>(args.query[lane]);
    head[lane] = static_cast<uint64_t>(args.head[lane]) << 16 | (query[lane] >> 32 & 0xff) << 8;
  }
  for (int lane = args.width; lane % U::W != 0; ++lane) query[lane] = head[lane] = 0;
  const typename U::Reg threshold = U::set1(args.threshold);
  const int64_t end = args.first_key + args.count;
  for (int64_t key = 0; key < args.count; ++key) args.keep[key] = 0;
  for (int64_t group = args.first_key / 4; group * 4 < end; ++group) {
    for (int lane = 0; lane < args.width; lane += U::W) {
      typename U::Reg words[4] = {U::set1(static_cast<uint64_t>(group)), U::load(query + lane),
                                  U::set1(static_cast<uint64_t>(args.batch)),
                                  U::bit_xor(U::load(head + lane), U::set1(static_cast<uint64_t>(group) >> 32 & 0xff))};
      philox<U>(args.seed, words);
      for (int word = 0; word < 4; ++word) {
        const int64_t key = group * 4 + word - args.first_key;
        if (key < 0 || key >= args.count) continue;
        args.keep[key] |= U::at_least(U::low32(words[word]), threshold) << lane;
      }
    }
  }
}

/// Transposes a 64 x 64 bit matrix: bit j of word i <-> bit i of word j (Warren, Hacker's Delight, 7-3).
inline void transpose_bits(uint64_t (&a)[64]) {
  uint64_t half = 0x00000000ffffffffu;
  for (int width = 32; width != 0; width /= 2, half ^= half << width) {
    for (int k = 0; k < 64; k = ((k | width) + 1) & ~width) {
      const uint64_t swap = ((a[k] >> width) ^ a[k | width]) & half;
      a[k] ^= swap << width;
      a[k | width] ^= swap;
    }
  }
}

template <class U>
void mask_lanes(const MaskArgs& args) {
  uint64_t bits[64];
  for (int r = 0; r < args.rows; ++r) {
    const uint8_t* bytes = static_cast<const uint8_t*>(args.row[r]);
    if (args.keys == 64) {
      bits[r] = U::nonzero64(bytes);
    } else {
      bits[r] = 0;
      for (int64_t j = 0; j < args.keys; ++j) bits[r] |= static_cast<uint64_t>(bytes[j] != 0) << j;
    }
  }
  for (int r = args.rows; r < 64; ++r) bits[r] = 0;
  transpose_bits(bits);
  for (int64_t j = 0; j < args.keys; ++j) args.allowed[j] = bits[j];
}

}  // namespace
}  // namespace attn::kernels
