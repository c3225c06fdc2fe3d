// What products are timed beside: memory that no cache holds, and the peak of the unit that multiplies.
#pragma once

#include <algorithm>

#include "attn/core.h"
#include "attn/peaks.h"

namespace bench {

constexpr int64_t kColdBytes = int64_t{1} << 30;  // four times the largest cache that was measured

/// Numbers between -1 and 1 of float32, bfloat16 or float16, all over the memory.
inline void fill(const attn::Buffer& memory, attn::DType dtype) {
  uint32_t state = 1;
  for (int64_t n = 0; n < memory.bytes() / attn::size_of(dtype); ++n) {
    state = state * 1664525u + 1013904223u;
    const float x = static_cast<float>(state >> 20) * 0x1p-11f - 1;
    if (dtype == attn::DType::float32) static_cast<float*>(memory.data())[n] = x;
    else if (dtype == attn::DType::bfloat16) static_cast<attn::bfloat16*>(memory.data())[n] = attn::bfloat16(x);
    else static_cast<attn::float16*>(memory.data())[n] = attn::float16(x);
  }
}

/// Plain reads of memory that no product touches, so that no cache holds it.
class Reading {
 public:
  Reading() : memory_(kColdBytes) { fill(memory_, attn::DType::float32); }
  /// GB/s of the next so many bytes.
  double sample(int64_t bytes) {
    if (at_ + bytes > memory_.bytes()) at_ = 0;
    const char* begin = static_cast<const char*>(memory_.data()) + at_;
    at_ += bytes / 64 * 64;
    return attn::peaks::measure_read(begin, bytes);
  }

 private:
  attn::Buffer memory_;
  int64_t at_ = 0;
};

/// GFLOP/s of the unit that multiplies: the best of some samples.
inline double peak_of(attn::DType dtype) {
  double best = 0;
  for (int sample = 0; sample < 5; ++sample) best = std::max(best, attn::peaks::measure_products(dtype));
  return best;
}

}  // namespace bench
