// models: classifies texts, as the text-classification pipeline of transformers does.
//
// ```cpp
// #include "attn/models_classify.h"
// int main(int argc, char** argv) {
//   if (argc < 2) return 0;  // give the folder of a classifier
//   const attn::models::Classifier classifier(argv[1]);
//   const std::vector<std::string> texts = {"A fine film.", "Dull."};
//   for (const auto& found : classifier(texts))
//     if (found.scores[found.label] < 0.5) return 1;
// }
// ```
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/models.h"

#pragma GCC visibility push(default)
namespace attn::models {

struct ClassifyOptions {
  int64_t max_length = 0;   ///< longer texts are truncated; special tokens count; 0 = the context
  double temperature = 1;   ///< divides the logits; positive, and 1 for ProblemType::regression
  int64_t batch_size = 32;  ///< texts in one forward, padded to the longest of them
};

struct Classification {
  int64_t label = 0;                ///< the class with the largest score, the first of equals
  std::vector<double> scores = {};  ///< [classes]: probabilities, or the numbers of ProblemType::regression
};

/// ln of the softmax of logits [classes].
std::vector<double> log_softmax(std::vector<double> logits);

/// A model with a class for each text.
class Classifier {
 public:
  /// Opens a folder. Throws Error as open_with_tokenizer(), and for a model that does not classify whole texts.
  explicit Classifier(const std::string& folder, const OpenOptions& how = {});
  /// Throws Error for a model that does not classify whole texts, and for a model without a tokenizer.
  explicit Classifier(Loaded loaded);

  ClassifyOptions options;
  const Loaded& loaded() const { return loaded_; }
  /// The names of the classes. If several classes have one name, their numbers follow it: "good (2)".
  const std::vector<std::string>& labels() const { return labels_; }

  /// One result for each text. Throws Error for options out of range, and as Tokenizer::encode().
  std::vector<Classification> operator()(std::span<const std::string> texts) const;

  // The steps of a call, for callers that form batches themselves.
  /// The tokens of a text, or of a text and a second one that is not empty, truncated to max_length.
  text::Encoding encode(std::string_view text, std::string_view pair = {}) const;
  /// The logits [texts, classes] of one batch, whose texts are cut at max_length.
  std::vector<std::vector<double>> logits(std::span<const text::Encoding> texts) const;
  Classification classify(std::vector<double> logits) const;

 private:
  void check() const;
  int64_t max_length() const { return options.max_length ? options.max_length : loaded_.model->config().context; }
  Loaded loaded_;
  std::vector<std::string> labels_;
  std::shared_ptr<autograd::Recycler> memory_ = Tape().memory();
};

/// A word of a text with the most probable of its classes.
struct ClassifiedWord {
  std::string word = {};
  int64_t label = 0;
  double probability = 0;
};

/// A model with a class for each token, which gives each word the class of its first token.
class WordClassifier {
 public:
  /// Opens a folder. Throws Error as open_with_tokenizer(), and for a model that does not classify tokens.
  explicit WordClassifier(const std::string& folder, const OpenOptions& how = {});
  explicit WordClassifier(Loaded loaded);

  int64_t max_length = 0;  ///< tokens of a text that are read; 0 = the context
  const Loaded& loaded() const { return loaded_; }
  const std::vector<std::string>& labels() const { return loaded_.labels; }
  /// The words of each text with their classes; words whose first token is beyond max_length are left out, and a text
  /// may have no words. Throws Error as text::encode_words().
  std::vector<std::vector<ClassifiedWord>> operator()(std::span<const std::vector<std::string>> texts) const;

 private:
  Loaded loaded_;
  std::shared_ptr<autograd::Recycler> memory_ = Tape().memory();
};
/// The words of a text: what is between white space.
std::vector<std::string> words_of_text(std::string_view text);

}  // namespace attn::models
#pragma GCC visibility pop
