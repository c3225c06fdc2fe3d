// core: cuts files into lines. Every reader of the library uses it, so all number lines alike.
//
// ```cpp
// #include "attn/core_lines.h"
// int main() {
//   attn::LineCutter lines("notes.txt");  // the name that errors show
//   lines.feed("first\nsec");
//   lines.feed("ond");
//   lines.finish();
//   while (lines.next()) {}
//   return lines.number() == 2 ? 0 : 1;
// }
// ```
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "attn/core.h"

#pragma GCC visibility push(default)
namespace attn {

/// The byte offset of the first sequence that is not well-formed UTF-8, or std::string_view::npos.
size_t malformed_utf8(std::string_view text);

/// Cuts text, which may come in pieces, into lines. "\n" or "\r\n" ends a line; the last line may lack both, or the
/// "\n". The cutter removes a byte order mark before the first line and keeps every other character, also carriage
/// returns inside a line and zero bytes. Lines must be UTF-8. They are counted from 1, empty lines included.
class LineCutter {
 public:
  enum class ByteOrderMark { remove, keep };  ///< before the first line
  /// `source` is the name that errors show.
  explicit LineCutter(std::string source, ByteOrderMark mark = ByteOrderMark::remove)
      : source_(std::move(source)), mark_(mark) {}

  void feed(std::string_view bytes);
  /// Ends the input: the rest is the last line.
  void finish() { ended_ = true; }
  /// The next line without its break, valid until the next feed(); std::nullopt where no line is complete yet. Throws
  /// Error with where() and the byte offset in the line for text that is not UTF-8.
  std::optional<std::string_view> next();
  /// True if next() returns a line, or never will again.
  bool ready();

  int64_t number() const { return number_; }  ///< of the line returned last; 0 before the first
  std::string where() const { return source_ + ", line " + std::to_string(number_); }

 private:
  std::string source_, held_;
  ByteOrderMark mark_;
  size_t at_ = 0;    ///< in held_, where the next line begins
  size_t seen_ = 0;  ///< in held_, no break is between at_ and this
  int64_t number_ = 0;
  bool ended_ = false;
};

}  // namespace attn
#pragma GCC visibility pop
