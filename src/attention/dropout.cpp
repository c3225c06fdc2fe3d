// dropout: which weights survive, as a function of (seed, b, h, i, j) alone, so that any tiling, any number of threads
// and the backward pass replay the same choice.
#include <cmath>

#include "attn/attention.h"
#include "core/checker.h"

namespace attn {

bool dropout_keeps(uint64_t seed, double probability, int64_t b, int64_t h, int64_t i, int64_t j) {
  Checker checker("dropout_keeps");
  checker.require(probability >= 0 && probability < 1,
                  [&] { return "the probability is " + std::to_string(probability) + ", must be in [0, 1)"; });
  checker.require(b >= 0 && h >= 0 && i >= 0 && j >= 0, [&] {
    return "the index [b, h, i, j] is " + to_string(Shape<4>{b, h, i, j}) + ", must not be negative";
  });
  checker.done();
  // Four neighbouring keys share one philox call. The last counter word holds the head and the bits of i and j / 4
  // beyond 32, so that no two weights share a word below 65,536 heads and 2^40 queries or keys.
  const int64_t quad = j / 4;
  const uint32_t high_bits = static_cast<uint32_t>((i >> 32 & 0xff) << 8 | (quad >> 32 & 0xff));
  const std::array<uint32_t, 4> words =
      philox(seed, {static_cast<uint32_t>(quad), static_cast<uint32_t>(i), static_cast<uint32_t>(b),
                    static_cast<uint32_t>(h) << 16 | high_bits});
  const uint32_t threshold = static_cast<uint32_t>(std::floor(probability * 0x1p32));
  return words[j % 4] >= threshold;
}

}  // namespace attn
