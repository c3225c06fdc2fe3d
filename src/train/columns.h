// columns: files of rows, as lines with tabs, RFC 4180 or lines of JSON.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace attn::train {

/// What the fields of a column are: any text; a label, without spaces around it, which JSON may give as a whole number;
/// a number, which JSON may give as any number.
enum class ColumnKind { text, label, number };

/// Whether a file must have a column: always; perhaps, by its name alone; or perhaps, and without names as the field
/// after the required ones.
enum class Presence { required, named, trailing };

/// A column, by its name in a first row or in objects of .jsonl.
struct Column {
  std::string_view name;
  ColumnKind kind = ColumnKind::text;
  std::vector<std::string_view> aliases = {};  ///< other names that mean it
  Presence presence = Presence::required;
};

/// The fields of a row in the order of the columns, "" for one that the file lacks, and the line that the row begins
/// in.
struct ColumnsRow {
  std::vector<std::string> fields;
  int64_t line = 0;
};

/// .csv; .jsonl; any other name, or "-" for the standard input: lines with tabs. A first row in which all required
/// columns are named says where they are; without one they are the fields of each row, where of two columns of a line
/// the first goes up to the last tab. Lines are as a LineCutter has them; empty ones are no rows. Throws Error with the
/// file and the line, and where there is no row.
std::vector<ColumnsRow> read_columns(const std::string& path, std::span<const Column> columns);

[[noreturn]] void fail_at(const std::string& path, int64_t line, const std::string& reason);

}  // namespace attn::train
