// tokenizers: the three kinds from their parts, which the caller has checked, and the limits of what a file may hold.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attn/text.h"
#include "io/json.h"
#include "text/unicode.h"

namespace attn::text {

constexpr int64_t kMaxWords = int64_t{1} << 22;  // forty times the largest vocabulary in common use

/// `characters` rise.
std::unique_ptr<Tokenizer> make_characters(std::vector<Character> characters);
/// `words` differ, and each is one token.
std::unique_ptr<Tokenizer> make_words(std::vector<std::string> words, bool lower_case);

/// True if splitting `word` gives `word` itself and nothing else.
bool is_one_token(std::string_view word, bool lower_case);

/// Leaves `longest` ids at most.
void cut(std::vector<int64_t>& ids, int64_t longest, bool at_beginning);
/// The longer of two texts is cut first; once they are of a length, both.
void cut_longer(std::vector<int64_t>& first, std::vector<int64_t>& second, int64_t longest, bool at_beginning);

/// The lists of merges.txt, and ids by the lines of vocab.txt, as a tokenizer.json has them. Throw Error.
io::Json read_merges(std::string_view merges, const std::string& source);
io::Json read_vocabulary_lines(std::string_view vocab_txt, const std::string& source);

/// Throws Error unless all ids are in [0, size).
void require_ids(std::span<const int64_t> ids, int64_t size);

}  // namespace attn::text
