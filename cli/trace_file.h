// A profile's spans as a Chrome trace, which Perfetto and chrome://tracing open.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "attn/profile.h"

namespace cli {

/// The array form of the Trace Event Format: an event a line. Spans are written when they end, and reach the disk
/// within a fifth of a second, so that the file of a program that crashed has what was done: the format allows an
/// array without its end.
class TraceFile {
 public:
  /// Throws Error if the file cannot be written.
  explicit TraceFile(const std::string& path);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  /// Its times begin `offset` nanoseconds after those of the file.
  void write(const attn::Span& span, int64_t offset);
  /// The names of the threads, and the end of the array. Throws Error if the file could not be written.
  void finish(const std::vector<std::string>& threads);

 private:
  [[noreturn]] void refuse() const;
  std::string path_;
  std::FILE* file_;
  std::chrono::steady_clock::time_point flushed_ = std::chrono::steady_clock::now();
};

}  // namespace cli
