// Batches of text and of labelled sentences, each a function of the seed and its number.
#include <algorithm>
#include <numeric>

#include "attn/train.h"
#include "core/checker.h"
#include "train/batches.h"

namespace attn::train {
namespace {

constexpr int64_t kUnknown = 1;  // of word tokens

constexpr int64_t kMostSequences = int64_t{1} << 24;  // of a batch: products of sizes stay within 64 bits

void require_sentences(Checker& checker, const std::string& name, const std::vector<Labelled>& sentences) {
  for (size_t n = 0; n < sentences.size(); ++n) {
    const auto& [tokens, label] = sentences[n];
    const auto where = [&] { return name + "[" + std::to_string(n) + "] has "; };
    checker.require(!tokens.empty(), [&] { return where() + "no tokens"; });
    checker.require(label >= 0, [&, &label = label] { return where() + "label " + std::to_string(label); });
    const int64_t bad = first_negative(tokens);
    checker.require(bad < 0, [&, &tokens = tokens] { return where() + "token " + std::to_string(tokens[bad]); });
    if (tokens.empty() || label < 0 || bad >= 0) return;  // the first will do
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
                                 int64_t batch, uint64_t seed, double word_dropout)
    : training_(std::move(training)),
      validation_(std::move(validation)),
      context_(context),
      batch_(batch),
      seed_(seed),
      word_dropout_(word_dropout) {
  Checker checker("data");
  require_sizes(checker, context, batch);
  require_sentences(checker, "training", training_);
  require_sentences(checker, "validation", validation_);
  checker.require(!training_.empty(), "there are no sentences to train on");
  checker.require(!validation_.empty(), "there are no sentences to validate with");
  checker.require(word_dropout >= 0 && word_dropout < 1,
                  "word_dropout is " + std::to_string(word_dropout) + ", must be in [0, 1)");
  checker.done();
}

models::Batch LabelledDataset::padded(const std::vector<Labelled>& from, std::span<const int64_t> which) const {
  models::Batch batch;
  batch.sequences = static_cast<int64_t>(which.size());
  for (int64_t n : which)
    batch.lengths.push_back(std::clamp<int64_t>(static_cast<int64_t>(from[n].tokens.size()), 1, context_));
  batch.length = padded_length(*std::max_element(batch.lengths.begin(), batch.lengths.end()), context_);
  batch.tokens.assign(static_cast<size_t>(batch.sequences * batch.length), 0);
  for (size_t b = 0; b < which.size(); ++b) {
    const std::vector<int64_t>& tokens = from[which[b]].tokens;
    std::copy_n(tokens.begin(), std::min<size_t>(tokens.size(), batch.lengths[b]),
                batch.tokens.begin() + static_cast<int64_t>(b) * batch.length);
    batch.targets.push_back(from[which[b]].label);
  }
  return batch;
}

models::Batch LabelledDataset::training(uint64_t number) const {
  require_there(!training_.empty());
  const auto length = [&](int64_t n) { return static_cast<int64_t>(training_[n].tokens.size()); };
  models::Batch batch =
      padded(training_, shuffled_batch(static_cast<int64_t>(training_.size()), batch_, seed_, number, length));
  Random dice(~seed_, number);
  for (int64_t b = 0; word_dropout_ > 0 && b < batch.sequences; ++b)
    for (int64_t n = 0; n < batch.lengths[b]; ++n)
      if (dice.uniform() < word_dropout_) batch.tokens[b * batch.length + n] = kUnknown;
  return batch;
}

models::Batch LabelledDataset::validation(int64_t number) const {
  require_number(number, validation_batches());
  const int64_t begin = number * batch_, total = static_cast<int64_t>(validation_.size());
  std::vector<int64_t> which(static_cast<size_t>(std::min(batch_, total - begin)));
  std::iota(which.begin(), which.end(), begin);
  return padded(validation_, which);
}

int64_t LabelledDataset::validation_batches() const { return div_up(static_cast<int64_t>(validation_.size()), batch_); }

int64_t LabelledDataset::batches_per_epoch() const { return div_up(static_cast<int64_t>(training_.size()), batch_); }

std::string LabelledDataset::describe() const {
  return std::to_string(training_.size()) + " sentences to train on, " + std::to_string(validation_.size()) +
         " to validate";
}

}  // namespace attn::train
