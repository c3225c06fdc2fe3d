// added_tokens: finds added tokens, such as "[MASK]", in a text: some before the normalizer changes it, some after.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/normalizer.h"
#include "text/tokenizer_config.h"
#include "text/trie.h"
#include "text/vocabulary.h"

namespace attn::text {

class AddedTokens {
 public:
  AddedTokens() = default;
  /// Reads the list "added_tokens" of a file whose model has `vocabulary`. `normalizer` may be null. Throws Error.
  AddedTokens(const JsonFields& root, const Vocabulary& vocabulary, const Normalizer* normalizer);

  /// A part of a text that is one added token, or, with the id -1, text between added tokens.
  struct Segment {
    size_t begin, end;
    int64_t id;
  };
  /// The segments of a text in order, none of them empty. Spaces that a token with lstrip or rstrip absorbs are in no
  /// segment. Finds the tokens of the normalized text, or those of the text as it is.
  std::vector<Segment> split(std::string_view text, bool is_normalized) const;
  /// One more than the largest id; 0 without tokens.
  int64_t size() const { return size_; }
  /// The text that the token is found as and decodes to; null if no added token has this id.
  const std::string* text(int64_t id) const;
  bool is_special(std::string_view content) const;
  std::optional<int64_t> find(std::string_view content) const;

 private:
  struct Entry {
    AddedToken token;
    std::string text;  ///< the content, normalized if the token is
  };
  /// The tokens that split() finds in a text as it is, or in a normalized text.
  struct TokenSearch {
    Trie trie;
    std::vector<bool> begins = std::vector<bool>(256);
  };
  int64_t id_for(const JsonFields& fields, const std::string& content, const Vocabulary& vocabulary) const;
  TokenSearch search_for(bool normalized) const;

  std::unordered_map<int64_t, Entry> tokens_;
  std::unordered_map<std::string, int64_t> ids_;
  std::set<std::string, std::less<>> specials_;  // contents of all entries that were special
  int64_t size_ = 0;
  bool splits_specials_ = false;
  TokenSearch plain_, normalized_;
};

}  // namespace attn::text
