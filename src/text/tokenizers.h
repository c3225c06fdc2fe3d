// tokenizers: what the files of src/text share: the decoding of one text, and the makers and readers of tokenizers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/text.h"
#include "io/json.h"
#include "text/unicode.h"

namespace attn::text {

constexpr int64_t kMaxWords = int64_t{1} << 22;  // forty times the largest vocabulary in common use

/// The state of a TextStream: a decode() that receives one id at a time. The tokenizer must outlive it.
class TokenDecoding {
 public:
  virtual ~TokenDecoding() = default;
  /// The text that is certain after this id. All pieces and finish() together are equal to decode() of all ids.
  virtual std::string push(int64_t id) = 0;
  virtual std::string finish() = 0;
};

/// `characters` must be in rising order.
std::unique_ptr<Tokenizer> make_characters(std::vector<Character> characters);
/// `words` must differ from each other, and is_one_token() must hold for each.
std::unique_ptr<Tokenizer> make_words(std::vector<std::string> words, bool lower_case);

/// True if splitting `word` gives `word` itself and nothing else.
bool is_one_token(std::string_view word, bool lower_case);

/// The merges of merges.txt, and the ids of the lines of vocab.txt, in the form that tokenizer.json gives them. Throw
/// Error.
io::Json read_merges(std::string_view merges, const std::string& source);
io::Json read_vocabulary_lines(std::string_view vocab_txt, const std::string& source);

/// Throws Error unless all ids are in [0, vocab_size).
void require_ids(std::span<const int64_t> ids, int64_t vocab_size);

}  // namespace attn::text
