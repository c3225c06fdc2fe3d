// Files of sentences with classes.
#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "attn/train.h"
#include "io/json.h"
#include "train/columns.h"

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

std::vector<LabelledText> read_labelled(const std::string& path) {
  std::vector<LabelledText> rows;
  for (TwoColumns& row : read_columns(path, {"text", "label", "sentence"})) {
    if (row.first.empty()) fail_at(path, row.line, "the text is empty");
    if (!models::is_label(row.second))
      fail_at(path, row.line, "the label must be 1 to 256 bytes of printable UTF-8, not " + io::in_quotes(row.second));
    rows.push_back({std::move(row.first), std::move(row.second), row.line});
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

std::vector<Labelled> encode_labelled(std::span<const LabelledText> rows, const text::Tokenizer& tokenizer,
                                      std::span<const std::string> classes, const std::string& source) {
  std::map<std::string_view, int64_t> places;
  for (const std::string& name : classes) places.emplace(name, static_cast<int64_t>(places.size()));
  std::vector<Labelled> result;
  for (const LabelledText& row : rows) {
    const auto place = places.find(row.label);
    if (place == places.end()) {
      std::string known;
      for (size_t n = 0; n < std::min<size_t>(classes.size(), 20); ++n) known += (n ? ", " : "") + classes[n];
      fail_at(source, row.line,
              "unknown class " + io::in_quotes(row.label) + "; the model's are: " + known +
                  (classes.size() > 20 ? ", ..." : ""));
    }
    try {
      result.push_back({tokenizer.encode(row.text).ids, place->second});
    } catch (const Error& error) {
      fail_at(source, row.line, error.reasons().front());
    }
    if (result.back().tokens.empty()) fail_at(source, row.line, "the text has no word");
  }
  return result;
}

}  // namespace attn::train
