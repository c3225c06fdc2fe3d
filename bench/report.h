// What is printed and written: a table for people, CSV and JSON lines with complete rows for programs.
#pragma once

#include <benchmark/benchmark.h>

#include <fstream>
#include <string>
#include <vector>

#include "measure.h"

namespace bench {

/// Google Benchmark chooses and runs the workloads; the rows come here directly, whole.
class Report : public benchmark::BenchmarkReporter {
 public:
  /// An empty file name writes no file. Throws if a file cannot be written.
  Report(std::vector<int> threads, int repeats, const std::string& csv_file, const std::string& json_file);

  void add(const Row& row);
  int wrong_rows() const { return wrong_rows_; }

  /// Prints the machine, its peaks and the heads of the columns.
  bool ReportContext(const Context&) override;
  void ReportRuns(const std::vector<Run>&) override {}

 private:
  void write_files(const Row& row);

  std::vector<int> threads_;
  int repeats_;
  std::ofstream csv_, json_;
  Row full_;  // the last row without options, to which the rows with one are compared
  int rows_ = 0;
  int wrong_rows_ = 0;
};

}  // namespace bench
