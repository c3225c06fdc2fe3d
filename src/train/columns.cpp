// Files of rows: lines with tabs, RFC 4180, lines of JSON.
#include "train/columns.h"

#include <algorithm>

#include "attn/core_lines.h"
#include "attn/io.h"
#include "io/json.h"

namespace attn::train {
namespace {

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

std::vector<ColumnsRow> rows_of_tsv(std::string_view text, const std::string& path) {
  std::vector<ColumnsRow> rows;
  for_each_line(text, path, [&](std::string_view line, int64_t number) {
    ColumnsRow row{{}, number};
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

  std::vector<ColumnsRow> rows() {
    std::vector<ColumnsRow> rows;
    while (at_ < text_.size()) {
      ColumnsRow row{{}, line_};
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

std::string lower_case(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

bool is_required(const Column& column) { return column.presence == Presence::required; }

/// The column that a field of a first row names; -1 for none, -2 for one that GLUE's files have beside these.
int64_t column_named(const std::string& field, std::span<const Column> columns) {
  const std::string name = lower_case(trimmed(field));
  for (size_t n = 0; n < columns.size(); ++n)
    if (name == columns[n].name ||
        std::find(columns[n].aliases.begin(), columns[n].aliases.end(), name) != columns[n].aliases.end())
      return static_cast<int64_t>(n);
  return name == "index" || name == "idx" || name == "id" ? -2 : -1;
}

/// Where the columns are in a row of `count` fields; -1 for one that is not there.
struct Places {
  std::vector<int64_t> of;
  size_t count = 0;
  bool named = false;
};

/// Of the required columns, in their order, and of a trailing one if the first row has a field for it.
Places places_without_names(size_t fields, std::span<const Column> columns) {
  Places places;
  for (const Column& column : columns) {
    const bool is_there = is_required(column) || (column.presence == Presence::trailing && places.count < fields);
    places.of.push_back(is_there ? static_cast<int64_t>(places.count++) : -1);
  }
  return places;
}

/// By the first row: it names columns if all of its fields do, as GLUE's for example, or if it names all required ones.
Places places_of(const ColumnsRow& first, const std::string& path, std::span<const Column> columns) {
  std::vector<int64_t> named;
  for (const std::string& field : first.fields) named.push_back(column_named(field, columns));
  Places places{std::vector<int64_t>(columns.size(), -1), first.fields.size(), true};
  bool has_all = true;
  for (size_t n = 0; n < columns.size(); ++n) {
    const auto column = static_cast<int64_t>(n);
    has_all = has_all && (!is_required(columns[n]) || std::count(named.begin(), named.end(), column) > 0);
  }
  if (!has_all && std::count(named.begin(), named.end(), -1) > 0)
    return places_without_names(first.fields.size(), columns);
  for (size_t n = 0; n < columns.size(); ++n) {
    const auto column = static_cast<int64_t>(n);
    const auto count = std::count(named.begin(), named.end(), column);
    if (count > 1 || (count == 0 && is_required(columns[n])))
      fail_at(path, first.line, "one of the column names must be '" + std::string(columns[n].name) + "'");
    if (count == 1) places.of[n] = std::find(named.begin(), named.end(), column) - named.begin();
  }
  return places;
}

/// "text, a tab, and a label".
std::string form_of(std::span<const Column> columns, bool tabs) {
  std::vector<std::string> names;
  for (const Column& column : columns)
    if (is_required(column)) names.emplace_back(column.name);
  std::string form;
  for (size_t n = 0; n < names.size(); ++n)
    form +=
        (n ? (tabs ? ", a tab, " : ", a comma, ") : "") + (n && n + 1 == names.size() ? "and a " + names[n] : names[n]);
  return form;
}

std::vector<ColumnsRow> by_places(std::vector<ColumnsRow> rows, const std::string& path,
                                  std::span<const Column> columns, bool tabs) {
  if (rows.empty()) return rows;
  std::vector<ColumnsRow> result;
  const Places places = places_of(rows.front(), path, columns);
  for (size_t n = places.named; n < rows.size(); ++n) {
    auto& [fields, line] = rows[n];
    if (tabs && !places.named && places.count == 2 && fields.size() > 2) {
      for (size_t k = 1; k + 1 < fields.size(); ++k) fields[0] += "\t" + fields[k];
      fields = {std::move(fields.front()), std::move(fields.back())};
    }
    if (fields.size() != places.count)
      fail_at(path, line,
              places.named ? "must have " + std::to_string(places.count) + " fields as the first row, not " +
                                 std::to_string(fields.size())
                           : "must be " + form_of(columns, tabs));
    ColumnsRow row{std::vector<std::string>(columns.size()), line};
    for (size_t c = 0; c < columns.size(); ++c) {
      if (places.of[c] < 0) continue;
      std::string& field = fields[static_cast<size_t>(places.of[c])];
      row.fields[c] = columns[c].kind == ColumnKind::text ? std::move(field) : trimmed(field);
    }
    result.push_back(std::move(row));
  }
  return result;
}

/// The field of an object; null where it has none.
io::Json field_of(const io::Json& object, const Column& column) {
  if (!object.is_object()) return {};
  std::vector<std::string_view> names = {column.name};
  names.insert(names.end(), column.aliases.begin(), column.aliases.end());
  for (const std::string_view name : names)
    if (const auto found = object.find(name); found != object.end()) return *found;
  return {};
}

bool is_of_kind(const io::Json& value, ColumnKind kind) {
  return value.is_string() || (kind == ColumnKind::label && value.is_number_integer()) ||
         (kind == ColumnKind::number && value.is_number());
}

/// "{"text": "...", "label": ...}, the label a text or a whole number".
std::string object_form(std::span<const Column> columns) {
  std::string form, rest;
  for (const Column& column : columns) {
    if (!is_required(column)) continue;
    const std::string name(column.name);
    form += (form.empty() ? "" : ", ") + ("\"" + name + "\": " + (column.kind == ColumnKind::text ? "\"...\"" : "..."));
    if (column.kind == ColumnKind::label) rest += ", the " + name + " a text or a whole number";
    if (column.kind == ColumnKind::number) rest += ", the " + name + " a number";
  }
  return "{" + form + "}" + rest;
}

std::vector<ColumnsRow> by_json(std::string_view text, const std::string& path, std::span<const Column> columns) {
  std::vector<ColumnsRow> result;
  for_each_line(text, path, [&](std::string_view line, int64_t number) {
    const io::Json object = io::parse_json("data", named(path) + ", line " + std::to_string(number), line);
    ColumnsRow row{{}, number};
    for (const Column& column : columns) {
      const io::Json value = field_of(object, column);
      if (!is_of_kind(value, column.kind) && !(!is_required(column) && value.is_null()))
        fail_at(path, number, "must be an object " + object_form(columns));
      row.fields.push_back(value.is_null() ? "" : value.is_string() ? value.get<std::string>() : value.dump());
    }
    result.push_back(std::move(row));
  });
  return result;
}

}  // namespace

void fail_at(const std::string& path, int64_t line, const std::string& reason) {
  throw Error("data", {named(path) + ", line " + std::to_string(line) + ": " + reason});
}

std::vector<ColumnsRow> read_columns(const std::string& path, std::span<const Column> columns) {
  const std::string text = io::read_input(path);
  std::vector<ColumnsRow> rows;
  if (path.ends_with(".jsonl")) rows = by_json(text, path, columns);
  else if (path.ends_with(".csv")) rows = by_places(Csv(text, path).rows(), path, columns, false);
  else rows = by_places(rows_of_tsv(text, path), path, columns, true);
  if (rows.empty()) throw Error("data", {named(path) + " has no rows"});
  return rows;
}

}  // namespace attn::train
