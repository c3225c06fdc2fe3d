// normalizer: changes a text before the pre-tokenizer splits it.
#pragma once

#include <memory>
#include <string>

#include "text/fields.h"

namespace attn::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Changes `text`, which is UTF-8 before and after. `first` is the number of bytes at its beginning that come from
  /// the first character of the caller's text, before and after: 0 once the normalizer has removed them.
  virtual void apply(std::string& text, size_t& first) const = 0;
};

/// Throws Error, through `fields`, for types and options that are not supported.
std::unique_ptr<Normalizer> read_normalizer(const JsonFields& fields);
/// Reads SentencePiece's table of replacements, which is encoded in base64.
std::unique_ptr<Normalizer> read_charsmap(const JsonFields& fields);

}  // namespace attn::text
