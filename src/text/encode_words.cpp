// A text that is given word by word, with the word of each token.
#include <algorithm>

#include "attn/core.h"
#include "attn/text.h"

namespace attn::text {
namespace {

/// Each word alone, with `space` before all but the first.
EncodedWords word_by_word(const Tokenizer& tokenizer, std::span<const std::string> words, const std::string& space) {
  EncodedWords result;
  for (size_t word = 0; word < words.size(); ++word) {
    const std::vector<int64_t> more = tokenizer.encode_ids((word > 0 ? space : "") + words[word]);
    result.ids.insert(result.ids.end(), more.begin(), more.end());
    result.word_of.insert(result.word_of.end(), more.size(), static_cast<int64_t>(word));
  }
  return result;
}

/// True if a space before a word is a part of the word's first token, as in byte-level tokenizers.
bool has_space_in_tokens(const Tokenizer& tokenizer, const std::string& word) {
  const std::vector<int64_t> alone = tokenizer.encode_ids(word), after_space = tokenizer.encode_ids(" " + word);
  return alone != after_space && after_space.size() <= alone.size();
}

/// How many special tokens are before a text and after it.
std::pair<int64_t, int64_t> marks_around(const Tokenizer& tokenizer, const std::string& word) {
  const std::vector<int64_t> whole = tokenizer.encode(word).ids, inner = tokenizer.encode_ids(word);
  const auto at = std::search(whole.begin(), whole.end(), inner.begin(), inner.end());
  const int64_t before = at - whole.begin();
  return {before, std::ssize(whole) - before - std::ssize(inner)};
}

void add_marks(const Tokenizer& tokenizer, const std::string& word, int64_t max_length, EncodedWords& text) {
  const auto [before, after] = marks_around(tokenizer, word);
  const std::vector<int64_t> whole = tokenizer.encode(word).ids;
  if (max_length > 0) {
    const int64_t room = max_length - before - after;
    if (room < 0)
      throw Error("tokenizer", {"max_length is " + std::to_string(max_length) + ", must be at least " +
                                std::to_string(before + after) + " for the special tokens"});
    text.ids.resize(std::min(text.ids.size(), static_cast<size_t>(room)));
    text.word_of.resize(text.ids.size());
  }
  text.ids.insert(text.ids.begin(), whole.begin(), whole.begin() + before);
  text.ids.insert(text.ids.end(), whole.end() - after, whole.end());
  text.word_of.insert(text.word_of.begin(), static_cast<size_t>(before), -1);
  text.word_of.insert(text.word_of.end(), static_cast<size_t>(after), -1);
}

}  // namespace

EncodedWords encode_words(const Tokenizer& tokenizer, std::span<const std::string> words,
                          const EncodeOptions& options) {
  if (words.empty()) throw Error("tokenizer", {"there are no words"});
  std::string joined;
  for (const std::string& word : words) joined += (joined.empty() ? "" : " ") + word;
  const std::vector<int64_t> whole = tokenizer.encode_ids(joined);
  EncodedWords text = word_by_word(tokenizer, words, "");
  text.is_whole = text.ids == whole;
  if (!text.is_whole) {
    EncodedWords spaced = word_by_word(tokenizer, words, " ");
    spaced.is_whole = spaced.ids == whole;
    if (spaced.is_whole || has_space_in_tokens(tokenizer, words.front())) text = std::move(spaced);
  }
  if (options.add_special_tokens) add_marks(tokenizer, words.front(), options.max_length, text);
  else if (options.max_length > 0 && std::ssize(text.ids) > options.max_length) {
    text.ids.resize(static_cast<size_t>(options.max_length));
    text.word_of.resize(text.ids.size());
  }
  return text;
}

}  // namespace attn::text
