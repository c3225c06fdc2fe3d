// train: vocabularies that are learnt from words and how often they occur.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace attn::text {

constexpr size_t kLongestToken = 64;  // bytes of a token that is learnt

/// Words with their counts, in order of their bytes.
using WordCounts = std::vector<std::pair<std::string, int64_t>>;

struct LearntMerges {
  std::vector<std::string> tokens;
  std::vector<std::pair<std::string, std::string>> merges;
};
/// Begins with the tokens `alphabet`, as words are spelt in them: each character is one, those after the first of a
/// word with `prefix` before; what is not among them is passed over. Merges the neighbours that occur the most, those
/// with smaller ids of two that are even, until there are `size` tokens, or none occurs `min_count` times.
LearntMerges learn_merges(const WordCounts& words, std::vector<std::string> alphabet, const std::string& prefix,
                          int64_t size, int64_t min_count);

/// Tokens and the logarithms of their probabilities: the `characters`, and of frequent parts of words those whose lack
/// would cost the most, by expectation and maximisation; `size` in all, if there are so many.
std::vector<std::pair<std::string, double>> learn_pieces(const WordCounts& words,
                                                         const std::vector<std::string>& characters, int64_t size);

}  // namespace attn::text
