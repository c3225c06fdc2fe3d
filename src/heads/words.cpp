#include "heads/words.h"

#include <string>

namespace attn::heads {

std::vector<int64_t> tokens_of_words(Checker& checker, int64_t words, std::span<const int64_t> word_of, int64_t n) {
  std::vector<int64_t> tokens(static_cast<size_t>(words));
  checker.require(static_cast<int64_t>(word_of.size()) == n, [&] {
    return "word_of has " + std::to_string(word_of.size()) + " elements, must have one for each of " +
           std::to_string(n) + " tokens";
  });
  checker.done();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t word = word_of[static_cast<size_t>(i)];
    if (!checker.require(word >= -1 && word < words, [&] {
          return "word_of[" + std::to_string(i) + "] is " + std::to_string(word) + ", must be in [-1, " +
                 std::to_string(words) + ")";
        }))
      checker.done();
    if (word >= 0) ++tokens[static_cast<size_t>(word)];
  }
  for (int64_t word = 0; word < words; ++word)
    checker.require(tokens[static_cast<size_t>(word)] > 0,
                    [&] { return "word " + std::to_string(word) + " has no token"; });
  return tokens;
}

std::vector<double> word_weights(const RecordedAttention& layer, int64_t words, std::span<const int64_t> word_of,
                                 const std::vector<int64_t>& tokens) {
  const int64_t H = layer.q.size[1], n = layer.q.size[2];
  std::vector<double> weights(static_cast<size_t>(H * words * words));
  for_each_band(layer, [&](int64_t first, int64_t count, const Array& band) {
    for (int64_t h = 0; h < H; ++h)
      for (int64_t row = 0; row < count; ++row) {
        const int64_t a = word_of[static_cast<size_t>(first + row)];
        if (a < 0) continue;
        double* to = weights.data() + (h * words + a) * words;
        for (int64_t j = 0; j < n; ++j)
          if (const int64_t b = word_of[static_cast<size_t>(j)]; b >= 0)
            to[b] += band.number((h * count + row) * n + j) / static_cast<double>(tokens[static_cast<size_t>(a)]);
      }
  });
  return weights;
}

}  // namespace attn::heads
