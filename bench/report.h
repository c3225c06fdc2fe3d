// Rows of results: aligned text on standard output, and CSV in a file.
#pragma once

#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

/// One value of a row. A number that is not finite is an empty cell.
struct Cell {
  Cell(std::string_view column_name, std::string_view value) : column(column_name), text(value) {}
  Cell(std::string_view column_name, double value, const char* format = "%.4g");
  Cell(std::string_view column_name, int64_t value) : Cell(column_name, static_cast<double>(value), "%.0f") {}
  std::string column, text;
  bool number = false;
};

class Report {
 public:
  /// The file begins with comments (#) that name the mode, CPU, compiler and commit; an empty name writes no file.
  /// Throws std::runtime_error if the file cannot be written.
  Report(const std::string& mode, const std::string& csv_file);
  /// All rows of a report have the same columns. Texts have no commas.
  void add(const std::vector<Cell>& row);

 private:
  std::ofstream csv_;
  std::vector<size_t> widths_;
};

}  // namespace bench
