// Pairs of texts for sentence encoders: files, batches, losses.
#include "attn/train_similarity.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "attn/autograd_operations.h"
#include "train/batches.h"
#include "train/columns.h"
#include "train/labels.h"

namespace attn::train {
namespace {

using autograd::Tape;
using autograd::Value;
using models::Pooling;

void require_pairs(Checker& checker, const std::string& name, const std::vector<SentencePair>& pairs) {
  for (size_t n = 0; n < pairs.size(); ++n) {
    const SentencePair& pair = pairs[n];
    const auto where = [&] { return name + "[" + std::to_string(n) + "]"; };
    const bool whole = checker.require(!pair.first.ids.empty() && !pair.second.ids.empty(),
                                       [&] { return where() + " has a text without tokens"; });
    const bool finite = checker.require(std::isfinite(pair.score), [&] { return where() + ".score is not finite"; });
    if (!whole || !finite) return;  // the first will do
  }
}

text::Encoding encoded(const std::string& text, const text::Tokenizer& tokenizer, const EncodingOptions& options,
                       int64_t line) {
  text::Encoding encoding;
  try {
    encoding = tokenizer.encode(text, {.max_length = options.max_length});
  } catch (const Error& error) {
    fail_at(options.source, line, error.reasons().front());
  }
  if (encoding.ids.empty()) fail_at(options.source, line, "a text has no token");
  if (!options.with_types) encoding.token_type_ids.clear();
  return encoding;
}

}  // namespace

PairTexts read_pair_texts(const std::string& path) {
  const std::vector<Column> columns = {{"text", ColumnKind::text, {"sentence1", "anchor"}},
                                       {"text_pair", ColumnKind::text, {"sentence2", "positive"}},
                                       {"score", ColumnKind::number, {"label", "similarity"}, Presence::trailing},
                                       {"negative", ColumnKind::text, {}, Presence::named}};
  PairTexts pairs;
  bool has_scores = false;
  for (ColumnsRow& row : read_columns(path, columns)) {
    has_scores = pairs.lines.empty() ? !row.fields[2].empty() : has_scores;
    pairs.first.push_back(std::move(row.fields[0]));
    pairs.second.push_back(std::move(row.fields[1]));
    if (has_scores) pairs.scores.push_back(number_in(row.fields[2], path, row.line));
    pairs.negatives.push_back(std::move(row.fields[3]));
    pairs.lines.push_back(row.line);
  }
  return pairs;
}

std::vector<SentencePair> encode_pair_texts(const PairTexts& texts, bool scores, const text::Tokenizer& tokenizer,
                                            const EncodingOptions& options) {
  if (scores && texts.scores.empty())
    throw Error("data", {options.source + " has no scores: a third column, or one that is named score"});
  std::vector<SentencePair> pairs;
  for (size_t n = 0; n < texts.first.size(); ++n) {
    const int64_t line = texts.lines[n];
    SentencePair pair{encoded(texts.first[n], tokenizer, options, line),
                      encoded(texts.second[n], tokenizer, options, line)};
    if (scores) pair.score = texts.scores[n];
    if (!texts.negatives[n].empty()) pair.negative = encoded(texts.negatives[n], tokenizer, options, line);
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

SentencePairs::SentencePairs(std::vector<SentencePair> training, std::vector<SentencePair> validation, int64_t context,
                             int64_t batch, uint64_t seed)
    : RowsDataset(batch, seed), training_(std::move(training)), validation_(std::move(validation)), context_(context) {
  Checker checker("data");
  require_sizes(checker, context, batch);
  require_pairs(checker, "training", training_);
  require_pairs(checker, "validation", validation_);
  checker.require(!training_.empty(), "there are no pairs to train on");
  checker.require(!validation_.empty(), "there are no pairs to validate with");
  checker.done();
  with_types_ = !training_.front().first.token_type_ids.empty();
  with_negatives_ = true;
  for (const auto* pairs : {&training_, &validation_})
    for (const SentencePair& pair : *pairs) with_negatives_ = with_negatives_ && !pair.negative.ids.empty();
}

int64_t SentencePairs::length_of(int64_t row) const {
  const SentencePair& pair = training_[static_cast<size_t>(row)];
  return std::ssize(pair.first.ids) + std::ssize(pair.second.ids);
}

models::Batch SentencePairs::batch_of(bool training, std::span<const int64_t> which) const {
  const std::vector<SentencePair>& from = training ? training_ : validation_;
  models::Batch batch;
  batch.cu_seqlens = {0};
  const auto add = [&](const text::Encoding& text) {
    const auto length = std::min<int64_t>(std::ssize(text.ids), context_);
    batch.tokens.insert(batch.tokens.end(), text.ids.begin(), text.ids.begin() + length);
    if (with_types_) {
      batch.token_type_ids.insert(batch.token_type_ids.end(), text.token_type_ids.begin(),
                                  text.token_type_ids.begin() + length);
    }
    batch.cu_seqlens.push_back(std::ssize(batch.tokens));
  };
  for (const int64_t n : which) add(from[static_cast<size_t>(n)].first);
  for (const int64_t n : which) add(from[static_cast<size_t>(n)].second);
  for (const int64_t n : which)
    if (with_negatives_) add(from[static_cast<size_t>(n)].negative);
  for (const int64_t n : which) batch.values.push_back(from[static_cast<size_t>(n)].score);
  batch.sequences = std::ssize(batch.cu_seqlens) - 1;
  batch.length = batch.cu_seqlens.back();
  return batch;
}

std::string SentencePairs::describe() const {
  return std::to_string(training_.size()) + " pairs" + (with_negatives_ ? " with negatives" : "") + " to train on, " +
         std::to_string(validation_.size()) + " to validate";
}

// -------------------------------------------------------------------------------------------------------------- losses

namespace {

Value constant(Tape& tape, DType dtype, const std::vector<double>& values, std::vector<int64_t> shape) {
  const Array array = tape.array(dtype, shape);
  ops::convert(Array(values, std::move(shape)).flat(), array.flat());
  return Value(array);
}

/// The cosines [pairs, texts - pairs] of the first texts and all others.
Value cosines(Tape& tape, const Value& vectors, int64_t pairs) {
  const int64_t texts = vectors.shape()[0];
  const DType type = vectors.dtype() == DType::float64 ? DType::float64 : DType::float32;
  return linear(tape, slice(tape, vectors, 0, 0, pairs), slice(tape, vectors, 0, pairs, texts), {}, type);
}

/// The cosine of each pair [pairs, 1].
Value of_pairs(Tape& tape, const Value& all) {
  const std::vector<int64_t>& shape = all.shape();
  std::vector<double> own(static_cast<size_t>(shape[0] * shape[1]), 0);
  for (int64_t n = 0; n < shape[0]; ++n) own[static_cast<size_t>(n * shape[1] + n)] = 1;
  return sum_over(tape, multiply(tape, all, constant(tape, all.dtype(), own, shape)), 1);
}

Value loss_of(Tape& tape, const Value& all, const std::vector<double>& scores, const SimilarityOptions& options) {
  const auto pairs = std::ssize(scores);
  if (options.loss == SimilarityLoss::cosine) {
    const Value own = of_pairs(tape, all);
    return mean_squared_error(tape, own, constant(tape, own.dtype(), scores, {pairs, 1}));
  }
  std::vector<int64_t> targets(scores.size());
  std::iota(targets.begin(), targets.end(), 0);
  return cross_entropy(tape, scale(tape, all, options.scale), std::move(targets));
}

}  // namespace

Value sentence_vectors(Tape& tape, const models::Model& model, const models::Batch& batch,
                       const SimilarityOptions& options) {
  if (options.pooling != Pooling::mean && options.pooling != Pooling::first)
    throw Error("train", {"a sentence encoder with pooling " + std::string(name_of(options.pooling)) +
                          " cannot be trained, only with mean and cls"});
  const Value rows = model.hidden(tape, batch, {.recompute = options.recompute});
  const int64_t width = rows.data().width();
  const std::vector<int64_t> starts(batch.cu_seqlens.begin(), batch.cu_seqlens.end() - 1);
  std::vector<int64_t> lengths;
  for (size_t n = 0; n < starts.size(); ++n) lengths.push_back(batch.cu_seqlens[n + 1] - starts[n]);
  const Value pooled = options.pooling == Pooling::mean
                           ? mean_pool(tape, rows, lengths, starts)
                           : embedding(tape, starts, reshape(tape, rows, {batch.length, width}), {std::ssize(starts)});
  // The RMS norm of weight C^-1/2 divides by the length.
  constexpr double kLeast = 1e-12;
  const DType weights = pooled.dtype() == DType::float64 ? DType::float64 : DType::float32;
  const std::vector<double> factor(static_cast<size_t>(width), 1 / std::sqrt(static_cast<double>(width)));
  return rms_norm(tape, pooled, constant(tape, weights, factor, {width}), kLeast / static_cast<double>(width));
}

LossFunction similarity_loss(const models::Model& model, const SentencePairs& data, const SimilarityOptions& options) {
  // The batch is borrowed until the backward has run.
  return [&model, &data, options, batch = models::Batch()](Tape& tape, uint64_t number) mutable {
    batch = data.training(number);
    const Value all = cosines(tape, sentence_vectors(tape, model, batch, options), std::ssize(batch.values));
    return BatchLoss(loss_of(tape, all, batch.values, options), batch.length);
  };
}

Validation validate_similarity(const models::Model& model, const SentencePairs& data,
                               const SimilarityOptions& options) {
  Predictions predictions;
  double total = 0;
  const auto memory = Tape().memory();
  for (int64_t n = 0; n < data.validation_batches(); ++n) {
    const models::Batch batch = data.validation(n);
    Tape tape({}, memory);
    const auto pairs = std::ssize(batch.values);
    const Value all = cosines(tape, sentence_vectors(tape, model, batch, options), pairs);
    total += loss_of(tape, all, batch.values, options).data().number(0) * static_cast<double>(pairs);
    const std::vector<double> values = all.data().values();
    const auto width = all.data().width();
    for (int64_t p = 0; p < pairs; ++p) {
      const auto row = values.begin() + p * width;
      predictions.expected.push_back(p);
      predictions.predicted.push_back(std::max_element(row, row + width) - row);
      predictions.expected_values.push_back(batch.values[static_cast<size_t>(p)]);
      predictions.predicted_values.push_back(row[p]);
    }
  }
  const bool of_scores = options.loss == SimilarityLoss::cosine;
  predictions.loss = total / static_cast<double>(predictions.expected.size());
  const Metric metric = options.metric.value_or(of_scores ? Metric::spearman : Metric::accuracy);
  return {.loss = predictions.loss,
          .accuracy = metric_value(Metric::accuracy, predictions),
          .metric = metric,
          .score = metric_value(metric, predictions)};
}

}  // namespace attn::train
