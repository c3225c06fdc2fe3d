// post_processor: the special tokens around a text, or around and between two.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/text.h"
#include "text/fields.h"

namespace attn::text {

class PostProcessor {
 public:
  /// Nothing around a text; the second one of two has the type 1.
  PostProcessor();
  explicit PostProcessor(const JsonFields& fields);

  /// How many tokens are added.
  int64_t added(bool two) const;
  /// `second` is null for one text.
  Encoding apply(const std::vector<int64_t>& first, const std::vector<int64_t>* second) const;

 private:
  struct Piece {
    int which;  ///< 0 or 1: a text; -1: the ids
    int64_t type;
    std::vector<int64_t> ids;
  };
  using Template = std::vector<Piece>;
  void read(const JsonFields& fields);
  void read_template(const JsonFields& fields);
  Template template_of(const JsonFields& fields, const char* key) const;
  Template one_, two_;
  bool adds_ = false;
};

}  // namespace attn::text
