// load_tokenizer(). Of the library's own kinds of tokenizers it accepts only what to_json() writes.
#include <set>
#include <utility>

#include "attn/core.h"
#include "io/json.h"
#include "text/fields.h"
#include "text/pipeline.h"
#include "text/tokenizers.h"

namespace attn::text {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 28;  // 64 bytes for each of kMaxWords words

class TokenizerReader {
 public:
  TokenizerReader(std::string_view json, const std::string& source) : source_(source), json_(json) {
    if (json.size() > kMaxBytes)
      refuse("has " + std::to_string(json.size()) + " bytes, must have at most " + std::to_string(kMaxBytes));
    root_ = io::parse_json("load_tokenizer", source, json);
    if (!root_.is_object()) refuse("is " + io::as_shown(root_) + ", must be an object");
  }

  std::unique_ptr<Tokenizer> tokenizer() {
    if (root_.contains("model")) return read_pipeline(root_, source_, std::string(json_));
    const std::string& kind = string_at("kind");
    if (kind == "bytes") {
      require_keys({"kind"});
      return bytes();
    }
    if (kind == "characters") {
      require_keys({"kind", "characters"});
      return make_characters(characters());
    }
    if (kind == "words") {
      require_keys({"kind", "lower_case", "words"});
      const io::Json& lower_case = field("lower_case");
      if (!lower_case.is_boolean()) refuse("lower_case is " + io::as_shown(lower_case) + ", must be true or false");
      return make_words(words(lower_case.get<bool>()), lower_case.get<bool>());
    }
    refuse("kind is " + io::in_quotes(kind) + ", must be \"characters\", \"bytes\" or \"words\"");
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    throw Error("load_tokenizer", {source_ + ": " + reason});
  }

  const io::Json& field(const char* key) const {
    const auto found = root_.find(key);
    if (found == root_.end()) refuse(std::string("has no ") + key);
    return *found;
  }

  const std::string& string_at(const char* key) const {
    const io::Json& value = field(key);
    if (!value.is_string()) refuse(key + (" is " + io::as_shown(value)) + ", must be a string");
    return value.get_ref<const std::string&>();
  }

  void require_keys(const std::set<std::string>& keys) const {
    for (const auto& [key, ignored] : root_.items())
      if (!keys.contains(key))
        refuse("has the field " + io::in_quotes(key) + ", which a tokenizer of its kind cannot have");
  }

  std::vector<Character> characters() const {
    const std::string& all = string_at("characters");
    if (all.empty()) refuse("characters is empty");
    std::vector<Character> characters;
    for (size_t at = 0; at < all.size();) {
      const Character character = next_character(all, at);
      if (!characters.empty() && character <= characters.back())
        refuse("characters must be in rising order of code points, but " + code_of(character) + " at index " +
               std::to_string(characters.size()) + " follows " + code_of(characters.back()));
      characters.push_back(character);
    }
    return characters;
  }

  std::vector<std::string> words(bool lower_case) const {
    const io::Json& list = field("words");
    if (!list.is_array()) refuse("words is " + io::as_shown(list) + ", must be a list");
    if (list.empty()) refuse("words is empty");
    if (list.size() > static_cast<size_t>(kMaxWords))
      refuse("has " + std::to_string(list.size()) + " words, must have at most " + std::to_string(kMaxWords));
    std::set<std::string_view> seen;
    std::vector<std::string> words;
    for (const io::Json& entry : list) {
      const auto refuse_word = [&](const char* why) {
        refuse("word " + std::to_string(words.size()) + " is " + io::as_shown(entry) + why);
      };
      if (!entry.is_string()) refuse_word(", must be a string");
      const std::string& word = entry.get_ref<const std::string&>();
      if (!seen.insert(word).second) refuse_word(", must differ from the words before it");
      if (!is_one_token(word, lower_case)) refuse_word(", must be a word that splitting a text can give");
      words.push_back(word);
    }
    return words;
  }

  const std::string& source_;
  std::string_view json_;
  io::Json root_;
};

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(std::string_view json, const std::string& source) {
  return TokenizerReader(json, source).tokenizer();
}

}  // namespace attn::text
