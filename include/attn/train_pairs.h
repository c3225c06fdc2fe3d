// train: pairs of texts, for encoder-decoders that learn to write one text from another.
//
// ```cpp
// #include "attn/train_pairs.h"
// using namespace attn;
// int main() {
//   const std::vector<train::Pair> pairs = {{{1, 2}, {3}}, {{2, 1}, {4, 5}}};  // token ids of source and target
//   const train::PairData data(pairs, pairs, 9, 16, 2, 1);  // 9 begins and ends every target
//   return data.training(0).sequences == 2 ? 0 : 1;
// }
// ```
#pragma once

#include <optional>

#include "attn/train.h"

#pragma GCC visibility push(default)
namespace attn::train {

/// A row of a file of pairs.
struct PairText {
  std::string source = {}, target = {};
  int64_t line = 0;  ///< of the row's begin, from 1
};
/// Reads pairs: .csv as in RFC 4180; .jsonl with "source" and "target" in each line; any other name, and "-" for the
/// standard input, as lines of source, tab, target. The first row may name the columns. Throws Error with the file and
/// the line.
std::vector<PairText> read_pairs(const std::string& path);

struct Pair {
  std::vector<int64_t> source = {}, target = {};  ///< at least one token in each
  bool truncated = false;                         ///< one of the texts has more than max_length; never read
};
/// Encodes both sides of each row by their tokenizers, with special tokens but for `end` at the end of a target, which
/// PairData adds. Texts longer than max_length are truncated; 0 = no truncation. Throws Error with the line of a text
/// without tokens; `path` is the file name that errors show.
std::vector<Pair> encode_pairs(std::span<const PairText> rows, const text::Tokenizer& source,
                               const text::Tokenizer& target, const std::string& path, int64_t end = -1,
                               int64_t max_length = 0);

/// Pairs for a model with an encoder, shuffled and batched as by LabelledDataset. The decoder reads `start`, or without
/// it `end`, and the target, and learns to write the target and `end` (Sutskever et al. 2014, arXiv:1409.3215). Texts
/// are truncated to `context`.
class PairData : public RowsDataset {
 public:
  /// Throws Error for a side without tokens and for a negative token.
  PairData(std::vector<Pair> training, std::vector<Pair> validation, int64_t end, int64_t context, int64_t batch,
           uint64_t seed, std::optional<int64_t> start = {});
  std::string describe() const override;

 private:
  int64_t training_rows() const override { return std::ssize(training_); }
  int64_t validation_rows() const override { return std::ssize(validation_); }
  int64_t length_of(int64_t row) const override;
  models::Batch batch_of(bool training, std::span<const int64_t> rows) const override;
  std::vector<Pair> training_, validation_;
  int64_t end_, start_, context_;
};

/// The edit distance (Levenshtein 1966): the fewest insertions, deletions and substitutions that turn one list into the
/// other. Divided by the length of the reference it is a word, phoneme or character error rate.
int64_t edit_distance(std::span<const int64_t> a, std::span<const int64_t> b);

}  // namespace attn::train
#pragma GCC visibility pop
