// The order of the steps is that of transformers' PreTrainedTokenizerBase._from_pretrained().
#include "text/said.h"

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

/// What transformers hands to a class under these names is no text: a tokenizer of its own making, a part of one, code.
constexpr const char* kRefused[] = {"vocab",
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

bool says_nothing(const Json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) || (value.is_structured() && value.empty());
}

/// A field's name in a message; it may be from outside.
std::string as_place(const std::string& key) {
  const bool is_plain = std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           c == '[' || c == ']';
  });
  return is_plain && key.size() < 80 ? key : io::in_quotes(key);
}

/// A file of one object, and the order of its keys.
struct Object {
  Json json = Json::object();
  nlohmann::ordered_json ordered = nlohmann::ordered_json::object();
};

Object object_of(const std::string& path) {
  constexpr int64_t kMost = 1 << 26;
  Object object;
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

Said::Said(const std::string& folder, const Json* of_tokenizer_json) : folder_(folder) {
  read_config();
  if (of_tokenizer_json) {  // whose post-processor says what is around a text
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
    read_legacy(of_tokenizer_json);
  }
  read_roles();
}

void Said::read_config() {
  Object config = object_of(path_of("tokenizer_config.json"));
  values_ = std::move(config.json);
  for (const auto& [key, value] : config.ordered.items()) order_.push_back(key);
  values_.erase("tokenizer_class");
  for (const char* key : {"auto_map", "tokenizer_object"})
    if (values_.contains(key)) refuse(key, "left out: it is not read");
  for (const char* key : kRefused)
    if (values_.contains(key) && !says_nothing(values_[key])) refuse(key, "null: it is not read");
  if (values_.contains("fast_tokenizer_files") && !says_nothing(values_["fast_tokenizer_files"]))
    if (values_["fast_tokenizer_files"] != Json::array({"tokenizer.json"}))
      refuse("fast_tokenizer_files", "[\"tokenizer.json\"]: files for single versions of transformers are not read");
  const bool is_older = values_.contains(kAdditional) && (!values_.contains(kExtra) || says_nothing(values_[kExtra]));
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
    take_named(config.ordered[is_older ? kAdditional : kExtra]);
}

/// Special tokens by names of their own.
void Said::take_named(const nlohmann::ordered_json& names) {
  for (const auto& [name, value] : names.items())
    more_roles_.emplace_back(name, token_of(values_[kExtra][name], std::string(kExtra) + "." + name, false));
  values_.erase(kExtra);
}

void Said::read_legacy(const Json* of_tokenizer_json) {
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
  const Object file = object_of(path);
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
  if (!of_tokenizer_json) return;
  const std::string source = path_of("tokenizer.json");
  const JsonFields root(*of_tokenizer_json, "", source);
  for (const JsonFields& fields : root.has("added_tokens") ? root.list("added_tokens") : std::vector<JsonFields>())
    if (!fields.text("content").empty()) add(fields.number("id", kMaxTokens - 1), read_added_token(fields));
}

/// An older file, which says the same as the one that replaced it; where the two differ, the older one counts.
void Said::read_special_tokens_map() {
  const std::string path = path_of("special_tokens_map.json");
  const Object map = object_of(path);
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
    take_named(map.ordered[kExtra]);
}

void Said::read_roles() {
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

const std::vector<AddedToken>& Said::extra() const {
  static const std::vector<AddedToken> kNone;
  return mentions(kExtra) ? extra_ : additional ? *additional : kNone;
}

std::vector<AddedToken> Said::list_of(const std::string& key) const {
  if (!values_[key].is_array()) refuse(key, "a list of tokens");
  std::vector<AddedToken> list;
  for (const Json& value : values_[key])
    list.push_back(token_of(value, key + "[" + std::to_string(list.size()) + "]", files_.contains(key)));
  return list;
}

/// A content, or an object, which in tokenizer_config.json says that it is one of a token.
AddedToken Said::token_of(const Json& value, const std::string& key, bool is_special) const {
  const std::string source = file_of(key.substr(0, key.find_first_of(".["))), place = as_place(key);
  const bool is_empty = value.is_string() && value.get_ref<const std::string&>().empty();
  if (is_empty || !(value.is_string() || value.is_object()))
    throw Error("open_tokenizer", {source + ": " + place + " is " + io::as_shown(value) + ", must be a token"});
  if (value.is_string()) return {.content = value, .is_plain = true};
  const JsonFields fields(value, place, source);
  for (const auto& [name, ignored] : value.items())
    if (std::string_view(" __type content single_word lstrip rstrip normalized special ").find(" " + name + " ") ==
        std::string_view::npos)
      fields.refuse("has " + io::in_quotes(name) + ", which no token has");
  const bool is_entry = key.starts_with("added_tokens_decoder") || is_special;
  if (!is_entry && fields.text("__type", "") != "AddedToken")
    fields.refuse("__type is missing or another, must be \"AddedToken\"");
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
  fields.require(token.content.size() <= kMaxTokenBytes, "content", "shorter");
  return token;
}

// -------------------------------------------------------------------------------------------------------------- values

std::string Said::file_of(const std::string& key) const {
  const auto found = files_.find(key);
  return found == files_.end() ? path_of("tokenizer_config.json") : found->second;
}

void Said::refuse(const std::string& key, const std::string& what) const {
  const std::string shown = values_.contains(key) ? io::as_shown(values_[key]) : "missing";
  throw Error("open_tokenizer", {file_of(key) + ": " + key + " is " + shown + ", must be " + what});
}

bool Said::has(const char* key) const { return find(key) != nullptr; }

const Json* Said::find(const char* key) const {
  const auto found = values_.find(key);
  return found == values_.end() || found->is_null() ? nullptr : &*found;
}

bool Said::boolean(const char* key, bool fallback, std::optional<bool> null) const {
  if (!mentions(key)) return fallback;
  const Json& value = values_[key];
  if (value.is_null() && null) return *null;
  if (!value.is_boolean()) refuse(key, null ? "true, false or null" : "true or false");
  return value.get<bool>();
}

std::optional<std::string> Said::text(const char* key) const {
  const Json* value = find(key);
  if (value && !value->is_string()) refuse(key, "a string");
  return value ? std::optional(value->get<std::string>()) : std::nullopt;
}

int64_t Said::number(const char* key, int64_t highest, int64_t fallback) const {
  if (!mentions(key)) return fallback;
  const auto value = io::whole_number(values_[key]);
  if (!value || *value > highest) refuse(key, "a whole number from 0 to " + std::to_string(highest));
  return *value;
}

const AddedToken* Said::role(std::string_view name) const {
  for (const auto& [role, token] : roles_)
    if (role == name) return token ? &*token : nullptr;
  return nullptr;
}

void Said::set_default(const std::string& role, const std::optional<AddedToken>& token) {
  const auto same = [&](const auto& entry) { return entry.first == role; };
  if (std::any_of(roles_.begin(), roles_.end(), same)) return;
  const auto rank = [](const std::string& name) {
    return std::find(std::begin(kRoles), std::end(kRoles), name) - std::begin(kRoles);
  };
  const auto behind = [&](const auto& entry) { return rank(entry.first) > rank(role); };
  roles_.emplace(std::find_if(roles_.begin(), roles_.end(), behind), role, token);
}

const std::string& Said::require(const std::string& role) const {
  const AddedToken* token = this->role(role);
  if (!token) refuse(role, "a token");
  return token->content;
}

}  // namespace attn::text
