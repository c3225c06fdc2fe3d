// columns: files of two columns, as lines with tabs, RFC 4180 or lines of JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace attn::train {

/// What a first row or the objects of .jsonl call the two columns; `alias` is another name of the first.
struct ColumnNames {
  std::string_view first, second, alias = {};
};

/// The two fields of a row, and the line that it begins in.
struct TwoColumns {
  std::string first, second;
  int64_t line = 0;
};

/// .csv; .jsonl, where the second field may be a whole number; any other name, or "-" for the standard input: a line
/// is both fields with a tab between, the last if there are several. The second field is without spaces around it.
/// Lines are as a LineCutter has them; empty ones are no rows.
/// Throws Error with the file and the line, and where there is no row.
std::vector<TwoColumns> read_columns(const std::string& path, const ColumnNames& names);

[[noreturn]] void fail_at(const std::string& path, int64_t line, const std::string& reason);

}  // namespace attn::train
