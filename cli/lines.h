// Lines of text from a file, a pipe or a terminal.
#pragma once

#include <chrono>
#include <string>

#include "attn/cluster.h"
#include "attn/core_lines.h"

namespace cli {

/// The lines of a file, a pipe, a terminal or "-" (standard input), each as soon as it is complete, cut as by
/// attn::LineCutter.
class Lines {
 public:
  explicit Lines(const std::string& path);
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  ~Lines();
  /// The next line without its break; false at the end and after a signal. Throws Error for a line that is not UTF-8.
  bool next(std::string& line);
  /// True if next() returns without waiting, now or within `most`.
  bool ready(std::chrono::milliseconds most = {});
  /// The line that next() returned last, as errors name it: "lines.txt, line 3".
  std::string where() const { return cutter_.where(); }

 private:
  /// Reads what is available, for which it waits at most so long. False if nothing was read.
  bool read_more(std::chrono::milliseconds most);
  std::string path_;
  attn::LineCutter cutter_;
  int file_;
};

/// The lines of standard input for all ranks of a job: rank 0 reads them, and every rank gets the same.
class SharedLines {
 public:
  explicit SharedLines(attn::cluster::Communicator& ranks) : ranks_(ranks), lines_("-") {}
  /// As Lines::next(); every rank calls it. Ranks wait for a line for as long as the user needs, whatever the limit of
  /// a wait is. Throws RanksError, or on rank 0 what Lines::next() throws.
  bool next(std::string& line);

 private:
  attn::cluster::Communicator& ranks_;
  Lines lines_;
};

}  // namespace cli
