// The tokenizers whose tokens are characters, in the order of their code points, and bytes.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "attn/core.h"
#include "io/json.h"
#include "text/tokenizers.h"

namespace attn::text {
namespace {

class CharacterTokenizer final : public Tokenizer {
 public:
  explicit CharacterTokenizer(std::vector<Character> characters) : characters_(std::move(characters)) {}

  std::string kind() const override { return "characters"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(characters_.size()); }

  std::vector<int64_t> encode_ids(std::string_view text) const override {
    require_utf8(text, "the text");
    std::vector<int64_t> ids;
    ids.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      const Character character = next_character(text, at);
      const auto place = std::lower_bound(characters_.begin(), characters_.end(), character);
      if (place == characters_.end() || *place != character)
        throw Error("encode", {"the text has " + code_of(character) + " (" + visible(text.substr(begin, at - begin)) +
                               ") at byte " + std::to_string(begin) + ", must have only the " +
                               std::to_string(vocab_size()) + " characters of the vocabulary"});
      ids.push_back(place - characters_.begin());
    }
    return ids;
  }

  std::string decode(std::span<const int64_t> ids) const override {
    require_ids(ids, vocab_size());
    std::string text;
    for (int64_t id : ids) append_character(text, characters_[id]);
    return text;
  }

  std::string label(int64_t id) const override { return visible(decode({&id, 1})); }

  std::string to_json() const override {
    std::string all;
    for (Character character : characters_) append_character(all, character);
    return io::Json::object({{"kind", kind()}, {"characters", all}}).dump(-1, ' ', true);
  }

 private:
  std::vector<Character> characters_;
};

class ByteTokenizer final : public Tokenizer {
 public:
  std::string kind() const override { return "bytes"; }
  int64_t vocab_size() const override { return 256; }

  std::vector<int64_t> encode_ids(std::string_view text) const override {
    std::vector<int64_t> ids;
    ids.reserve(text.size());
    for (char byte : text) ids.push_back(static_cast<uint8_t>(byte));
    return ids;
  }

  std::string decode(std::span<const int64_t> ids) const override {
    require_ids(ids, vocab_size());
    std::string text;
    for (int64_t id : ids) text += static_cast<char>(id);
    return text;
  }

  /// A byte of a character of several bytes is shown as its number, such as 0xE9.
  std::string label(int64_t id) const override {
    const std::string byte = decode({&id, 1});
    if (id < 0x80) return visible(byte);
    char code[8];
    std::snprintf(code, sizeof code, "0x%02X", static_cast<uint8_t>(id));
    return code;
  }

  std::string to_json() const override { return io::Json::object({{"kind", kind()}}).dump(); }
};

}  // namespace

void require_ids(std::span<const int64_t> ids, int64_t vocab_size) {
  for (size_t n = 0; n < ids.size(); ++n)
    if (ids[n] < 0 || ids[n] >= vocab_size)
      throw Error("decode", {"id " + std::to_string(ids[n]) + " at index " + std::to_string(n) +
                             " is outside the vocabulary, must be in [0, " + std::to_string(vocab_size) + ")"});
}

std::unique_ptr<Tokenizer> make_characters(std::vector<Character> characters) {
  return std::make_unique<CharacterTokenizer>(std::move(characters));
}

std::unique_ptr<Tokenizer> characters_of(std::string_view text) {
  if (text.empty()) throw Error("characters_of", {"the text is empty, must have at least one character"});
  require_utf8(text, "the text");
  std::vector<bool> occurs(0x110000);
  for (size_t at = 0; at < text.size();) occurs[next_character(text, at)] = true;
  std::vector<Character> characters;
  for (Character character = 0; character < 0x110000; ++character)
    if (occurs[character]) characters.push_back(character);
  return make_characters(std::move(characters));
}

std::unique_ptr<Tokenizer> bytes() { return std::make_unique<ByteTokenizer>(); }

}  // namespace attn::text
