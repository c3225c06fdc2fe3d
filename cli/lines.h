// Lines of text from a file, a pipe or a terminal.
#pragma once

#include <string>

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
  /// True if next() returns without waiting.
  bool ready();
  /// The line that next() returned last, as errors name it: "lines.txt, line 3".
  std::string where() const { return cutter_.where(); }

 private:
  /// Reads what is available; waits for it only if `wait`. False if nothing was read.
  bool read_more(bool wait);
  std::string path_;
  attn::LineCutter cutter_;
  int file_;
};

}  // namespace cli
