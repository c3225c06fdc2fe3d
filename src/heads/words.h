// Weights between words, whose tokens are some of a text's.
#pragma once

#include "heads/layers.h"

namespace attn::heads {

/// How many tokens each word has; reasons where word_of [n] is not of n tokens, names a word that is not there, or
/// leaves one without a token.
std::vector<int64_t> tokens_of_words(Checker& checker, int64_t words, std::span<const int64_t> word_of, int64_t n);

/// Of every head of a layer of one text: [H, words, words], the sum over the tokens of the word that is looked at, the
/// mean over those of the word that looks.
std::vector<double> word_weights(const RecordedAttention& layer, int64_t words, std::span<const int64_t> word_of,
                                 const std::vector<int64_t>& tokens);

/// The other word of largest weight, at(word), the first of equals; -1 where all are 0.
template <class Weight>
int64_t largest_of(int64_t words, int64_t own, const Weight& at) {
  int64_t best = -1;
  double weight = 0;
  for (int64_t word = 0; word < words; ++word)
    if (word != own && at(word) > weight) weight = at(best = word);
  return best;
}

}  // namespace attn::heads
