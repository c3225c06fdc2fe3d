// core: files of lines, which every reader cuts in one way.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "attn/core.h"

#pragma GCC visibility push(default)
namespace attn {

/// Byte offset of the first sequence that is not well-formed UTF-8, or npos.
size_t malformed_utf8(std::string_view text);

/// Cuts text, which may come in pieces, into lines. "\n" or "\r\n" ends a line; the last one may lack either, or the
/// "\n" alone. A byte order mark before the first line is no part of it. Any other character
/// stays, a carriage return inside a line and a zero byte too. Lines must be UTF-8, and are counted from 1, empty ones
/// among them.
class LineCutter {
 public:
  /// `source` is the name that errors use.
  explicit LineCutter(std::string source) : source_(std::move(source)) {}

  void feed(std::string_view bytes);
  /// Nothing more comes: what is held is the last line.
  void finish() { ended_ = true; }
  /// The next line without its break, valid until the next call of feed(); nothing where none is whole yet. Throws
  /// Error with where() and the byte of the line, for what is not UTF-8.
  std::optional<std::string_view> next();
  /// True where next() gives a line, or never will.
  bool ready();

  int64_t number() const { return number_; }  ///< of the line given last; 0 before the first
  std::string where() const { return source_ + ", line " + std::to_string(number_); }

 private:
  std::string source_, held_;
  size_t at_ = 0;    ///< of held_, where the next line begins
  size_t seen_ = 0;  ///< no break stands between at_ and there
  int64_t number_ = 0;
  bool ended_ = false;
};

}  // namespace attn
#pragma GCC visibility pop
