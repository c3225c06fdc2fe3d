// Pairs of texts: their files, their batches, and how far an answer is from what was wanted.
#include "attn/train_pairs.h"

#include <algorithm>
#include <numeric>

#include "train/batches.h"
#include "train/columns.h"

namespace attn::train {
namespace {

void require_pairs(Checker& checker, const std::string& name, const std::vector<Pair>& pairs) {
  for (size_t n = 0; n < pairs.size(); ++n)
    for (const auto& [side, tokens] : {std::pair("source", &pairs[n].source), std::pair("target", &pairs[n].target)}) {
      const int64_t bad = first_negative(*tokens);
      if (!tokens->empty() && bad < 0) continue;
      checker.require(false, name + "[" + std::to_string(n) + "]." + side + " has " +
                                 (tokens->empty() ? "no tokens" : "token " + std::to_string((*tokens)[bad])));
      return;  // the first will do
    }
}

text::Encoding encoded(const std::string& text, const text::Tokenizer& tokenizer, const std::string& path, int64_t line,
                       const char* side, int64_t max_length) {
  text::Encoding encoding;
  try {
    encoding = tokenizer.encode(text, {.max_length = max_length});
  } catch (const Error& error) {
    fail_at(path, line, std::string(side) + ": " + error.reasons().front());
  }
  if (encoding.ids.empty()) fail_at(path, line, std::string(side) + " has no token");
  return encoding;
}

}  // namespace

std::vector<PairText> read_pairs(const std::string& path) {
  const std::vector<Column> columns = {{"source"}, {"target", ColumnKind::label}};
  std::vector<PairText> rows;
  for (ColumnsRow& row : read_columns(path, columns))
    rows.push_back({std::move(row.fields[0]), std::move(row.fields[1]), row.line});
  return rows;
}

std::vector<Pair> encode_pairs(std::span<const PairText> rows, const text::Tokenizer& source,
                               const text::Tokenizer& target, const std::string& path, int64_t end,
                               int64_t max_length) {
  std::vector<Pair> pairs;
  for (const PairText& row : rows) {
    text::Encoding from = encoded(row.source, source, path, row.line, "source", max_length);
    text::Encoding to = encoded(row.target, target, path, row.line, "target", max_length);
    Pair pair{std::move(from.ids), std::move(to.ids), from.truncated || to.truncated};
    if (end >= 0 && pair.target.back() == end) pair.target.pop_back();
    if (pair.target.empty()) fail_at(path, row.line, "target has no token");
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

PairData::PairData(std::vector<Pair> training, std::vector<Pair> validation, int64_t end, int64_t context,
                   int64_t batch, uint64_t seed, std::optional<int64_t> start)
    : RowsDataset(batch, seed),
      training_(std::move(training)),
      validation_(std::move(validation)),
      end_(end),
      start_(start.value_or(end)),
      context_(context) {
  Checker checker("data");
  require_sizes(checker, context, batch);
  require_pairs(checker, "training", training_);
  require_pairs(checker, "validation", validation_);
  checker.require(!training_.empty(), "there are no pairs to train on");
  checker.require(!validation_.empty(), "there are no pairs to validate with");
  checker.require(end >= 0 && start_ >= 0,
                  "end is " + std::to_string(end) + " and start " + std::to_string(start_) + ", must not be negative");
  checker.done();
}

int64_t PairData::length_of(int64_t row) const { return std::ssize(training_[static_cast<size_t>(row)].source); }

models::Batch PairData::batch_of(bool training, std::span<const int64_t> which) const {
  const std::vector<Pair>& from = training ? training_ : validation_;
  models::Batch batch;
  batch.sequences = static_cast<int64_t>(which.size());
  for (int64_t n : which) {
    batch.source_lengths.push_back(std::min<int64_t>(static_cast<int64_t>(from[n].source.size()), context_));
    batch.lengths.push_back(std::min<int64_t>(static_cast<int64_t>(from[n].target.size()) + 1, context_));
  }
  batch.source_length =
      padded_length(*std::max_element(batch.source_lengths.begin(), batch.source_lengths.end()), context_);
  batch.length = padded_length(*std::max_element(batch.lengths.begin(), batch.lengths.end()), context_);
  batch.source.assign(static_cast<size_t>(batch.sequences * batch.source_length), 0);
  batch.tokens.assign(static_cast<size_t>(batch.sequences * batch.length), end_);
  batch.targets.assign(batch.tokens.size(), ops::kIgnoreIndex);
  for (size_t b = 0; b < which.size(); ++b) {
    const std::vector<int64_t>& source = from[which[b]].source;
    const std::vector<int64_t>& target = from[which[b]].target;
    const auto row = static_cast<int64_t>(b), shown = batch.lengths[b] - 1;
    std::copy_n(source.begin(), batch.source_lengths[b], batch.source.begin() + row * batch.source_length);
    batch.tokens[static_cast<size_t>(row * batch.length)] = start_;
    std::copy_n(target.begin(), shown, batch.tokens.begin() + row * batch.length + 1);
    const auto wanted = batch.targets.begin() + row * batch.length;
    std::copy_n(target.begin(), shown, wanted);
    wanted[shown] = shown < static_cast<int64_t>(target.size()) ? target[shown] : end_;
  }
  return batch;
}

std::string PairData::describe() const {
  return std::to_string(training_.size()) + " pairs to train on, " + std::to_string(validation_.size()) +
         " to validate";
}

int64_t edit_distance(std::span<const int64_t> a, std::span<const int64_t> b) {
  std::vector<int64_t> row(b.size() + 1);  // of the first n of a to each beginning of b
  std::iota(row.begin(), row.end(), 0);
  for (size_t n = 1; n <= a.size(); ++n) {
    int64_t diagonal = std::exchange(row[0], static_cast<int64_t>(n));
    for (size_t m = 1; m <= b.size(); ++m) {
      const int64_t changed = diagonal + (a[n - 1] != b[m - 1]);
      diagonal = row[m];
      row[m] = std::min({changed, row[m] + 1, row[m - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace attn::train
