// post_processor: the special tokens around one text, and around and between two.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/text.h"
#include "text/fields.h"

namespace attn::text {

class PostProcessor {
 public:
  /// Adds no special tokens; the second of two texts has the token type 1.
  PostProcessor();
  explicit PostProcessor(const JsonFields& fields);

  /// `second` is null for one text.
  Encoding apply(const std::vector<int64_t>& first, const std::vector<int64_t>* second, bool add_special_tokens) const;

 private:
  struct TemplatePiece {
    int text;  ///< 0 or 1 for the first or second text; -1 for the special tokens `ids`
    int64_t type;
    std::vector<int64_t> ids;
  };
  using Template = std::vector<TemplatePiece>;
  void read(const JsonFields& fields);
  void read_template(const JsonFields& fields);
  Template template_of(const JsonFields& fields, const char* key) const;
  Template single_, pair_;
  bool adds_tokens_ = false;
};

}  // namespace attn::text
