// normalizer: what is done to a text before it is cut up.
#pragma once

#include <memory>
#include <string>

#include "text/fields.h"

namespace attn::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// `text` is UTF-8 and stays it. `at_start` becomes false where the beginning of the text is cut off.
  virtual void apply(std::string& text, bool& at_start) const = 0;
};

/// Throws by `fields` for what is not known.
std::unique_ptr<Normalizer> read_normalizer(const Fields& fields);
/// SentencePiece's table of replacements, in base64.
std::unique_ptr<Normalizer> read_charsmap(const Fields& fields);

}  // namespace attn::text
