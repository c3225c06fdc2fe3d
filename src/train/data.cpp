// Batches of text and of labelled sentences, each a function of the seed and its number.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "attn/train.h"
#include "core/checker.h"
#include "train/batches.h"

namespace attn::train {
namespace {

constexpr int64_t kUnknown = 1;  // of word tokens

constexpr int64_t kMostSequences = int64_t{1} << 24;  // of a batch: products of sizes stay within 64 bits

/// What a row has to be learned: its class, its number or the classes of its tokens.
int kind_of(const Labelled& row) { return row.value ? 1 : row.token_labels.empty() ? 0 : 2; }

void require_sentences(Checker& checker, const std::string& name, const std::vector<Labelled>& sentences, int kind,
                       size_t classes) {
  for (size_t n = 0; n < sentences.size(); ++n) {
    const Labelled& row = sentences[n];
    const auto require = [&](bool holds, const auto& what) {
      return checker.require(holds, [&] { return name + "[" + std::to_string(n) + "] has " + what(); });
    };
    const size_t length = row.tokens.size();
    const int64_t bad = first_negative(row.tokens);
    bool fine = require(length > 0, [] { return std::string("no tokens"); });
    fine &= require(row.label >= 0, [&] { return "label " + std::to_string(row.label); });
    fine &= require(bad < 0, [&] { return "token " + std::to_string(row.tokens[static_cast<size_t>(bad)]); });
    fine &= require(kind_of(row) == kind, [] { return std::string("a label of another kind than training[0]"); });
    fine &= require((row.token_type_ids.empty() || row.token_type_ids.size() == length) &&
                        (row.token_labels.empty() || row.token_labels.size() == length),
                    [] { return std::string("token_type_ids or token_labels for other than its tokens"); });
    fine &= require(classes == 0 || static_cast<size_t>(row.label) < classes,
                    [&] { return "label " + std::to_string(row.label) + ", which has no class weight"; });
    fine &= require(!row.value || std::isfinite(*row.value), [] { return std::string("a value that is not finite"); });
    if (!fine) return;  // the first will do
  }
}

}  // namespace

void require_sizes(Checker& checker, int64_t context, int64_t batch) {
  checker.require(batch > 0 && context > 0, [&] {
    return "batch is " + std::to_string(batch) + " and context " + std::to_string(context) + ", must be positive";
  });
  checker.require(batch <= kMostSequences, [&] {
    return "batch is " + std::to_string(batch) + ", must be at most " + std::to_string(kMostSequences);
  });
}

int64_t first_negative(const std::vector<int64_t>& tokens) {
  const auto found = std::find_if(tokens.begin(), tokens.end(), [](int64_t token) { return token < 0; });
  return found == tokens.end() ? -1 : found - tokens.begin();
}

void require_number(int64_t number, int64_t batches) {
  if (number < 0 || number >= batches)
    throw Error("data", {"the validation batch is " + std::to_string(number) + ", must be in [0, " +
                         std::to_string(batches) + ")"});
}

void require_there(bool there) {
  if (!there) throw Error("data", {"the data have been moved from"});
}

std::vector<int64_t> shuffled_batch(int64_t count, int64_t batch, uint64_t seed, uint64_t number,
                                    const std::function<int64_t(int64_t)>& length) {
  const int64_t per_epoch = div_up(count, batch);
  Random random(seed, number / static_cast<uint64_t>(per_epoch));
  const auto shuffled = [&](int64_t items) {
    std::vector<int64_t> order(static_cast<size_t>(items));
    std::iota(order.begin(), order.end(), 0);
    for (int64_t n = items - 1; n > 0; --n) std::swap(order[n], order[random.below(n + 1)]);
    return order;
  };
  std::vector<int64_t> order = shuffled(count);
  const std::vector<int64_t> batches = shuffled(per_epoch);
  const int64_t begin = batches[number % static_cast<uint64_t>(per_epoch)] * batch;
  const int64_t group = begin / (16 * batch) * 16 * batch;  // of batches; only the one that is asked for is sorted
  std::stable_sort(order.begin() + group, order.begin() + std::min(group + 16 * batch, count),
                   [&](int64_t a, int64_t b) { return length(a) < length(b); });
  return {order.begin() + begin, order.begin() + std::min(begin + batch, count)};
}

models::Batch RowsDataset::training(uint64_t number) const {
  require_there(training_rows() > 0);
  return batch_of(true,
                  shuffled_batch(training_rows(), batch_, seed_, number, [&](int64_t row) { return length_of(row); }));
}

models::Batch RowsDataset::validation(int64_t number) const {
  require_number(number, validation_batches());
  const int64_t begin = number * batch_;
  std::vector<int64_t> rows(static_cast<size_t>(std::min(batch_, validation_rows() - begin)));
  std::iota(rows.begin(), rows.end(), begin);
  return batch_of(false, rows);
}

int64_t RowsDataset::validation_batches() const { return div_up(validation_rows(), batch_); }

int64_t RowsDataset::batches_per_epoch() const { return div_up(training_rows(), batch_); }

// ------------------------------------------------------------------------------------------------------------- text

TextDataset::TextDataset(std::vector<int64_t> tokens, int64_t context, int64_t batch, uint64_t seed,
                         int64_t validation_batches, int64_t validation_tokens)
    : tokens_(std::move(tokens)), context_(context), batch_(batch), seed_(seed) {
  const int64_t total = static_cast<int64_t>(tokens_.size());
  const int64_t validation = validation_tokens == 0 ? total / 10 : std::clamp<int64_t>(validation_tokens, 0, total);
  validation_begin_ = total - validation;
  Checker checker("data");
  require_sizes(checker, context, batch);
  checker.require(validation_batches > 0,
                  [&] { return "validation_batches is " + std::to_string(validation_batches) + ", must be positive"; });
  const int64_t bad = first_negative(tokens_);
  checker.require(bad < 0, [&] {
    return "tokens[" + std::to_string(bad) + "] is " + std::to_string(tokens_[bad]) + ", must not be negative";
  });
  checker.require(validation > context && validation_begin_ > context, [&] {
    return "a text of " + std::to_string(total) + " tokens is too short: those to train on, " +
           std::to_string(validation_begin_) + ", and those to validate with, " + std::to_string(validation) +
           (validation_tokens == 0 ? " (the last tenth)" : "") + ", must be more than the context of " +
           std::to_string(context);
  });
  checker.done();
  validation_batches_ = std::clamp<int64_t>(div_up(validation / context_, batch_), 1, validation_batches);
}

models::Batch TextDataset::crops(std::span<const int64_t> first) const {
  require_there(!tokens_.empty());
  models::Batch batch;
  batch.sequences = static_cast<int64_t>(first.size());
  batch.length = context_;
  for (int64_t begin : first) {
    batch.tokens.insert(batch.tokens.end(), tokens_.begin() + begin, tokens_.begin() + begin + context_);
    batch.targets.insert(batch.targets.end(), tokens_.begin() + begin + 1, tokens_.begin() + begin + context_ + 1);
  }
  return batch;
}

models::Batch TextDataset::training(uint64_t number) const {
  Random random(seed_, number);
  std::vector<int64_t> first(static_cast<size_t>(batch_));
  for (int64_t& begin : first) begin = random.below(validation_begin_ - context_);
  return crops(first);
}

models::Batch TextDataset::validation(int64_t number) const {
  require_number(number, validation_batches_);
  const int64_t last = static_cast<int64_t>(tokens_.size()) - context_ - 1 - validation_begin_;
  const int64_t count = validation_batches_ * batch_;
  std::vector<int64_t> first;
  for (int64_t n = number * batch_; n < (number + 1) * batch_; ++n)
    first.push_back(validation_begin_ + (count > 1 ? last * n / (count - 1) : 0));
  return crops(first);
}

int64_t TextDataset::validation_batches() const { return validation_batches_; }

int64_t TextDataset::batches_per_epoch() const { return div_up(validation_begin_, batch_ * context_); }

std::string TextDataset::describe() const {
  return std::to_string(validation_begin_) + " tokens to train on, " +
         std::to_string(static_cast<int64_t>(tokens_.size()) - validation_begin_) + " to validate";
}

// -------------------------------------------------------------------------------------------------------- sentences

LabelledDataset::LabelledDataset(std::vector<Labelled> training, std::vector<Labelled> validation, int64_t context,
                                 int64_t batch, uint64_t seed, const LabelledOptions& options)
    : RowsDataset(batch, seed),
      training_(std::move(training)),
      validation_(std::move(validation)),
      context_(context),
      options_(options) {
  const std::vector<double>& weights = options.class_weights;
  const int kind = training_.empty() ? 0 : kind_of(training_.front());
  Checker checker("data");
  require_sizes(checker, context, batch);
  require_sentences(checker, "training", training_, kind, kind == 0 ? weights.size() : 0);
  require_sentences(checker, "validation", validation_, kind, kind == 0 ? weights.size() : 0);
  checker.require(!training_.empty(), "there are no sentences to train on");
  checker.require(!validation_.empty(), "there are no sentences to validate with");
  checker.require(options.word_dropout >= 0 && options.word_dropout < 1,
                  "word_dropout is " + std::to_string(options.word_dropout) + ", must be in [0, 1)");
  checker.require(weights.empty() || kind != 1, "class_weights are for classes, not for numbers");
  checker.require(std::all_of(weights.begin(), weights.end(), [](double w) { return w >= 0 && std::isfinite(w); }),
                  "class_weights must be finite and at least 0");
  checker.done();
}

namespace {

/// Batches grow row by row.
class LabelledBatch {
 public:
  /// `width`: what rows are padded to; 0 = packed.
  LabelledBatch(bool with_types, int64_t context, int64_t width, const std::vector<double>& class_weights)
      : with_types_(with_types), context_(context), width_(width), class_weights_(class_weights) {
    batch_.length = width;
    if (!width) batch_.cu_seqlens = {0};
  }

  void add(const Labelled& row) {
    const int64_t length = std::clamp<int64_t>(std::ssize(row.tokens), 1, context_);
    add(batch_.tokens, row.tokens, length, 0);
    if (with_types_) add(batch_.token_type_ids, row.token_type_ids, length, 0);
    if (row.value) batch_.values.push_back(*row.value);
    else if (row.token_labels.empty()) batch_.targets.push_back(row.label);
    else add(batch_.targets, row.token_labels, length, ops::kIgnoreIndex);
    ++batch_.sequences;
    if (width_) return batch_.lengths.push_back(length);
    batch_.length = std::ssize(batch_.tokens);
    batch_.cu_seqlens.push_back(batch_.length);
  }

  models::Batch finish() {
    for (const int64_t target : batch_.targets)
      if (!class_weights_.empty())
        batch_.target_weights.push_back(target < 0 ? 0 : class_weights_.at(static_cast<size_t>(target)));
    return std::move(batch_);
  }

 private:
  void add(std::vector<int64_t>& to, const std::vector<int64_t>& part, int64_t length, int64_t filling) const {
    if (part.empty()) to.resize(to.size() + static_cast<size_t>(length), 0);
    else to.insert(to.end(), part.begin(), part.begin() + length);
    if (width_) to.resize(to.size() + static_cast<size_t>(width_ - length), filling);
  }
  bool with_types_;
  int64_t context_, width_;
  const std::vector<double>& class_weights_;
  models::Batch batch_;
};

}  // namespace

models::Batch packed_batch(std::span<const Labelled> rows) {
  const bool with_types = !rows.empty() && !rows.front().token_type_ids.empty();
  const std::vector<double> no_weights;
  LabelledBatch batch(with_types, std::numeric_limits<int64_t>::max(), 0, no_weights);
  for (const Labelled& row : rows) batch.add(row);
  return batch.finish();
}

int64_t LabelledDataset::length_of(int64_t row) const { return std::ssize(training_[static_cast<size_t>(row)].tokens); }

models::Batch LabelledDataset::batch_of(bool training, std::span<const int64_t> rows) const {
  const std::vector<Labelled>& from = training ? training_ : validation_;
  int64_t longest = 1;
  for (const int64_t n : rows) longest = std::max<int64_t>(longest, std::ssize(from[static_cast<size_t>(n)].tokens));
  const int64_t width = options_.packed ? 0 : padded_length(std::min(longest, context_), context_);
  LabelledBatch batch(!training_.front().token_type_ids.empty(), context_, width, options_.class_weights);
  for (const int64_t n : rows) batch.add(from[static_cast<size_t>(n)]);
  return batch.finish();
}

models::Batch LabelledDataset::training(uint64_t number) const {
  models::Batch batch = RowsDataset::training(number);
  Random dice(~seed(), number);
  for (int64_t b = 0; options_.word_dropout > 0 && b < batch.sequences; ++b) {
    const auto n = static_cast<size_t>(b);
    const int64_t begin = options_.packed ? batch.cu_seqlens[n] : b * batch.length;
    const int64_t end = options_.packed ? batch.cu_seqlens[n + 1] : begin + batch.lengths[n];
    for (int64_t at = begin; at < end; ++at)
      if (dice.uniform() < options_.word_dropout) batch.tokens[static_cast<size_t>(at)] = kUnknown;
  }
  return batch;
}

std::string LabelledDataset::describe() const {
  return std::to_string(training_.size()) + " sentences to train on, " + std::to_string(validation_.size()) +
         " to validate";
}

}  // namespace attn::train
