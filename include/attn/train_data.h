// train: datasets, which give a Trainer its batches, and the files of labelled texts that they are made from.
//
// ```cpp
// #include "attn/train_data.h"
// using namespace attn;
// int main() {
//   const std::vector<train::Labelled> rows = {{{1, 2, 3}, 0}, {{4, 5}, 1}};  // token ids and a class
//   const train::LabelledDataset data(rows, rows, 16, 2, 1, {.packed = true});  // context, batch, seed
//   return data.training(0).length == 5 ? 0 : 1;
// }
// ```
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/models.h"

#pragma GCC visibility push(default)
namespace attn::train {

/// The source of batches. The same number always gives the same batch. The classes of this header throw Error for the
/// number of a validation batch that does not exist.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual models::Batch training(uint64_t number) const = 0;
  virtual models::Batch validation(int64_t number) const = 0;
  virtual int64_t validation_batches() const = 0;
  /// The number of batches that contain all training data once.
  virtual int64_t batches_per_epoch() const = 0;
  /// One line that describes the data.
  virtual std::string describe() const = 0;
};

/// Rows in batches: shuffled every epoch, each batch of rows of similar length.
class RowsDataset : public Dataset {
 public:
  models::Batch training(uint64_t number) const override;
  models::Batch validation(int64_t number) const override;
  int64_t validation_batches() const override;
  int64_t batches_per_epoch() const override;

 protected:
  RowsDataset(int64_t batch, uint64_t seed) : batch_(batch), seed_(seed) {}
  virtual int64_t training_rows() const = 0;
  virtual int64_t validation_rows() const = 0;
  /// The tokens of a training row.
  virtual int64_t length_of(int64_t row) const = 0;
  /// These rows of the training data, or of the validation data.
  virtual models::Batch batch_of(bool training, std::span<const int64_t> rows) const = 0;
  uint64_t seed() const { return seed_; }

 private:
  int64_t batch_;
  uint64_t seed_;
};

/// Crops of a text: `batch` sequences of `context` tokens at random positions, with the next tokens as targets. The
/// last `validation_tokens` tokens (0 = a tenth) are for validation, in at most `validation_batches` evenly spread
/// crops.
class TextDataset : public Dataset {
 public:
  /// Throws Error for a text too short for one crop of training and one of validation, and for a negative token.
  TextDataset(std::vector<int64_t> tokens, int64_t context, int64_t batch, uint64_t seed,
              int64_t validation_batches = 20, int64_t validation_tokens = 0);
  models::Batch training(uint64_t number) const override;
  models::Batch validation(int64_t number) const override;
  int64_t validation_batches() const override;
  int64_t batches_per_epoch() const override;
  std::string describe() const override;

 private:
  models::Batch crops(std::span<const int64_t> first) const;
  std::vector<int64_t> tokens_;
  int64_t context_, batch_, validation_begin_, validation_batches_;
  uint64_t seed_;
};

/// A crop of a text in which some tokens are masked and have to be predicted (Devlin et al. 2018, arXiv:1810.04805).
struct MaskingOptions {
  int64_t mask_id = 0;     ///< the token that takes the place of masked ones
  int64_t vocab_size = 0;  ///< random tokens are below it
  /// The share of tokens to predict, at least one a crop. 80 % of them become mask_id, 10 % a random token, 10 % stay.
  double share = 0.15;
  std::vector<int64_t> before = {}, after = {};  ///< special tokens around each crop, never masked
};

/// Crops as those of TextDataset, for masked language models. Each training batch masks other tokens.
class MaskedTextDataset : public Dataset {
 public:
  /// `context` counts the special tokens. Throws Error as TextDataset does, and for options out of range.
  MaskedTextDataset(std::vector<int64_t> tokens, const MaskingOptions& masking, int64_t context, int64_t batch,
                    uint64_t seed, int64_t validation_batches = 20, int64_t validation_tokens = 0);
  models::Batch training(uint64_t number) const override;
  models::Batch validation(int64_t number) const override;
  int64_t validation_batches() const override { return crops_.validation_batches(); }
  int64_t batches_per_epoch() const override { return crops_.batches_per_epoch(); }
  std::string describe() const override { return crops_.describe(); }

 private:
  models::Batch masked(const models::Batch& crops, uint64_t seed, uint64_t number) const;
  MaskingOptions masking_;
  TextDataset crops_;
  uint64_t seed_;
};

/// A text, or a pair of texts as one sequence, with what is to be learned: a class, a number, or a class of each token.
struct Labelled {
  std::vector<int64_t> tokens = {};  ///< [L], at least one
  int64_t label = 0;
  std::vector<int64_t> token_type_ids = {};  ///< [L]; empty = 0
  std::optional<double> value = {};          ///< in place of `label`: of a regression
  std::vector<int64_t> token_labels = {};    ///< [L] in place of `label`; ops::kIgnoreIndex is ignored
  bool truncated = false;                    ///< the text has more than EncodingOptions::max_length; never read
};

/// Rows one after the other as a packed batch, with their targets or values.
models::Batch packed_batch(std::span<const Labelled> rows);

struct LabelledOptions {
  /// The share of tokens that training replaces by token 1, <unk>, differently in every epoch (Iyyer et al. 2015).
  double word_dropout = 0;
  bool packed = false;                     ///< batches are packed: there is no padding
  std::vector<double> class_weights = {};  ///< [classes], >= 0: of the losses; empty = 1
};

/// Sentences with labels: shuffled every epoch, batched by similar length, and packed or padded with token 0. All rows
/// have a class, all a number, or all classes of their tokens.
class LabelledDataset : public RowsDataset {
 public:
  /// Longer rows are truncated to `context` tokens. Throws Error for a sentence without tokens, for a negative token or
  /// label, for rows of several kinds, and for a class without a weight.
  LabelledDataset(std::vector<Labelled> training, std::vector<Labelled> validation, int64_t context, int64_t batch,
                  uint64_t seed, const LabelledOptions& options = {});
  models::Batch training(uint64_t number) const override;
  std::string describe() const override;

 private:
  int64_t training_rows() const override { return std::ssize(training_); }
  int64_t validation_rows() const override { return std::ssize(validation_); }
  int64_t length_of(int64_t row) const override;
  models::Batch batch_of(bool training, std::span<const int64_t> rows) const override;
  std::vector<Labelled> training_, validation_;
  int64_t context_;
  LabelledOptions options_;
};

// ------------------------------------------------------------------------------------------------------------- files

/// A row of a file of labelled sentences.
struct LabelledText {
  std::string text = {}, label = {};
  int64_t line = 0;       ///< of the row's begin, from 1
  std::string pair = {};  ///< the second text; empty = none
};
/// True for the names that end in .tsv, .csv or .jsonl.
bool is_labelled(std::string_view path);
/// Reads labelled sentences: .csv as in RFC 4180; .jsonl with an object in each line; any other name, and "-" for the
/// standard input, as lines of text, tab, label. The first row may name columns: "text" ("sentence", "sentence1"),
/// "label" ("score") and, for pairs, "text_pair" ("sentence2"); other columns are then ignored. In .jsonl a label is a
/// text or a whole number, with `numbers` any number. Throws Error with the file and the line.
std::vector<LabelledText> read_labelled(const std::string& path, bool numbers = false);

/// The classes of the labels: whole numbers sorted by value, others by their bytes. If all labels are whole numbers
/// below `least` or below the number of different labels, every number below that limit is a class.
std::vector<std::string> classes_of(std::span<const LabelledText> rows, int64_t least = 0);

/// What encode_labelled() and encode_labelled_words() need of a model.
struct EncodingOptions {
  int64_t max_length = 0;   ///< longer texts are truncated, special tokens stay; 0 = no truncation
  bool with_types = false;  ///< the model reads token type ids
  std::string source = {};  ///< the name of the file that errors show
};
/// Encodes rows; labels become indices into `classes`. Throws Error with the line of the first label that is not in
/// `classes` and of a text without tokens.
std::vector<Labelled> encode_labelled(std::span<const LabelledText> rows, const text::Tokenizer& tokenizer,
                                      std::span<const std::string> classes, const EncodingOptions& options = {});
/// The same for labels that are numbers. Throws Error with the line of a label that is no finite number.
std::vector<Labelled> encode_numbers(std::span<const LabelledText> rows, const text::Tokenizer& tokenizer,
                                     const EncodingOptions& options = {});

/// A text whose words have labels.
struct LabelledWords {
  std::vector<std::string> words = {}, labels = {};  ///< of one length
  int64_t line = 0;                                  ///< of the first word, from 1
};
/// Reads words with labels: .jsonl with {"tokens": [...], "tags": [...]} in each line; .conllu, whose UPOS are the
/// labels; any other name as CoNLL-2003 has it: a word and its label in each line, apart by a tab or a space, other
/// columns between them, and an empty line after each text. Throws Error with the file and the line.
std::vector<LabelledWords> read_labelled_words(const std::string& path);
/// The labels of all words, sorted; "O" is the first.
std::vector<std::string> classes_of(std::span<const LabelledWords> rows);
/// Encodes texts word by word: the first token of each word has the word's label, the others none. Throws Error as
/// encode_labelled().
std::vector<Labelled> encode_labelled_words(std::span<const LabelledWords> rows, const text::Tokenizer& tokenizer,
                                            std::span<const std::string> classes, const EncodingOptions& options = {});

}  // namespace attn::train
#pragma GCC visibility pop
