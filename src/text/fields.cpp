// The fields of one JSON object.
#include "text/fields.h"

#include <algorithm>
#include <utility>

#include "attn/core.h"

namespace attn::text {
namespace {

std::string in_lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return text;
}

}  // namespace

JsonFields::JsonFields(const io::Json& json, std::string place, const std::string& source)
    : json_(json), place_(std::move(place)), source_(source) {
  if (!json_.is_object()) refuse("is " + io::as_shown(json_) + ", must be an object");
}

void JsonFields::refuse(const std::string& reason) const {
  throw Error("load_tokenizer", {source_ + ": " + (place_.empty() ? "" : place_ + ": ") + reason});
}

std::string JsonFields::type() const { return text("type", ""); }

void JsonFields::refuse_type(std::initializer_list<const char*> known) const {
  std::string names;
  for (const char* name : known) names += (names.empty() ? "" : ", ") + std::string(name);
  const auto found = json_.find("type");
  refuse("type is " + (found == json_.end() ? "missing" : io::as_shown(*found)) + ", must be one of " + names);
}

bool JsonFields::has(const char* key) const {
  const auto found = json_.find(key);
  return found != json_.end() && !found->is_null();
}

const io::Json& JsonFields::at(const char* key) const {
  const auto found = json_.find(key);
  if (found == json_.end()) refuse(std::string("has no ") + key);
  return *found;
}

void JsonFields::require(bool condition, const char* key, const char* what) const {
  if (!condition) refuse(std::string(key) + " is " + io::as_shown(at(key)) + ", must be " + what);
}

bool JsonFields::boolean(const char* key, std::optional<bool> fallback) const {
  if (fallback && !has(key)) return *fallback;
  require(at(key).is_boolean(), key, "true or false");
  return at(key).get<bool>();
}

std::string JsonFields::text(const char* key, std::optional<std::string> fallback) const {
  if (fallback && !has(key)) return *fallback;
  require(at(key).is_string(), key, "a string");
  return at(key).get<std::string>();
}

int64_t JsonFields::number(const char* key, int64_t highest, std::optional<int64_t> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const auto value = io::whole_number(at(key));
  require(value && *value <= highest, key, ("a whole number from 0 to " + std::to_string(highest)).c_str());
  return *value;
}

std::string JsonFields::place_of(const char* key) const { return place_.empty() ? key : place_ + "." + key; }

JsonFields JsonFields::object(const char* key) const { return JsonFields(at(key), place_of(key), source_); }

std::vector<JsonFields> JsonFields::list(const char* key) const {
  require(at(key).is_array(), key, "a list");
  std::vector<JsonFields> entries;
  for (const io::Json& entry : at(key))
    entries.emplace_back(entry, place_of(key) + "[" + std::to_string(entries.size()) + "]", source_);
  return entries;
}

size_t JsonFields::choice(const char* key, std::initializer_list<const char*> names,
                          std::optional<size_t> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const std::string given = in_lower_case(text(key));
  std::string known;
  for (size_t n = 0; n < names.size(); ++n) {
    if (in_lower_case(names.begin()[n]) == given) return n;
    known += (n == 0 ? "" : ", ") + std::string(names.begin()[n]);
  }
  refuse(std::string(key) + " is " + io::as_shown(at(key)) + ", must be one of " + known);
}

}  // namespace attn::text
