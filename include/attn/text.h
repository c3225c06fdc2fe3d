// text: from text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace attn::text {

/// Text <-> ids in [0, size()). All methods are const and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// "characters", "bytes", "words".
  virtual std::string kind() const = 0;
  virtual int64_t size() const = 0;
  /// Throws Error that names the byte offset, for text that is not UTF-8 (not for bytes) or, where there is no token
  /// for the unknown, the first character that is not in the vocabulary.
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  /// Ids outside the vocabulary are an Error. Bytes may be cut inside a character: the pieces of a stream add up.
  virtual std::string decode(std::span<const int64_t> ids) const = 0;
  /// One token as a person reads it, for labels: whitespace and control characters made visible, always valid UTF-8.
  virtual std::string label(int64_t id) const = 0;
  /// JSON that load_tokenizer() takes.
  virtual std::string to_json() const = 0;
};

/// One token a Unicode character that occurs in `text`, in order of code point. Throws Error for empty or non-UTF-8
/// text.
std::unique_ptr<Tokenizer> characters_of(std::string_view text);
/// 256 tokens, any input.
std::unique_ptr<Tokenizer> bytes();

struct WordOptions {
  int64_t min_count = 2;      ///< rarer words are <unk>
  int64_t max_words = 50000;  ///< the most frequent ones
  bool lower_case = true;     ///< Unicode case folding
};
/// Words and single punctuation marks; 0 is <pad>, 1 is <unk>, then by falling frequency, ties by bytes. A word is a
/// run of letters, digits and their accents, with apostrophes inside; each other character but spaces is a token.
/// decode() puts spaces between words. Throws Error for text that is not UTF-8, and if no word is frequent enough.
std::unique_ptr<Tokenizer> words_of(std::span<const std::string> texts, const WordOptions& options = {});

/// From what to_json() gave; `source` is the name that errors use. Hostile input is an Error.
std::unique_ptr<Tokenizer> load_tokenizer(std::string_view json, const std::string& source);

/// Throws Error with the byte offset of the first malformed sequence.
void require_utf8(std::string_view text, const std::string& source);

}  // namespace attn::text
#pragma GCC visibility pop
