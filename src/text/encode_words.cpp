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

/// The special tokens around a text, by the example of one word.
struct SpecialTokens {
  std::vector<int64_t> before = {}, after = {};

  SpecialTokens() = default;
  SpecialTokens(const Tokenizer& tokenizer, const std::string& word) {
    const std::vector<int64_t> whole = tokenizer.encode(word).ids, inner = tokenizer.encode_ids(word);
    const auto at = std::search(whole.begin(), whole.end(), inner.begin(), inner.end());
    before.assign(whole.begin(), at);
    if (at != whole.end()) after.assign(at + std::ssize(inner), whole.end());
  }
};

void truncate(EncodedWords& text, int64_t length) {
  text.truncated = std::ssize(text.ids) > length;
  text.ids.resize(std::min(text.ids.size(), static_cast<size_t>(length)));
  text.word_of.resize(text.ids.size());
}

void add_around(const SpecialTokens& special, EncodedWords& text) {
  text.ids.insert(text.ids.begin(), special.before.begin(), special.before.end());
  text.ids.insert(text.ids.end(), special.after.begin(), special.after.end());
  text.word_of.insert(text.word_of.begin(), special.before.size(), -1);
  text.word_of.insert(text.word_of.end(), special.after.size(), -1);
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
  const SpecialTokens special = options.add_special_tokens ? SpecialTokens(tokenizer, words.front()) : SpecialTokens();
  const int64_t around = std::ssize(special.before) + std::ssize(special.after);
  if (options.max_length < 0 || (options.max_length > 0 && options.max_length < around))
    throw Error("tokenizer", {"max_length is " + std::to_string(options.max_length) + ", must be at least " +
                              std::to_string(around) + " for the special tokens"});
  if (options.max_length > 0) truncate(text, options.max_length - around);
  add_around(special, text);
  return text;
}

}  // namespace attn::text
