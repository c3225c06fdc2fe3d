// tokenizer_config: the settings of a model folder's tokenizer from tokenizer_config.json, special_tokens_map.json,
// added_tokens.json and the added tokens of tokenizer.json, merged as transformers merges them for a tokenizer class.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "text/fields.h"

namespace attn::text {

/// A token that a file adds to the model's vocabulary, which may have it already.
struct AddedToken {
  std::string content = {};
  bool is_plain = false;  ///< the file has only the content: the code that adds the token sets the rest
  bool single_word = false, lstrip = false, rstrip = false, special = false;
  std::optional<bool> normalized = {};  ///< absent: true unless the token is special

  bool is_normalized() const { return normalized.value_or(!special); }
  bool operator==(const AddedToken& other) const {
    const auto all = [](const AddedToken& token) {
      return std::tuple(token.is_plain, token.single_word, token.lstrip, token.rstrip, token.special,
                        token.is_normalized());
    };
    return content == other.content && all(*this) == all(other);
  }
  io::Json json(int64_t id) const;
};
/// Throws Error, through `fields`, for fields of wrong types.
AddedToken read_added_token(const JsonFields& fields);
/// A special token, which is found in a text before the normalizer changes it.
AddedToken special_token(const std::string& content, bool lstrip = false);

class TokenizerConfig {
 public:
  /// `tokenizer_json` is null if the folder has none. Throws Error that names file, field and value.
  TokenizerConfig(const std::string& folder, const io::Json* tokenizer_json);

  /// Throws Error "FILE: KEY is VALUE, must be WHAT".
  [[noreturn]] void refuse(const std::string& key, const std::string& what) const;
  /// False if the field is missing or null.
  bool has(const char* key) const;
  /// False if the field is missing, true if it is null.
  bool mentions(const char* key) const { return values_.contains(key); }
  /// `fallback` if the field is missing. `null` if the field is null; without it, null is an Error.
  bool boolean(const char* key, bool fallback, std::optional<bool> null = std::nullopt) const;
  /// Absent if the field is missing or null.
  std::optional<std::string> text(const char* key) const;
  int64_t number(const char* key, int64_t highest, int64_t fallback) const;
  /// Null if the field is missing or null.
  const io::Json* find(const char* key) const;

  /// Tokens by role, such as "bos_token": the roles of every class in their order, then others. Absent: a null token.
  using Roles = std::vector<std::pair<std::string, std::optional<AddedToken>>>;
  const Roles& roles() const { return roles_; }
  /// Null if the role has no token.
  const AddedToken* role(std::string_view name) const;
  /// Sets the token of a role that the files do not mention.
  void set_default(const std::string& role, const std::optional<AddedToken>& token);
  /// Replaces the token of a role, if the files have only its content, with change(content).
  template <class Change>
  void change_plain(const std::string& role, const Change& change) {
    for (auto& [name, token] : roles_)
      if (name == role && token && token->is_plain) token = change(token->content);
  }
  /// The content of a role's token. Throws Error if the role has none.
  const std::string& require(const std::string& role) const;

  /// Added tokens by id.
  const std::map<int64_t, AddedToken>& added() const { return added_; }
  /// Special tokens without a role: those of "extra_special_tokens" or, if that is missing, `additional`.
  const std::vector<AddedToken>& extra() const;
  /// The tokens of "additional_special_tokens" if both fields are present, or the defaults of a tokenizer class.
  std::optional<std::vector<AddedToken>> additional;

 private:
  void read_config();
  void read_legacy(const io::Json* tokenizer_json);
  void read_special_tokens_map();
  void read_named_tokens(const nlohmann::ordered_json& names);
  void read_roles();
  std::string file_of(const std::string& key) const;
  std::string path_of(const char* name) const { return folder_ + "/" + name; }
  AddedToken token_of(const io::Json& value, const std::string& key, bool is_special) const;
  std::vector<AddedToken> list_of(const std::string& key) const;

  std::string folder_;
  io::Json values_ = io::Json::object();
  std::map<std::string, std::string> files_;  // the file of each key that is not from tokenizer_config.json
  std::vector<std::string> order_;            // the keys in the order of the files
  std::vector<std::pair<std::string, AddedToken>> more_roles_;
  std::map<int64_t, AddedToken> added_;
  std::map<std::string, AddedToken> added_by_content_;
  std::vector<AddedToken> extra_;
  Roles roles_;
};

}  // namespace attn::text
