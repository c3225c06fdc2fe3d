// Files of sentences with classes.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

#include "attn/train_data.h"
#include "io/json.h"
#include "train/columns.h"
#include "train/labels.h"

namespace attn::train {
namespace {

/// The number, if `label` is written as one is: no "01", no "+1".
std::optional<int64_t> as_number(const std::string& label) {
  int64_t value = 0;
  const char* end = label.data() + label.size();
  const auto [stop, error] = std::from_chars(label.data(), end, value);
  const bool whole = error == std::errc() && stop == end && std::to_string(value) == label;
  return whole ? std::optional(value) : std::nullopt;
}

}  // namespace

bool is_labelled(std::string_view path) {
  return path.ends_with(".tsv") || path.ends_with(".csv") || path.ends_with(".jsonl");
}

std::vector<LabelledText> read_labelled(const std::string& path, bool numbers) {
  const std::vector<Column> columns = {{"text", ColumnKind::text, {"sentence", "sentence1"}},
                                       {"label", numbers ? ColumnKind::number : ColumnKind::label, {"score"}},
                                       {"text_pair", ColumnKind::text, {"sentence2"}, Presence::named}};
  std::vector<LabelledText> rows;
  for (ColumnsRow& row : read_columns(path, columns)) {
    std::string &text = row.fields[0], &label = row.fields[1];
    if (text.empty()) fail_at(path, row.line, "the text is empty");
    if (!models::is_label(label))
      fail_at(path, row.line, "the label must be 1 to 256 bytes of printable UTF-8, not " + io::in_quotes(label));
    rows.push_back({std::move(text), std::move(label), row.line, std::move(row.fields[2])});
  }
  return rows;
}

std::vector<std::string> classes_of(std::span<const LabelledText> rows, int64_t least) {
  std::set<std::string> names;
  for (const LabelledText& row : rows) names.insert(row.label);
  std::vector<std::string> classes(names.begin(), names.end());
  std::vector<int64_t> numbers;
  for (const std::string& name : classes)
    if (const auto number = as_number(name)) numbers.push_back(*number);
  if (numbers.empty() || numbers.size() < classes.size()) return classes;
  std::sort(numbers.begin(), numbers.end());
  if (const int64_t count = std::max<int64_t>(least, static_cast<int64_t>(numbers.size()));
      numbers.front() >= 0 && numbers.back() < count) {
    numbers.clear();
    for (int64_t n = 0; n < count; ++n) numbers.push_back(n);
  }
  classes.clear();
  for (int64_t number : numbers) classes.push_back(std::to_string(number));
  return classes;
}

namespace {

/// The tokens of a row, of one text or two.
Labelled encoded(const LabelledText& row, const text::Tokenizer& tokenizer, const EncodingOptions& options) {
  const text::EncodeOptions how = {.max_length = options.max_length};
  text::Encoding encoding;
  try {
    encoding = row.pair.empty() ? tokenizer.encode(row.text, how) : tokenizer.encode_pair(row.text, row.pair, how);
  } catch (const Error& error) {
    fail_at(options.source, row.line, error.reasons().front());
  }
  if (encoding.ids.empty()) fail_at(options.source, row.line, "the text has no word");
  if (!options.with_types) encoding.token_type_ids.clear();
  return {.tokens = std::move(encoding.ids),
          .token_type_ids = std::move(encoding.token_type_ids),
          .truncated = encoding.truncated};
}

}  // namespace

ClassIndex::ClassIndex(std::span<const std::string> classes) : classes_(classes.begin(), classes.end()) {
  for (size_t n = 0; n < classes_.size(); ++n) places_.emplace(classes_[n], static_cast<int64_t>(n));
}

int64_t ClassIndex::of(const std::string& label, const std::string& source, int64_t line) const {
  const auto place = places_.find(label);
  if (place != places_.end()) return place->second;
  constexpr size_t kShown = 20;
  std::string known;
  for (size_t n = 0; n < std::min(classes_.size(), kShown); ++n) known += (n ? ", " : "") + classes_[n];
  fail_at(source, line,
          "unknown class " + io::in_quotes(label) + "; the model's are: " + known +
              (classes_.size() > kShown ? ", ..." : ""));
}

std::vector<Labelled> encode_labelled(std::span<const LabelledText> rows, const text::Tokenizer& tokenizer,
                                      std::span<const std::string> classes, const EncodingOptions& options) {
  const ClassIndex index(classes);
  std::vector<Labelled> result;
  for (const LabelledText& row : rows) {
    const int64_t label = index.of(row.label, options.source, row.line);
    result.push_back(encoded(row, tokenizer, options));
    result.back().label = label;
  }
  return result;
}

double number_in(const std::string& text, const std::string& source, int64_t line) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value))
    fail_at(source, line, "the label must be a finite number, not " + io::in_quotes(text));
  return value;
}

std::vector<Labelled> encode_numbers(std::span<const LabelledText> rows, const text::Tokenizer& tokenizer,
                                     const EncodingOptions& options) {
  std::vector<Labelled> result;
  for (const LabelledText& row : rows) {
    result.push_back(encoded(row, tokenizer, options));
    result.back().value = number_in(row.label, options.source, row.line);
  }
  return result;
}

}  // namespace attn::train
