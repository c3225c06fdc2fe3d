// added_tokens: tokens that are looked for in a text before anything else is done to it, such as "[MASK]", or behind
// the normalizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/normalizer.h"
#include "text/trie.h"
#include "text/vocabulary.h"

namespace attn::text {

/// One entry of the list "added_tokens", as the package tokenizers reads it.
inline io::Json added_token(size_t id, std::string_view content, bool special = true) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

class AddedTokens {
 public:
  AddedTokens() = default;
  /// From the list "added_tokens" of a file whose model has `vocabulary`. `normalizer` may be null.
  AddedTokens(const Fields& root, const Vocabulary& vocabulary, const Normalizer* normalizer);

  /// A part of a text that is one token, or, with the id -1, none.
  struct Part {
    size_t begin, end;
    int64_t id;
  };
  /// In order, and none empty; they may leave blanks out, of tokens that take those with them.
  std::vector<Part> parts(std::string_view text, bool is_normalized) const;
  /// One more than the largest id; 0 without tokens.
  int64_t size() const { return size_; }
  /// What it is looked for as, which is what it is decoded to; null for an id that is not among them.
  const std::string* text(int64_t id) const;
  bool is_special(int64_t id) const;
  std::optional<int64_t> find(std::string_view content) const;

 private:
  struct Token {
    std::string content;
    bool single_word, takes_left, takes_right, is_normalized, is_special;
    std::string text;  ///< the content, normalized if it is to be
  };
  /// Those that are looked for in a text as it is, or in a normalized one.
  struct Search {
    Trie trie;
    std::vector<bool> begins = std::vector<bool>(256);
  };
  Search search_for(bool normalized) const;

  std::unordered_map<int64_t, Token> tokens_;
  std::unordered_map<std::string, int64_t> ids_;
  int64_t size_ = 0;
  Search plain_, normalized_;
};

}  // namespace attn::text
