// Random numbers that are a function of a counter alone, so that any part of a stream can be recomputed anywhere.
//
// Source: Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11. The tests hold philox()
// against the known answers published with it.
#include <cmath>
#include <numbers>

#include "attn/core.h"

namespace attn {

std::array<uint32_t, 4> philox(uint64_t key, const std::array<uint32_t, 4>& counter) {
  auto [x0, x1, x2, x3] = counter;
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xd2511f53} * x0;
    const uint64_t product1 = uint64_t{0xcd9e8d57} * x2;
    x0 = static_cast<uint32_t>(product1 >> 32) ^ x1 ^ key0;
    x1 = static_cast<uint32_t>(product1);
    x2 = static_cast<uint32_t>(product0 >> 32) ^ x3 ^ key1;
    x3 = static_cast<uint32_t>(product0);
    key0 += 0x9e3779b9;  // the golden ratio and sqrt(3) - 1, as in the paper
    key1 += 0xbb67ae85;
  }
  return {x0, x1, x2, x3};
}

uint32_t Random::next() {
  if (used_ == 4) {
    words_ = philox(key_, {static_cast<uint32_t>(block_), static_cast<uint32_t>(block_ >> 32),
                           static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)});
    ++block_;
    used_ = 0;
  }
  return words_[static_cast<size_t>(used_++)];
}

double Random::uniform() {
  const uint64_t high = next();
  const uint64_t low = next();
  return static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
}

double Random::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));  // 1 - uniform() is never 0
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

int64_t Random::below(int64_t bound) {
  if (bound <= 0) throw Error("Random::below", {"the bound is " + std::to_string(bound) + ", must be positive"});
  const uint64_t range = static_cast<uint64_t>(bound);
  const uint64_t whole =
      UINT64_MAX - UINT64_MAX % range;  // a multiple of range: what lies above would favour small values
  for (;;) {
    const uint64_t high = next();
    const uint64_t value = high << 32 | next();
    if (value < whole) return static_cast<int64_t>(value % range);
  }
}

}  // namespace attn
