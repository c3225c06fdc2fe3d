// The steps have the order of transformers' PreTrainedTokenizerBase._from_pretrained().
#include "text/tokenizer_config.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "attn/core.h"
#include "attn/io.h"
#include "text/vocabulary.h"

namespace attn::text {
namespace {

using io::Json;

constexpr const char* kRoles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};
constexpr const char *kExtra = "extra_special_tokens", *kAdditional = "additional_special_tokens";

bool is_role(const std::string& key) {
  return std::any_of(std::begin(kRoles), std::end(kRoles), [&](const char* role) { return key == role; });
}

/// Settings that give a class parts of a tokenizer, other files or code instead of values.
constexpr const char* kUnsupported[] = {"vocab",
                                        "merges",
                                        "merges_file",
                                        "post_processor",
                                        "tokenizer_padding",
                                        "tokenizer_truncation",
                                        "_json_padding",
                                        "_json_truncation",
                                        "_spm_precompiled_charsmap",
                                        "gguf_file",
                                        "model_specific_special_tokens",
                                        "init_inputs",
                                        "language",
                                        "fix_mistral_regex"};

bool is_unset(const Json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) || (value.is_structured() && value.empty());
}

/// A field's name for messages; a name with other than plain characters is quoted.
std::string as_place(const std::string& key) {
  const bool is_plain = std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           c == '[' || c == ']';
  });
  return is_plain && key.size() < 80 ? key : io::in_quotes(key);
}

/// The JSON object of a file, with and without the order of its keys.
struct ObjectFile {
  Json json = Json::object();
  nlohmann::ordered_json ordered = nlohmann::ordered_json::object();
};

ObjectFile read_object(const std::string& path) {
  constexpr int64_t kMost = 1 << 26;
  ObjectFile object;
  if (!io::exists(path)) return object;
  const std::string text = io::read_file(path, kMost);
  object.json = io::parse_json("open_tokenizer", path, text);
  if (!object.json.is_object())
    throw Error("open_tokenizer", {path + ": is " + io::as_shown(object.json) + ", must be an object"});
  object.ordered = nlohmann::ordered_json::parse(text);
  return object;
}

}  // namespace

Json AddedToken::json(int64_t id) const {
  return {{"id", id},         {"content", content}, {"single_word", single_word},   {"lstrip", lstrip},
          {"rstrip", rstrip}, {"special", special}, {"normalized", is_normalized()}};
}

AddedToken special_token(const std::string& content, bool lstrip) {
  return {.content = content, .lstrip = lstrip, .special = true};
}

TokenizerConfig::TokenizerConfig(const std::string& folder, const Json* tokenizer_json) : folder_(folder) {
  read_config();
  if (tokenizer_json) {  // its post-processor adds the special tokens
    values_.erase("add_bos_token");
    values_.erase("add_eos_token");
  }
  if (values_.contains("added_tokens_decoder")) {
    const Json decoder = values_["added_tokens_decoder"];
    if (!decoder.is_object()) refuse("added_tokens_decoder", "an object of tokens by id");
    for (const auto& [name, value] : decoder.items()) {
      int64_t id = -1;
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
      if (error != std::errc() || end != name.data() + name.size() || id < 0 || id >= kMaxTokens)
        throw Error("open_tokenizer", {path_of("tokenizer_config.json") + ": added_tokens_decoder: the id is " +
                                       io::in_quotes(name) + ", must be from 0 to " + std::to_string(kMaxTokens - 1)});
      if (!value.is_object()) refuse("added_tokens_decoder", "an object of tokens, each an object");
      const AddedToken token = token_of(value, "added_tokens_decoder." + name, false);
      added_[id] = token;
      added_by_content_[token.content] = token;
    }
  } else {
    read_legacy(tokenizer_json);
  }
  read_roles();
}

void TokenizerConfig::read_config() {
  ObjectFile config = read_object(path_of("tokenizer_config.json"));
  values_ = std::move(config.json);
  for (const auto& [key, value] : config.ordered.items()) order_.push_back(key);
  values_.erase("tokenizer_class");
  for (const char* key : {"auto_map", "tokenizer_object"})
    if (values_.contains(key)) refuse(key, "left out: it is not supported");
  for (const char* key : kUnsupported)
    if (values_.contains(key) && !is_unset(values_[key])) refuse(key, "null: it is not supported");
  if (values_.contains("fast_tokenizer_files") && !is_unset(values_["fast_tokenizer_files"]))
    if (values_["fast_tokenizer_files"] != Json::array({"tokenizer.json"}))
      refuse("fast_tokenizer_files", "[\"tokenizer.json\"]: files for some versions of transformers are not supported");
  const bool is_older = values_.contains(kAdditional) && (!values_.contains(kExtra) || is_unset(values_[kExtra]));
  if (is_older) {
    values_[kExtra] = std::move(values_[kAdditional]);
    values_.erase(kAdditional);
  }
  for (const std::string& key : order_)
    if (key.ends_with("_token") && !is_role(key) && values_.contains(key) && values_[key].is_string()) {
      more_roles_.emplace_back(key, token_of(values_[key], key, false));
      values_.erase(key);
    }
  if (values_.contains(kExtra) && values_[kExtra].is_object())
    read_named_tokens(config.ordered[is_older ? kAdditional : kExtra]);
}

/// Reads special tokens that have names of their own.
void TokenizerConfig::read_named_tokens(const nlohmann::ordered_json& names) {
  for (const auto& [name, value] : names.items())
    more_roles_.emplace_back(name, token_of(values_[kExtra][name], std::string(kExtra) + "." + name, false));
  values_.erase(kExtra);
}

void TokenizerConfig::read_legacy(const Json* tokenizer_json) {
  read_special_tokens_map();
  std::set<std::string> special;
  for (const char* role : kRoles)
    if (values_.contains(role) && values_[role].is_string()) special.insert(values_[role].get<std::string>());
    else if (values_.contains(role) && files_.contains(role) && values_[role].is_object())
      special.insert(token_of(values_[role], role, true).content);
  if (values_.contains(kExtra) && values_[kExtra].is_array())
    for (const Json& value : values_[kExtra])
      if (value.is_string()) special.insert(value.get<std::string>());
  const auto add = [&](int64_t id, const AddedToken& token) {
    added_[id] = token;
    added_by_content_[token.content] = token;
  };
  const std::string path = path_of("added_tokens.json");
  const ObjectFile file = read_object(path);
  for (const auto& [content, value] : file.json.items()) {
    const auto id = io::whole_number(value);
    if (!id || *id >= kMaxTokens)
      throw Error("open_tokenizer", {path + ": the id of " + io::in_quotes(content) + " is " + io::as_shown(value) +
                                     ", must be a whole number from 0 to " + std::to_string(kMaxTokens - 1)});
    if (added_.contains(*id))
      throw Error("open_tokenizer",
                  {path + ": the id " + std::to_string(*id) + " is that of " + io::in_quotes(added_[*id].content) +
                   " and of " + io::in_quotes(content) + ", must be that of one token"});
    const bool is_special = special.contains(content);
    add(*id, {.content = content, .special = is_special, .normalized = !is_special});
  }
  if (!tokenizer_json) return;
  const std::string source = path_of("tokenizer.json");
  const JsonFields root(*tokenizer_json, "", source);
  for (const JsonFields& fields : root.has("added_tokens") ? root.list("added_tokens") : std::vector<JsonFields>())
    if (!fields.text("content").empty()) add(fields.number("id", kMaxTokens - 1), read_added_token(fields));
}

/// Reads an older file with fields of tokenizer_config.json. Where the two files differ, the older one counts.
void TokenizerConfig::read_special_tokens_map() {
  const std::string path = path_of("special_tokens_map.json");
  const ObjectFile map = read_object(path);
  for (const auto& [key, ordered] : map.ordered.items()) {
    Json value = map.json[key];
    if (key == kExtra && value.is_array() && values_.contains(kExtra) && values_[kExtra].is_array()) {
      Json joined = values_[kExtra];
      std::set<std::string> known;
      for (const Json& token : joined) known.insert(token.dump());
      for (const Json& token : value)
        if (known.insert(token.dump()).second) joined.push_back(token);
      value = std::move(joined);
    }
    values_[key] = std::move(value);
    files_[key] = path;
    order_.push_back(key);
  }
  if (values_.contains(kExtra) && values_[kExtra].is_object() && files_.contains(kExtra))
    read_named_tokens(map.ordered[kExtra]);
}

void TokenizerConfig::read_roles() {
  for (const char* role : kRoles) {
    if (!values_.contains(role)) continue;
    std::optional<AddedToken> token;
    if (!values_[role].is_null()) {
      token = token_of(values_[role], role, files_.contains(role));
      if (const auto found = added_by_content_.find(token->content); found != added_by_content_.end())
        token = found->second;
    }
    roles_.emplace_back(role, token);
  }
  for (const std::string& key : order_) {
    if (!key.ends_with("_token") || is_role(key) || !values_.contains(key)) continue;
    const Json& value = values_[key];
    if (value.is_string() || (value.is_object() && (files_.contains(key) || value.contains("__type"))))
      roles_.emplace_back(key, token_of(value, key, files_.contains(key)));
  }
  for (const auto& [name, token] : more_roles_) roles_.emplace_back(name, token);
  if (has(kExtra)) extra_ = list_of(kExtra);
  if (has(kAdditional)) additional = list_of(kAdditional);
}

const std::vector<AddedToken>& TokenizerConfig::extra() const {
  static const std::vector<AddedToken> kNone;
  return mentions(kExtra) ? extra_ : additional ? *additional : kNone;
}

std::vector<AddedToken> TokenizerConfig::list_of(const std::string& key) const {
  if (!values_[key].is_array()) refuse(key, "a list of tokens");
  std::vector<AddedToken> list;
  for (const Json& value : values_[key])
    list.push_back(token_of(value, key + "[" + std::to_string(list.size()) + "]", files_.contains(key)));
  return list;
}

/// Reads a token: its content, or an object, which needs "__type": "AddedToken" in tokenizer_config.json.
AddedToken TokenizerConfig::token_of(const Json& value, const std::string& key, bool is_special) const {
  const std::string source = file_of(key.substr(0, key.find_first_of(".["))), place = as_place(key);
  const bool is_empty = value.is_string() && value.get_ref<const std::string&>().empty();
  if (is_empty || !(value.is_string() || value.is_object()))
    throw Error("open_tokenizer", {source + ": " + place + " is " + io::as_shown(value) + ", must be a token"});
  if (value.is_string()) return {.content = value, .is_plain = true};
  const JsonFields fields(value, place, source);
  for (const auto& [name, ignored] : value.items())
    if (std::string_view(" __type content single_word lstrip rstrip normalized special ").find(" " + name + " ") ==
        std::string_view::npos)
      fields.refuse("has the field " + io::in_quotes(name) + ", which a token cannot have");
  const bool is_entry = key.starts_with("added_tokens_decoder") || is_special;
  if (!is_entry && fields.text("__type", "") != "AddedToken")
    fields.refuse("__type is missing or has another value, must be \"AddedToken\"");
  AddedToken token = read_added_token(fields);
  token.special = token.special || is_special;
  return token;
}

AddedToken read_added_token(const JsonFields& fields) {
  AddedToken token{.content = fields.text("content"),
                   .single_word = fields.boolean("single_word", false),
                   .lstrip = fields.boolean("lstrip", false),
                   .rstrip = fields.boolean("rstrip", false),
                   .special = fields.boolean("special", false)};
  if (fields.has("normalized")) token.normalized = fields.boolean("normalized");
  fields.require(token.content.size() <= kMaxTokenBytes, "content", "at most 4096 bytes long");
  return token;
}

// -------------------------------------------------------------------------------------------------------------- values

std::string TokenizerConfig::file_of(const std::string& key) const {
  const auto found = files_.find(key);
  return found == files_.end() ? path_of("tokenizer_config.json") : found->second;
}

void TokenizerConfig::refuse(const std::string& key, const std::string& what) const {
  const std::string shown = values_.contains(key) ? io::as_shown(values_[key]) : "missing";
  throw Error("open_tokenizer", {file_of(key) + ": " + key + " is " + shown + ", must be " + what});
}

bool TokenizerConfig::has(const char* key) const { return find(key) != nullptr; }

const Json* TokenizerConfig::find(const char* key) const {
  const auto found = values_.find(key);
  return found == values_.end() || found->is_null() ? nullptr : &*found;
}

bool TokenizerConfig::boolean(const char* key, bool fallback, std::optional<bool> null) const {
  if (!mentions(key)) return fallback;
  const Json& value = values_[key];
  if (value.is_null() && null) return *null;
  if (!value.is_boolean()) refuse(key, null ? "true, false or null" : "true or false");
  return value.get<bool>();
}

std::optional<std::string> TokenizerConfig::text(const char* key) const {
  const Json* value = find(key);
  if (value && !value->is_string()) refuse(key, "a string");
  return value ? std::optional(value->get<std::string>()) : std::nullopt;
}

int64_t TokenizerConfig::number(const char* key, int64_t highest, int64_t fallback) const {
  if (!mentions(key)) return fallback;
  const auto value = io::whole_number(values_[key]);
  if (!value || *value > highest) refuse(key, "a whole number from 0 to " + std::to_string(highest));
  return *value;
}

const AddedToken* TokenizerConfig::role(std::string_view name) const {
  for (const auto& [role, token] : roles_)
    if (role == name) return token ? &*token : nullptr;
  return nullptr;
}

void TokenizerConfig::set_default(const std::string& role, const std::optional<AddedToken>& token) {
  const auto same = [&](const auto& entry) { return entry.first == role; };
  if (std::any_of(roles_.begin(), roles_.end(), same)) return;
  const auto rank = [](const std::string& name) {
    return std::find(std::begin(kRoles), std::end(kRoles), name) - std::begin(kRoles);
  };
  const auto is_later = [&](const auto& entry) { return rank(entry.first) > rank(role); };
  roles_.emplace(std::find_if(roles_.begin(), roles_.end(), is_later), role, token);
}

const std::string& TokenizerConfig::require(const std::string& role) const {
  const AddedToken* token = this->role(role);
  if (!token) refuse(role, "a token");
  return token->content;
}

}  // namespace attn::text
