// Texts as classes: tokens, padded batches, logits, and what the kind of problem makes of logits.
#include "attn/models_classify.h"

#include <algorithm>
#include <cmath>

#include "core/checker.h"

namespace attn::models {
namespace {

/// A name for each class that is no other's.
std::vector<std::string> distinct(const std::vector<std::string>& labels) {
  std::vector<std::string> names = labels;
  for (size_t n = 0; n < names.size(); ++n)
    if (std::count(labels.begin(), labels.end(), labels[n]) > 1) names[n] += " (" + std::to_string(n) + ")";
  return names;
}

}  // namespace

std::vector<double> log_softmax(std::vector<double> logits) {
  if (logits.empty()) return logits;
  const double largest = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const double logit : logits) total += std::exp(logit - largest);
  for (double& logit : logits) logit -= largest + std::log(total);
  return logits;
}

Classifier::Classifier(const std::string& folder, const OpenOptions& how)
    : Classifier(open_with_tokenizer(folder, how)) {}

Classifier::Classifier(Loaded loaded) : loaded_(std::move(loaded)), labels_(distinct(loaded_.labels)) {
  const Config& config = loaded_.model->config();
  Checker checker("classify");
  checker.require(classifies_texts(config), "the model must have a class for each text");
  checker.require(loaded_.tokenizer != nullptr, "the model has no tokenizer");
  checker.done();
}

void Classifier::check() const {
  Checker checker("classify");
  checker.require(options.max_length >= 0, "max_length must not be negative");
  checker.require(options.batch_size > 0, "batch_size must be positive");
  checker.require(options.temperature > 0 && std::isfinite(options.temperature),
                  "temperature must be positive and finite");
  checker.require(options.temperature == 1 || loaded_.model->config().problem_type != ProblemType::regression,
                  "temperature must be 1 for regression, whose results are not probabilities");
  checker.done();
}

text::Encoding Classifier::encode(std::string_view text, std::string_view pair) const {
  const text::EncodeOptions how = {.max_length = max_length()};
  return pair.empty() ? loaded_.tokenizer->encode(text, how) : loaded_.tokenizer->encode_pair(text, pair, how);
}

std::vector<std::vector<double>> Classifier::logits(std::span<const text::Encoding> texts) const {
  check();
  const Config& config = loaded_.model->config();
  Batch batch;
  batch.sequences = std::ssize(texts);
  for (const text::Encoding& text : texts) {
    batch.lengths.push_back(std::clamp<int64_t>(std::ssize(text.ids), 1, max_length()));
    batch.length = std::max(batch.length, batch.lengths.back());
  }
  const auto padded = [&](std::vector<int64_t> text::Encoding::*part) {
    std::vector<int64_t> all(static_cast<size_t>(batch.sequences * batch.length), 0);
    for (size_t n = 0; n < texts.size(); ++n)
      std::copy_n((texts[n].*part).begin(), std::min<size_t>((texts[n].*part).size(), batch.lengths[n]),
                  all.begin() + static_cast<int64_t>(n) * batch.length);
    return all;
  };
  batch.tokens = padded(&text::Encoding::ids);
  if (config.type_vocab_size) batch.token_type_ids = padded(&text::Encoding::token_type_ids);
  Tape tape({}, memory_);
  const Value logits = loaded_.model->forward(tape, batch);
  const std::vector<double> values = logits.data().values();
  std::vector<std::vector<double>> rows;
  for (auto row = values.begin(); row != values.end(); row += config.classes)
    rows.emplace_back(row, row + config.classes);
  return rows;
}

Classification Classifier::classify(std::vector<double> logits) const {
  for (double& logit : logits) logit /= options.temperature;
  const ProblemType problem = loaded_.model->config().problem_type;
  std::vector<double> scores =
      problem == ProblemType::single_label ? log_softmax(std::move(logits)) : std::move(logits);
  for (double& score : scores) {
    if (problem == ProblemType::single_label) score = std::exp(score);
    if (problem == ProblemType::multi_label) score = 1 / (1 + std::exp(-score));
  }
  const int64_t best = std::max_element(scores.begin(), scores.end()) - scores.begin();
  return {best, std::move(scores)};
}

std::vector<Classification> Classifier::operator()(std::span<const std::string> texts) const {
  check();
  std::vector<Classification> results;
  for (size_t first = 0; first < texts.size(); first += static_cast<size_t>(options.batch_size)) {
    std::vector<text::Encoding> batch;
    for (const std::string& text :
         texts.subspan(first).first(std::min(texts.size() - first, static_cast<size_t>(options.batch_size))))
      batch.push_back(encode(text));
    for (std::vector<double>& row : logits(batch)) results.push_back(classify(std::move(row)));
  }
  return results;
}

// --------------------------------------------------------------------------------------------------------------- words

WordClassifier::WordClassifier(const std::string& folder, const OpenOptions& how)
    : WordClassifier(open_with_tokenizer(folder, how)) {}

WordClassifier::WordClassifier(Loaded loaded) : loaded_(std::move(loaded)) {
  const Config& config = loaded_.model->config();
  Checker checker("classify");
  checker.require(classifies_tokens(config), "the model must have a class for each token");
  checker.require(loaded_.tokenizer != nullptr, "the model has no tokenizer");
  checker.done();
}

std::vector<std::vector<ClassifiedWord>> WordClassifier::operator()(
    std::span<const std::vector<std::string>> texts) const {
  const Config& config = loaded_.model->config();
  Batch batch;
  batch.cu_seqlens = {0};
  std::vector<std::vector<ClassifiedWord>> results(texts.size());
  std::vector<std::pair<size_t, int64_t>> first;  // of each word: its text and the row of its first token
  for (size_t n = 0; n < texts.size(); ++n) {
    if (texts[n].empty()) continue;
    const text::EncodedWords encoded =
        text::encode_words(*loaded_.tokenizer, texts[n], {.max_length = max_length ? max_length : config.context});
    for (size_t k = 0; k < encoded.ids.size(); ++k) {
      const int64_t word = encoded.word_of[k];
      if (word >= 0 && (k == 0 || encoded.word_of[k - 1] != word)) {
        first.emplace_back(n, std::ssize(batch.tokens));
        results[n].push_back({texts[n][static_cast<size_t>(word)]});
      }
      batch.tokens.push_back(encoded.ids[k]);
    }
    batch.cu_seqlens.push_back(std::ssize(batch.tokens));
    ++batch.sequences;
  }
  if (batch.sequences == 0) return results;
  batch.length = std::ssize(batch.tokens);
  Tape tape({}, memory_);
  const std::vector<double> logits = loaded_.model->forward(tape, batch).data().values();
  std::vector<size_t> next(texts.size(), 0);
  for (const auto& [text, row] : first) {
    const auto begin = logits.begin() + row * config.classes;
    const std::vector<double> scores = log_softmax({begin, begin + config.classes});
    ClassifiedWord& word = results[text][next[text]++];
    word.label = std::max_element(scores.begin(), scores.end()) - scores.begin();
    word.probability = std::exp(scores[static_cast<size_t>(word.label)]);
  }
  return results;
}

std::vector<std::string> words_of_text(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  std::vector<std::string> words;
  for (size_t begin = text.find_first_not_of(kSpaces); begin != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kSpaces, begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = text.find_first_not_of(kSpaces, end);
  }
  return words;
}

}  // namespace attn::models
