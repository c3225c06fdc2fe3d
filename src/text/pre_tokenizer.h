// pre_tokenizer: how a text is cut into the pieces that a model then takes one by one.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/fields.h"

namespace attn::text {

/// A text, its pieces in order, none of them empty, and how many of its bytes mean the first character of the
/// caller's text.
struct Pieces {
  struct Range {
    size_t begin, end;
  };
  std::string text;
  std::vector<Range> ranges;
  size_t first = 0;

  std::string_view operator[](size_t n) const {
    return std::string_view(text).substr(ranges[n].begin, ranges[n].end - ranges[n].begin);
  }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Pieces& pieces) const = 0;
  /// True if all that is left to do is to write bytes in their alphabet, which apply() then leaves to the caller: it is
  /// cheaper for the words that the caller does not know yet.
  virtual bool leaves_bytes() const { return false; }
};

/// Throws by `fields` for what is not known.
std::unique_ptr<PreTokenizer> read_pre_tokenizer(const JsonFields& fields);

}  // namespace attn::text
