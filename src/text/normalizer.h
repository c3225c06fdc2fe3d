// normalizer: what is done to a text before it is cut up.
#pragma once

#include <memory>
#include <string>

#include "text/fields.h"

namespace attn::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// `text` is UTF-8 and stays it. `first` is how many of its bytes mean the first character of the caller's text,
  /// and becomes what is made of them: 0 where the beginning of the text is cut off.
  virtual void apply(std::string& text, size_t& first) const = 0;
};

/// Throws by `fields` for what is not known.
std::unique_ptr<Normalizer> read_normalizer(const JsonFields& fields);
/// SentencePiece's table of replacements, in base64.
std::unique_ptr<Normalizer> read_charsmap(const JsonFields& fields);

}  // namespace attn::text
