#include "report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <thread>

#include "commit.h"

namespace bench {
namespace {

#if defined(__clang__)
constexpr const char* kCompiler = "clang " __clang_version__;
#else
constexpr const char* kCompiler = "g++ " __VERSION__;
#endif

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown CPU";
}

/// In quotes where it has a comma, as RFC 4180 wants it.
std::string csv_field(const std::string& text) { return text.find(',') == std::string::npos ? text : '"' + text + '"'; }

}  // namespace

Cell::Cell(std::string_view column_name, double value, const char* format) : column(column_name), number(true) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  if (std::isfinite(value)) text = buffer;
}

Report::Report(const std::string& mode, const std::string& csv_file) {
  const std::string about = "# program: attn_bench" + (mode.empty() ? "" : " " + mode) + "\n# cpu: " + cpu_model() +
                            "\n# cores: " + std::to_string(std::thread::hardware_concurrency()) +
                            "\n# compiler: " + kCompiler + "\n# commit: " + kCommit + "\n";
  std::printf("%s\n", about.c_str());
  if (csv_file.empty()) return;
  csv_.open(csv_file);
  csv_ << about << std::flush;
  if (!csv_) throw std::runtime_error("cannot write " + csv_file);
}

void Report::add(const std::vector<Cell>& row) {
  const auto print = [&](const auto& text_of) {
    for (size_t n = 0; n < row.size(); ++n) {
      widths_[n] = std::max<size_t>({widths_[n], row[n].column.size(), text_of(row[n]).size(), 7});
      const int width = static_cast<int>(widths_[n]);
      std::printf("%*s%s", row[n].number ? width : -width, text_of(row[n]).c_str(), n + 1 < row.size() ? "  " : "\n");
      if (csv_.is_open()) csv_ << (n ? "," : "") << csv_field(text_of(row[n]));
    }
    std::fflush(stdout);
    if (csv_.is_open()) csv_ << std::endl;
  };
  if (widths_.empty()) {
    for (const Cell& cell : row) widths_.push_back(cell.text.size());
    print([](const Cell& cell) { return cell.column; });
  }
  print([](const Cell& cell) { return cell.text; });
}

}  // namespace bench
