// models: texts as classes.
//
//   const attn::models::Classifier classifier("sst2-bert");   // a folder of the Hugging Face hub, or one of attn train
//   const std::vector<std::string> texts = {"A fine film.", "Dull."};
//   for (const auto& found : classifier(texts))
//     std::printf("%s %.3f\n", classifier.labels()[found.label].c_str(), found.scores[found.label]);
#pragma once

#include <span>
#include <string>
#include <vector>

#include "attn/models.h"

#pragma GCC visibility push(default)
namespace attn::models {

struct ClassifyOptions {
  int64_t max_length = 0;   ///< tokens of a text with its special tokens; the rest is cut off; 0 = the context
  double temperature = 1;   ///< logits are divided by it; it must be positive; not for ProblemType::regression
  int64_t batch_size = 32;  ///< texts that are computed at once, padded to the longest of them
};

struct Classification {
  int64_t label = 0;           ///< the class of the largest score, the first of equals
  std::vector<double> scores;  ///< [classes], by ProblemType: probabilities with sum 1, independent ones, or numbers
};

/// ln of the softmax of logits.
std::vector<double> log_softmax(std::vector<double> logits);

/// A model that gives each text one of its classes, as the text-classification pipeline of transformers does.
class Classifier {
 public:
  /// Opens a folder. Throws Error as open_with_tokenizer(), and for a model that does not classify whole texts.
  explicit Classifier(const std::string& folder, const OpenOptions& how = {});
  /// Throws Error for such a model, and for a model without a tokenizer.
  explicit Classifier(Loaded loaded);

  ClassifyOptions options;
  const Loaded& loaded() const { return loaded_; }
  /// The names of the classes. Where several classes have one name, the number of the class is added: "good (2)".
  const std::vector<std::string>& labels() const { return labels_; }

  /// One result a text. Throws Error for options out of range, and as Tokenizer::encode_marked() does.
  std::vector<Classification> operator()(std::span<const std::string> texts) const;

  // The steps of a call, for callers that batch, count or name texts themselves.
  /// The tokens of a text, truncated to max_length; `truncated`, if given, is set to whether they were.
  text::Encoding encode(std::string_view text, bool* truncated = nullptr) const;
  /// [texts, classes] of one batch. What is longer than max_length is cut off.
  std::vector<std::vector<double>> logits(std::span<const text::Encoding> texts) const;
  Classification classify(std::vector<double> logits) const;

 private:
  void check() const;
  int64_t max_length() const { return options.max_length ? options.max_length : loaded_.model->config().context; }
  Loaded loaded_;
  std::vector<std::string> labels_;
  std::shared_ptr<autograd::Recycler> memory_ = Tape().memory();
};

}  // namespace attn::models
#pragma GCC visibility pop
