// regex: the regular expressions of a tokenizer.json, which are written for Oniguruma. PCRE2 matches them here.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "text/fields.h"

namespace attn::text {

class Regex {
 public:
  /// Throws Error, through `place`, for a pattern that does not compile, and for syntax whose meaning differs between
  /// the two libraries.
  Regex(const std::string& pattern, const JsonFields& place);
  /// Compiles a pattern of this library, in PCRE2's syntax.
  explicit Regex(const std::string& pattern);

  struct Compiled;

 private:
  friend class Matches;
  std::string pattern_, source_;
  std::shared_ptr<const Compiled> compiled_;
};

/// Finds the matches in a text, from left to right, without overlaps.
class Matches {
 public:
  /// `regex` and `text` must outlive this object. The text must be UTF-8.
  Matches(const Regex& regex, std::string_view text);
  Matches(const Matches&) = delete;
  Matches& operator=(const Matches&) = delete;
  ~Matches();
  /// Finds the next match; false if there is none. Throws Error if the pattern exceeds the limit of steps.
  bool next();
  size_t begin() const { return begin_; }
  size_t end() const { return end_; }

 private:
  struct MatchState;
  int match();
  const Regex& regex_;
  std::string_view text_;
  std::unique_ptr<MatchState> state_;
  size_t from_ = 0, begin_ = 0, end_ = 0;
  bool has_matched_ = false;
};

}  // namespace attn::text
