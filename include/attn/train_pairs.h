// train: pairs of texts, for models that answer one text with another.
#pragma once

#include "attn/train.h"

#pragma GCC visibility push(default)
namespace attn::train {

/// A row of a file of pairs.
struct PairText {
  std::string source, target;
  int64_t line = 0;  ///< where the row begins, from 1
};
/// .csv as in RFC 4180; .jsonl, an object a line with "source" and "target"; any other name, or "-" for the standard
/// input: lines of source, tab, target. The first row may name the columns so. Throws Error with the file and the line.
std::vector<PairText> read_pairs(const std::string& path);

struct Pair {
  std::vector<int64_t> source, target;  ///< at least one token in each
};
/// Rows as tokens, each side by its own tokenizer. Throws Error with the line of what has no token; `path` is the name
/// that errors use.
std::vector<Pair> encode_pairs(std::span<const PairText> rows, const text::Tokenizer& source,
                               const text::Tokenizer& target, const std::string& path);

/// Pairs for a model with an encoder, in the order of LabelledData's sentences. The decoder is shown `end` and then the
/// target, and is to say the target and then `end` (Sutskever et al. 2014, arXiv:1409.3215). What is longer than the
/// context is cut off.
class PairData : public Data {
 public:
  /// Throws Error for a side without tokens and for a negative token.
  PairData(std::vector<Pair> training, std::vector<Pair> validation, int64_t end, int64_t context, int64_t batch,
           uint64_t seed);
  models::Batch training(uint64_t number) const override;
  models::Batch validation(int64_t number) const override;
  int64_t validation_batches() const override;
  int64_t batches_per_epoch() const override;
  std::string describe() const override;

 private:
  models::Batch padded(const std::vector<Pair>& from, std::span<const int64_t> which) const;
  std::vector<Pair> training_, validation_;
  int64_t end_, context_, batch_;
  uint64_t seed_;
};

/// The fewest tokens that must be put in, taken out or changed to make one list of the other (Levenshtein 1966). Over
/// the length of what is right this is an error rate, of words, phonemes or characters.
int64_t edit_distance(std::span<const int64_t> a, std::span<const int64_t> b);

}  // namespace attn::train
#pragma GCC visibility pop
