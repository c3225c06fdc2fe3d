// added_tokens: tokens that are looked for in a text before anything else is done to it, such as "[MASK]", or after
// the normalizer.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/normalizer.h"
#include "text/said.h"
#include "text/trie.h"
#include "text/vocabulary.h"

namespace attn::text {

class AddedTokens {
 public:
  AddedTokens() = default;
  /// From the list "added_tokens" of a file whose model has `vocabulary`. `normalizer` may be null.
  AddedTokens(const JsonFields& root, const Vocabulary& vocabulary, const Normalizer* normalizer);

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
  bool is_special(std::string_view content) const;
  std::optional<int64_t> find(std::string_view content) const;

 private:
  struct Token {
    AddedToken is;
    std::string text;  ///< the content, normalized if it is to be
  };
  /// Those that are looked for in a text as it is, or in a normalized one.
  struct Search {
    Trie trie;
    std::vector<bool> begins = std::vector<bool>(256);
  };
  int64_t id_for(const JsonFields& fields, const std::string& content, const Vocabulary& vocabulary) const;
  Search search_for(bool normalized) const;

  std::unordered_map<int64_t, Token> tokens_;
  std::unordered_map<std::string, int64_t> ids_;
  std::set<std::string, std::less<>> specials_;  // contents of tokens that were special once
  int64_t size_ = 0;
  bool splits_specials_ = false;
  Search plain_, normalized_;
};

}  // namespace attn::text
