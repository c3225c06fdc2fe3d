// pre_tokenizer: splits a text into the pieces that a model encodes one by one.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/fields.h"

namespace attn::text {

struct ByteRange {
  size_t begin, end;
};

/// A text, its pieces in order, none of them empty, and the number of bytes at its beginning that come from the first
/// character of the caller's text.
struct Pieces {
  std::string text;
  std::vector<ByteRange> ranges;
  size_t first = 0;

  std::string_view operator[](size_t n) const {
    return std::string_view(text).substr(ranges[n].begin, ranges[n].end - ranges[n].begin);
  }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Pieces& pieces) const = 0;
  /// True if the caller has to replace each byte of the pieces as append_byte_character() does. apply() leaves this to
  /// the caller because a word that is in the caller's cache does not need it.
  virtual bool leaves_bytes() const { return false; }
};

/// Throws Error, through `fields`, for types and options that are not supported.
std::unique_ptr<PreTokenizer> read_pre_tokenizer(const JsonFields& fields);

}  // namespace attn::text
