// A table that is printed as text, as CSV and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cli {

struct Column {
  std::string name;        ///< in CSV and JSON; empty: the column is in the text alone
  std::string text = {};   ///< the format of a cell in the text, as fmt takes it: "{:>10.3f}"; empty: not in the text
  std::string title = {};  ///< above the column in the text; empty: the name
  /// The format of a cell in CSV; absent: not in CSV; "": 9 digits of a number, quotes around a string, lists with
  /// spaces between, nothing for NaN.
  std::optional<std::string> csv = "";
};

struct Table {
  using Cell = nlohmann::ordered_json;  ///< a number, a string or a list
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows = {};

  /// A line of titles and a line a row. NaN and null are "-", the elements of a list have ", " between.
  std::string text() const;
  /// The same in Markdown; a column is right-aligned where its format has ">".
  std::string markdown() const;
  std::string csv() const;
  /// A list with an object a row. NaN is null.
  Cell json() const;
  /// In the format of an option --output: "json", "csv", "md", or "text".
  std::string in(std::string_view format) const;
};

/// JSON as files have it, indented; bytes that are not UTF-8 become U+FFFD.
std::string indented(const Table::Cell& value);
/// A field of CSV, in quotes.
std::string quoted(const std::string& text);

}  // namespace cli
