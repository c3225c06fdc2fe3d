// said: what the files beside a vocabulary say of a tokenizer (tokenizer_config.json, special_tokens_map.json,
// added_tokens.json, and the added tokens of tokenizer.json), joined as transformers joins them for the class.
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

/// A token that the model's own vocabulary may lack.
struct AddedToken {
  std::string content;
  bool is_plain = false;  ///< the file has the content alone: what kind of token it is depends on who adds it
  bool single_word = false, lstrip = false, rstrip = false, special = false;
  std::optional<bool> normalized = {};  ///< unless it is said, what is special is not

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
/// Throws by `fields` for what no token has.
AddedToken read_added_token(const JsonFields& fields);
/// A special one, which a text is searched for as it is.
AddedToken special_token(const std::string& content, bool lstrip = false);

class Said {
 public:
  /// `of_tokenizer_json` is null where the folder has none. Throws Error that names file, field and value.
  Said(const std::string& folder, const io::Json* of_tokenizer_json);

  /// Throws "FILE: KEY is VALUE, must be WHAT".
  [[noreturn]] void refuse(const std::string& key, const std::string& what) const;
  /// False for null too.
  bool has(const char* key) const;
  /// Also null.
  bool mentions(const char* key) const { return values_.contains(key); }
  /// null is refused where `null` is nothing.
  bool boolean(const char* key, bool fallback, std::optional<bool> null = std::nullopt) const;
  /// null is nothing.
  std::optional<std::string> text(const char* key) const;
  int64_t number(const char* key, int64_t highest, int64_t fallback) const;
  /// Null where there is none, or null.
  const io::Json* find(const char* key) const;

  /// By the roles that every class has, in their order, then others: "bos_token" ... A token that is null is nothing.
  using Roles = std::vector<std::pair<std::string, std::optional<AddedToken>>>;
  const Roles& roles() const { return roles_; }
  /// Null where the role has no token.
  const AddedToken* role(std::string_view name) const;
  /// For a role that the files do not mention.
  void set_default(const std::string& role, const std::optional<AddedToken>& token);
  /// The same where it has only a content, in which case `change` says what kind of token it is.
  template <class Change>
  void change_plain(const std::string& role, const Change& change) {
    for (auto& [name, token] : roles_)
      if (name == role && token && token->is_plain) token = change(token->content);
  }
  /// The content of a role's token, without which a class cannot do.
  const std::string& require(const std::string& role) const;

  /// By id.
  const std::map<int64_t, AddedToken>& added() const { return added_; }
  /// Special tokens without a role: those of "extra_special_tokens", else the additional ones.
  const std::vector<AddedToken>& extra() const;
  /// Those of "additional_special_tokens" beside others, or what a class has instead.
  std::optional<std::vector<AddedToken>> additional;

 private:
  void read_config();
  void read_legacy(const io::Json* of_tokenizer_json);
  void read_special_tokens_map();
  void take_named(const nlohmann::ordered_json& names);
  void read_roles();
  std::string file_of(const std::string& key) const;
  std::string path_of(const char* name) const { return folder_ + "/" + name; }
  AddedToken token_of(const io::Json& value, const std::string& key, bool is_special) const;
  std::vector<AddedToken> list_of(const std::string& key) const;

  std::string folder_;
  io::Json values_ = io::Json::object();
  std::map<std::string, std::string> files_;  // of what is not in tokenizer_config.json
  std::vector<std::string> order_;            // of the keys, as the files have them
  std::vector<std::pair<std::string, AddedToken>> more_roles_;
  std::map<int64_t, AddedToken> added_;
  std::map<std::string, AddedToken> added_by_content_;
  std::vector<AddedToken> extra_;
  Roles roles_;
};

}  // namespace attn::text
