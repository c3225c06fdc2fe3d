// train: learns vocabularies from words and their counts.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace attn::text {

constexpr size_t kLongestToken = 64;  // bytes of a learned token

/// Words with their counts, in the order of their bytes.
using WordCounts = std::vector<std::pair<std::string, int64_t>>;

struct LearnedMerges {
  std::vector<std::string> tokens;
  std::vector<std::pair<std::string, std::string>> merges;
};
/// Byte-pair encoding. A word is at first one token of `alphabet` per character; characters after the first have
/// `prefix` before them, and characters that are not in the alphabet are skipped. Merges the most frequent pair of
/// adjacent tokens, or of equally frequent pairs the one with the smaller ids, until there are `size` tokens or no pair
/// occurs `min_count` times.
LearnedMerges learn_merges(const WordCounts& words, std::vector<std::string> alphabet, const std::string& prefix,
                           int64_t size, int64_t min_count);

/// The unigram algorithm: expectation maximisation over frequent parts of words, pruned to the parts whose removal
/// would lower the likelihood most. Returns tokens with the logarithms of their probabilities: all `characters`, and
/// parts of words, at most `size` in all.
std::vector<std::pair<std::string, double>> learn_pieces(const WordCounts& words,
                                                         const std::vector<std::string>& characters, int64_t size);

}  // namespace attn::text
