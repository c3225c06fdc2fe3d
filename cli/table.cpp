#include "table.h"

#include <fmt/core.h>

#include <cmath>

#include "output.h"

namespace cli {
namespace {

using Cell = Table::Cell;

bool is_missing(const Cell& cell) {
  return cell.is_null() || (cell.is_number_float() && std::isnan(cell.get<double>()));
}

/// "{:>10}" of "{:>10.3f}".
std::string without_digits(const std::string& format) {
  const size_t end = format.find('}');
  return format.substr(0, std::min(format.find('.'), end)) + format.substr(end);
}

std::string formatted(const std::string& format, const Cell& cell, const char* between) {
  const auto runtime = fmt::runtime(format);
  if (cell.is_number_float() || (cell.is_number() && format.find('.') < format.size()))
    return fmt::format(runtime, cell.get<double>());
  if (cell.is_number_integer()) return fmt::format(runtime, cell.get<int64_t>());
  if (cell.is_array()) return fmt::format(runtime, joined(cell.get<std::vector<std::string>>(), between));
  return fmt::format(runtime, cell.get<std::string>());
}

std::string text_cell(const Column& column, const Cell& cell) {
  return is_missing(cell) ? fmt::format(fmt::runtime(without_digits(column.text)), "-")
                          : formatted(column.text, cell, ", ");
}

std::string csv_cell(const Column& column, const Cell& cell) {
  if (is_missing(cell)) return "";
  if (!column.csv->empty()) return formatted(*column.csv, cell, " ");
  if (cell.is_string()) return quoted(cell.get<std::string>());
  return formatted(cell.is_number_float() ? "{:.9g}" : "{}", cell, " ");
}

}  // namespace

std::string Table::text() const {
  std::string text;
  for (const Column& column : columns)
    if (!column.text.empty())
      text += fmt::format(fmt::runtime(without_digits(column.text)), column.title.empty() ? column.name : column.title);
  text += "\n";
  for (const auto& row : rows) {
    for (size_t n = 0; n < columns.size(); ++n)
      if (!columns[n].text.empty()) text += text_cell(columns[n], row[n]);
    text += "\n";
  }
  return text;
}

std::string Table::markdown() const {
  std::string titles = "|", ruler = "|", lines;
  for (const Column& column : columns) {
    if (column.text.empty()) continue;
    titles += " " + (column.title.empty() ? column.name : column.title) + " |";
    ruler += column.text.find('>') < column.text.size() ? " ---: |" : " --- |";
  }
  for (const auto& row : rows) {
    lines += "|";
    for (size_t n = 0; n < columns.size(); ++n)
      if (!columns[n].text.empty()) lines += " " + text_cell(columns[n], row[n]) + " |";
    lines += "\n";
  }
  return titles + "\n" + ruler + "\n" + lines;
}

std::string Table::csv() const {
  std::string text;
  const auto add_line = [&](const auto& field) {
    bool is_first = true;
    for (size_t n = 0; n < columns.size(); ++n) {
      if (columns[n].name.empty() || !columns[n].csv) continue;
      text += (is_first ? "" : ",") + field(n);
      is_first = false;
    }
    text += "\n";
  };
  add_line([&](size_t n) { return columns[n].name; });
  for (const auto& row : rows) add_line([&](size_t n) { return csv_cell(columns[n], row[n]); });
  return text;
}

Cell Table::json() const {
  Cell all = Cell::array();
  for (const auto& row : rows) {
    Cell object = Cell::object();
    for (size_t n = 0; n < columns.size(); ++n)
      if (!columns[n].name.empty()) object[columns[n].name] = row[n];
    all.push_back(std::move(object));
  }
  return all;
}

std::string Table::in(std::string_view format) const {
  return format == "json" ? indented(json()) : format == "csv" ? csv() : format == "md" ? markdown() : text();
}

std::string indented(const Cell& value) { return value.dump(2, ' ', false, Cell::error_handler_t::replace) + "\n"; }

std::string quoted(const std::string& text) {
  std::string field = "\"";
  for (const char c : text) field += c == '"' ? "\"\"" : std::string(1, c);
  return field + "\"";
}

}  // namespace cli
