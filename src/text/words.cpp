// The tokenizer whose tokens are words. A word is a letter or digit with all letters, digits and marks that follow it,
// and with apostrophes between two letters or digits. Any other character that is not a space is a token by itself.
// Splitting examines a character at most twice, and a sorted index holds the words: n bytes take O(n log n) steps.
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>

#include "attn/core.h"
#include "core/checker.h"
#include "io/json.h"
#include "text/tokenizers.h"

namespace attn::text {
namespace {

constexpr std::array<const char*, 2> kSpecial = {"<pad>", "<unk>"};
constexpr int64_t kUnknownId = 1;

bool is_apostrophe(Character character) { return character == '\'' || character == 0x2019; }

/// The end of the word whose first character ends at `at`.
size_t end_of_word(std::string_view text, size_t at) {
  while (at < text.size()) {
    size_t next = at;
    const Character character = next_character(text, next);
    if (is_apostrophe(character)) {
      if (next == text.size() || !is_letter_or_number(next_character(text, next))) break;
    } else if (!is_letter_or_number(character) && !is_mark(character)) {
      break;
    }
    at = next;
  }
  return at;
}

template <class Use>
void for_each_token(std::string_view text, const Use& use) {
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const Character character = next_character(text, at);
    if (is_space(character)) continue;
    if (is_letter_or_number(character)) at = end_of_word(text, at);
    use(text.substr(begin, at - begin));
  }
}

class WordTokenizer final : public Tokenizer {
 public:
  WordTokenizer(std::vector<std::string> words, bool lower_case) : words_(std::move(words)), lower_case_(lower_case) {
    for (size_t n = 0; n < words_.size(); ++n) ids_[words_[n]] = static_cast<int64_t>(n + kSpecial.size());
  }
  WordTokenizer(const WordTokenizer&) = delete;  // ids_ borrows from words_
  WordTokenizer& operator=(const WordTokenizer&) = delete;

  std::string kind() const override { return "words"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(words_.size() + kSpecial.size()); }

  std::vector<int64_t> encode_ids(std::string_view text) const override {
    require_utf8(text, "the text");
    const std::string folded = lower_case_ ? fold_case(text) : std::string();
    std::vector<int64_t> ids;
    for_each_token(lower_case_ ? folded : text, [&](std::string_view token) {
      const auto found = ids_.find(token);
      ids.push_back(found == ids_.end() ? kUnknownId : found->second);
    });
    return ids;
  }

  std::string decode(std::span<const int64_t> ids) const override {
    require_ids(ids, vocab_size());
    std::string text;
    for (size_t n = 0; n < ids.size(); ++n) text.append(n > 0 ? " " : "").append(token(ids[n]));
    return text;
  }

  std::string label(int64_t id) const override {
    require_ids({&id, 1}, vocab_size());
    return visible(token(id));
  }

  std::string to_json() const override {
    return io::Json::object({{"kind", kind()}, {"lower_case", lower_case_}, {"words", words_}}).dump(-1, ' ', true);
  }

 private:
  std::string_view token(int64_t id) const {
    const int64_t specials = static_cast<int64_t>(kSpecial.size());
    return id < specials ? std::string_view(kSpecial[id]) : words_[id - specials];
  }

  std::vector<std::string> words_;
  bool lower_case_;
  std::map<std::string_view, int64_t> ids_;
};

}  // namespace

bool is_one_token(std::string_view word, bool lower_case) {
  if (word.empty() || (lower_case && fold_case(word) != word)) return false;
  size_t tokens_of_this_size = 0;
  for_each_token(word, [&](std::string_view token) { tokens_of_this_size += token.size() == word.size(); });
  return tokens_of_this_size == 1;
}

std::unique_ptr<Tokenizer> make_words(std::vector<std::string> words, bool lower_case) {
  return std::make_unique<WordTokenizer>(std::move(words), lower_case);
}

std::unique_ptr<Tokenizer> words_of(std::span<const std::string> texts, const WordOptions& options) {
  Checker checker("words_of");
  checker.require(options.min_count >= 1,
                  [&] { return "min_count is " + std::to_string(options.min_count) + ", must be at least 1"; });
  checker.require(options.max_words >= 1 && options.max_words <= kMaxWords, [&] {
    return "max_words is " + std::to_string(options.max_words) + ", must be from 1 to " + std::to_string(kMaxWords);
  });
  checker.done();
  for (size_t n = 0; n < texts.size(); ++n) require_utf8(texts[n], "text " + std::to_string(n));

  std::map<std::string, int64_t, std::less<>> counts;
  for (const std::string& text : texts) {
    const std::string folded = options.lower_case ? fold_case(text) : std::string();
    for_each_token(options.lower_case ? folded : text, [&](std::string_view token) {
      const auto found = counts.find(token);
      if (found == counts.end()) counts.emplace(token, 1);
      else ++found->second;
    });
  }
  std::vector<std::pair<int64_t, std::string>> order;  // (-count, word), which sort in the order of the vocabulary
  for (const auto& [word, count] : counts)
    if (count >= options.min_count) order.emplace_back(-count, word);
  if (order.empty())
    throw Error("words_of", {"none of the " + std::to_string(counts.size()) + " words occurs " +
                             std::to_string(options.min_count) + " times (min_count), must be at least one"});
  std::sort(order.begin(), order.end());
  order.resize(std::min(order.size(), static_cast<size_t>(options.max_words)));
  std::vector<std::string> words;
  for (auto& [count, word] : order) words.push_back(std::move(word));
  return make_words(std::move(words), options.lower_case);
}

}  // namespace attn::text
