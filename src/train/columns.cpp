// Files of two columns: lines with tabs, RFC 4180, lines of JSON.
#include "train/columns.h"

#include <algorithm>
#include <array>

#include "attn/core_lines.h"
#include "attn/io.h"
#include "io/json.h"

namespace attn::train {
namespace {

/// The fields of one row, and the line that it begins in.
struct TextRow {
  std::vector<std::string> fields;
  int64_t line = 0;
};

/// As messages name it.
std::string named(const std::string& path) { return path == "-" ? "standard input" : path; }

/// Calls use(line, number) for every line that is not empty.
template <class Use>
void for_each_line(std::string_view text, const std::string& path, const Use& use) {
  LineCutter lines(named(path));
  lines.feed(text);
  lines.finish();
  while (const std::optional<std::string_view> line = lines.next())
    if (!line->empty()) use(*line, lines.number());
}

std::vector<TextRow> rows_of_tsv(std::string_view text, const std::string& path) {
  std::vector<TextRow> rows;
  for_each_line(text, path, [&](std::string_view line, int64_t number) {
    TextRow row{{}, number};
    for (size_t end = line.find('\t'); end != std::string_view::npos; end = line.find('\t')) {
      row.fields.emplace_back(line.substr(0, end));
      line.remove_prefix(end + 1);
    }
    row.fields.emplace_back(line);
    rows.push_back(std::move(row));
  });
  return rows;
}

/// RFC 4180: a field may be quoted, and then holds commas and line breaks, and quotes written twice.
class Csv {
 public:
  Csv(std::string_view text, const std::string& path) : text_(text), path_(path) {
    for_each_line(text, path, [](std::string_view, int64_t) {});  // which are UTF-8
    if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
  }

  std::vector<TextRow> rows() {
    std::vector<TextRow> rows;
    while (at_ < text_.size()) {
      TextRow row{{}, line_};
      do row.fields.push_back(text_.substr(at_, 1) == "\"" ? quoted() : plain());
      while (take(','));
      take('\r');
      if (at_ < text_.size() && !take('\n')) fail_at(path_, line_, "a comma must follow the closing quote of a field");
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
    fail_at(path_, begin, "the quotes of a field are not closed");
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

/// In lower case, an alias as what it means.
std::string column_name(const std::string& field, const ColumnNames& names) {
  std::string name = trimmed(field);
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return !name.empty() && name == names.alias ? std::string(names.first) : name;
}

/// True for a first row that names columns, GLUE's for example: every field is such a name.
bool is_header(const TextRow& row, const ColumnNames& names) {
  const std::array<std::string_view, 5> known = {names.first, names.second, "index", "idx", "id"};
  return std::all_of(row.fields.begin(), row.fields.end(), [&](const std::string& field) {
    return std::find(known.begin(), known.end(), column_name(field, names)) != known.end();
  });
}

/// Where the two are in a row of `count` fields.
struct Places {
  size_t first = 0, second = 1, count = 2;
};

Places places_of(const TextRow& header, const std::string& path, const ColumnNames& names) {
  std::vector<std::string> fields;
  for (const std::string& field : header.fields) fields.push_back(column_name(field, names));
  const auto place = [&](std::string_view name) {
    if (std::count(fields.begin(), fields.end(), name) != 1)
      fail_at(path, header.line, "one of the column names must be '" + std::string(name) + "'");
    return static_cast<size_t>(std::find(fields.begin(), fields.end(), name) - fields.begin());
  };
  return {place(names.first), place(names.second), fields.size()};
}

/// By the columns' names if the first row has them. Without names the first field of a line with tabs goes up to the
/// last one.
std::vector<TwoColumns> by_places(std::vector<TextRow> rows, const std::string& path, const ColumnNames& names,
                                  bool tabs) {
  std::vector<TwoColumns> result;
  const bool header = !rows.empty() && is_header(rows.front(), names);
  const Places places = header ? places_of(rows.front(), path, names) : Places();
  for (size_t n = header; n < rows.size(); ++n) {
    auto& [fields, line] = rows[n];
    if (tabs && !header && fields.size() > 2) {
      for (size_t k = 1; k + 1 < fields.size(); ++k) fields[0] += "\t" + fields[k];
      fields = {std::move(fields.front()), std::move(fields.back())};
    }
    if (fields.size() != places.count)
      fail_at(path, line,
              header ? "must have " + std::to_string(places.count) + " fields as the first row, not " +
                           std::to_string(fields.size())
                     : "must be " + std::string(names.first) + ", a " + (tabs ? "tab" : "comma") + ", and a " +
                           std::string(names.second));
    result.push_back({std::move(fields[places.first]), trimmed(fields[places.second]), line});
  }
  return result;
}

std::vector<TwoColumns> by_json(std::string_view text, const std::string& path, const ColumnNames& names) {
  std::vector<TwoColumns> result;
  for_each_line(text, path, [&](std::string_view line, int64_t number) {
    const io::Json object = io::parse_json("data", named(path) + ", line " + std::to_string(number), line);
    const auto field = [&](std::string_view name) {
      const auto found = object.is_object() ? object.find(name) : object.end();
      return found == object.end() ? io::Json() : *found;
    };
    const io::Json first = field(names.first).is_null() ? field(names.alias) : field(names.first);
    const io::Json second = field(names.second);
    if (!first.is_string() || !(second.is_string() || second.is_number_integer())) {
      const std::string other(names.second);
      fail_at(path, number,
              "must be an object {\"" + std::string(names.first) + "\": \"...\", \"" + other + "\": ...}, the " +
                  other + " a text or a whole number");
    }
    result.push_back({first, second.is_string() ? second.get<std::string>() : second.dump(), number});
  });
  return result;
}

}  // namespace

void fail_at(const std::string& path, int64_t line, const std::string& reason) {
  throw Error("data", {named(path) + ", line " + std::to_string(line) + ": " + reason});
}

std::vector<TwoColumns> read_columns(const std::string& path, const ColumnNames& names) {
  const std::string text = io::read_input(path);
  std::vector<TwoColumns> rows;
  if (path.ends_with(".jsonl")) rows = by_json(text, path, names);
  else if (path.ends_with(".csv")) rows = by_places(Csv(text, path).rows(), path, names, false);
  else rows = by_places(rows_of_tsv(text, path), path, names, true);
  if (rows.empty()) throw Error("data", {named(path) + " has no rows"});
  return rows;
}

}  // namespace attn::train
