// regex: the patterns of a tokenizer.json, which are written for Oniguruma and read here by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "text/fields.h"

namespace attn::text {

class Regex {
 public:
  /// Throws by `place` for what does not compile, or what the two would read differently.
  Regex(const std::string& pattern, const JsonFields& place);
  /// `pattern` is the library's own and PCRE2's.
  explicit Regex(const std::string& pattern);

  struct Compiled;

 private:
  friend class Matches;
  std::string pattern_, source_;
  std::shared_ptr<const Compiled> compiled_;
};

/// The matches in a text, from left to right, none of which overlap.
class Matches {
 public:
  /// Both must outlive it; the text is UTF-8.
  Matches(const Regex& regex, std::string_view text);
  Matches(const Matches&) = delete;
  Matches& operator=(const Matches&) = delete;
  ~Matches();
  /// False at the end. Throws Error where the pattern takes more steps than it may.
  bool next();
  size_t begin() const { return begin_; }
  size_t end() const { return end_; }

 private:
  struct State;
  int match();
  const Regex& regex_;
  std::string_view text_;
  std::unique_ptr<State> state_;
  size_t from_ = 0, begin_ = 0, end_ = 0;
  bool has_matched_ = false;
};

}  // namespace attn::text
