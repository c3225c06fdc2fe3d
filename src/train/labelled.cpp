// Files of sentences with classes: lines with tabs, RFC 4180, lines of JSON.
#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "attn/train.h"
#include "io/json.h"

namespace attn::train {
namespace {

/// The fields of one row, and the line that it begins in.
struct Row {
  std::vector<std::string> fields;
  int64_t line = 0;
};

[[noreturn]] void fail(const std::string& path, int64_t line, const std::string& reason) {
  throw Error("data", {path + ", line " + std::to_string(line) + ": " + reason});
}

/// Calls use(line, number) for every line that is not empty, without its line break.
template <class Use>
void for_each_line(std::string_view text, const Use& use) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) use(line, number);
  }
}

std::vector<Row> rows_of_tsv(std::string_view text) {
  std::vector<Row> rows;
  for_each_line(text, [&](std::string_view line, int64_t number) {
    Row row{{}, number};
    for (size_t begin = 0, end = 0; end < line.size(); begin = end + 1) {
      end = std::min(line.find('\t', begin), line.size());
      row.fields.emplace_back(line.substr(begin, end - begin));
    }
    if (line.ends_with('\t')) row.fields.emplace_back();
    rows.push_back(std::move(row));
  });
  return rows;
}

/// RFC 4180: a field may be quoted, and then holds commas and line breaks, and quotes written twice.
class Csv {
 public:
  Csv(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  std::vector<Row> rows() {
    std::vector<Row> rows;
    while (at_ < text_.size()) {
      Row row{{}, line_};
      do row.fields.push_back(text_.substr(at_, 1) == "\"" ? quoted() : plain());
      while (take(','));
      take('\r');
      if (at_ < text_.size() && !take('\n')) fail(path_, line_, "a comma must follow the closing quote of a field");
      ++line_;
      if (row.fields != std::vector<std::string>{""}) rows.push_back(std::move(row));
    }
    return rows;
  }

 private:
  bool take(char c) {
    const bool there = at_ < text_.size() && text_[at_] == c;
    at_ += there;
    return there;
  }

  std::string plain() {
    const size_t end = std::min(text_.find_first_of(",\n", at_), text_.size());
    std::string_view field = text_.substr(at_, end - at_);
    at_ = end;
    if (!text_.substr(end).starts_with(',') && field.ends_with('\r')) field.remove_suffix(1);
    return std::string(field);
  }

  std::string quoted() {
    const int64_t begin = line_;
    std::string field;
    for (++at_; at_ < text_.size(); ++at_) {
      if (take('"') && text_.substr(at_, 1) != "\"") return field;
      line_ += text_[at_] == '\n';
      field += text_[at_];
    }
    fail(path_, begin, "the quotes of a field are not closed");
  }

  std::string_view text_;
  const std::string& path_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

std::string trimmed(std::string_view field) {
  while (field.starts_with(' ')) field.remove_prefix(1);
  while (field.ends_with(' ')) field.remove_suffix(1);
  return std::string(field);
}

std::string column_name(const std::string& field) {
  std::string name = trimmed(field);
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return name == "sentence" ? "text" : name;
}

/// True for a first row that names columns, GLUE's for example: every field is such a name.
bool is_header(const Row& row) {
  constexpr std::array<std::string_view, 5> kNames = {"text", "label", "index", "idx", "id"};
  return std::all_of(row.fields.begin(), row.fields.end(), [&](const std::string& field) {
    return std::find(kNames.begin(), kNames.end(), column_name(field)) != kNames.end();
  });
}

/// Where text and label stand in a row of `count` fields.
struct Columns {
  size_t text = 0, label = 1, count = 2;
};

Columns columns_of(const Row& header, const std::string& path) {
  std::vector<std::string> names;
  for (const std::string& field : header.fields) names.push_back(column_name(field));
  const auto place = [&](const char* name) {
    if (std::count(names.begin(), names.end(), name) != 1)
      fail(path, header.line, std::string("of the columns' names one must be '") + name + "'");
    return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  return {place("text"), place("label"), names.size()};
}

/// Text and label of every row, by the columns' names if the first row has them. Without names the text of a line with
/// tabs goes up to the last one.
std::vector<LabelledText> by_columns(std::vector<Row> rows, const std::string& path, bool tabs) {
  std::vector<LabelledText> result;
  const bool header = !rows.empty() && is_header(rows.front());
  const Columns columns = header ? columns_of(rows.front(), path) : Columns();
  for (size_t n = header; n < rows.size(); ++n) {
    auto& [fields, line] = rows[n];
    if (tabs && !header && fields.size() > 2) {
      for (size_t k = 1; k + 1 < fields.size(); ++k) fields[0] += "\t" + fields[k];
      fields = {std::move(fields.front()), std::move(fields.back())};
    }
    if (fields.size() != columns.count)
      fail(path, line,
           header ? "must have " + std::to_string(columns.count) + " fields as the first row, not " +
                        std::to_string(fields.size())
                  : std::string("must be text, ") + (tabs ? "a tab" : "a comma") + ", and a label");
    result.push_back({std::move(fields[columns.text]), trimmed(fields[columns.label]), line});
  }
  return result;
}

std::vector<LabelledText> by_json(std::string_view text, const std::string& path) {
  std::vector<LabelledText> result;
  for_each_line(text, [&](std::string_view line, int64_t number) {
    const io::Json object = io::parse_json("data", path + ", line " + std::to_string(number), line);
    const auto field = [&](const char* name) {
      const auto found = object.is_object() ? object.find(name) : object.end();
      return found == object.end() ? io::Json() : *found;
    };
    const io::Json text_value = object.is_object() && object.contains("text") ? field("text") : field("sentence");
    const io::Json label = field("label");
    if (!text_value.is_string() || !(label.is_string() || label.is_number_integer()))
      fail(path, number, R"(must be an object {"text": "...", "label": ...}, the label a text or a whole number)");
    result.push_back({text_value, label.is_string() ? label.get<std::string>() : label.dump(), number});
  });
  return result;
}

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
  const std::string content = io::read_input(path);
  std::string_view text = content;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // a byte order mark, as spreadsheets write it
  std::vector<LabelledText> rows;
  if (path.ends_with(".jsonl")) rows = by_json(text, path);
  else if (path.ends_with(".csv")) rows = by_columns(Csv(text, path).rows(), path, false);
  else rows = by_columns(rows_of_tsv(text), path, true);
  if (rows.empty()) throw Error("data", {path + " has no rows"});
  for (const LabelledText& row : rows) {
    if (row.text.empty()) fail(path, row.line, "the text is empty");
    if (!models::is_label(row.label))
      fail(path, row.line, "the label must be 1 to 256 bytes of printable UTF-8, not " + io::in_quotes(row.label));
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
      fail(source, row.line,
           "the model has no class " + io::in_quotes(row.label) + "; its classes: " + known +
               (classes.size() > 20 ? ", ..." : ""));
    }
    try {
      result.push_back({tokenizer.encode_marked(row.text).ids, place->second});
    } catch (const Error& error) {
      fail(source, row.line, error.reasons().front());
    }
    if (result.back().tokens.empty()) fail(source, row.line, "the text has no word");
  }
  return result;
}

}  // namespace attn::train
