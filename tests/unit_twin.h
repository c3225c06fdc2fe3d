// A twin in C++ of the tile instructions that kernels/unit_amx.h names, for tests on processors without them.
//
// A product is what the hardware does, found by comparing millions of results: for each element of C
//   even = odd = 0;  for p = 0 .. 15:  even = fma(A[m][2p], B[p][2n], even);  odd = fma(A[m][2p+1], B[p][2n+1], odd)
//   C[m][n] += even + odd
// Subnormal numbers, operands and results, count as 0 with their sign, whatever the processor is told.
#pragma once

#include <stdint.h>

namespace attn::kernels {
namespace {

struct TwinTile {
  alignas(64) char bytes[16][64];
};

struct TwinUnit {
  static TwinTile& tile(int t) {
    static thread_local TwinTile tiles[8];
    return tiles[t];
  }
  /// Tile instructions outside of enter() and leave() are a mistake that the hardware answers with a signal.
  static bool& configured() {
    static thread_local bool yes = false;
    return yes;
  }
  static void check() {
    if (!configured()) __builtin_trap();
  }
  static void configure(void* before) {
    *static_cast<bool*>(before) = configured();
    configured() = true;
    for (int t = 0; t < 8; ++t) __builtin_memset(&tile(t), 0xff, sizeof(TwinTile));  // NaN
  }
  static void restore(const void* before) { configured() = *static_cast<const bool*>(before); }

  static void fence() {}
  template <int kTile>
  static void zero() {
    check();
    __builtin_memset(&tile(kTile), 0, sizeof(TwinTile));
  }
  template <int kTile>
  static void load(const void* p, int64_t stride) {
    check();
    for (int r = 0; r < 16; ++r) __builtin_memcpy(tile(kTile).bytes[r], static_cast<const char*>(p) + r * stride, 64);
  }
  template <int kTile>
  static void stream(const void* p, int64_t stride) {
    load<kTile>(p, stride);
  }
  template <int kTile>
  static void store(void* p, int64_t stride) {
    check();
    for (int r = 0; r < 16; ++r) __builtin_memcpy(static_cast<char*>(p) + r * stride, tile(kTile).bytes[r], 64);
  }

  static float number(uint32_t bits) {
    bits = (bits & 0x7f800000) != 0 ? bits : bits & 0x80000000;
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
  }
  static float flushed(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return number(bits);
  }
  template <int kSum, int kA, int kB>
  static void multiply() {
    check();
    uint32_t a[16][16], b[16][16];  // pairs
    float c[16][16];
    __builtin_memcpy(a, &tile(kA), sizeof a);
    __builtin_memcpy(b, &tile(kB), sizeof b);
    __builtin_memcpy(c, &tile(kSum), sizeof c);
    for (int m = 0; m < 16; ++m) {
      float even[16] = {}, odd[16] = {};
      for (int p = 0; p < 16; ++p) {
        const float x = number(a[m][p] << 16), y = number(a[m][p] & 0xffff0000);
        for (int n = 0; n < 16; ++n) {
          even[n] = flushed(__builtin_fmaf(x, number(b[p][n] << 16), even[n]));
          odd[n] = flushed(__builtin_fmaf(y, number(b[p][n] & 0xffff0000), odd[n]));
        }
      }
      for (int n = 0; n < 16; ++n) c[m][n] = flushed(flushed(c[m][n]) + flushed(even[n] + odd[n]));
    }
    __builtin_memcpy(&tile(kSum), c, sizeof c);
  }
};

}  // namespace
}  // namespace attn::kernels
