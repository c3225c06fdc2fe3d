// fields: reads the fields of one JSON object of a tokenizer's files by name and type. A field that is missing or has
// another type or value than the caller allows is an Error, which names the file, the object and the field.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace attn::text {

class JsonFields {
 public:
  /// `place` is the path of the object in the file, such as "normalizer"; "" is the file itself. `source` is the name
  /// of the file in messages. `json` and `source` must outlive this object. Throws Error if `json` is not an object.
  JsonFields(const io::Json& json, std::string place, const std::string& source);

  const std::string& source() const { return source_; }
  const std::string& place() const { return place_; }
  const io::Json& json() const { return json_; }
  /// Throws "source: place: reason".
  [[noreturn]] void refuse(const std::string& reason) const;
  /// The field "type"; "" if it is missing.
  std::string type() const;
  /// Throws Error that lists the types that are supported.
  [[noreturn]] void refuse_type(std::initializer_list<const char*> known) const;

  /// False if the field is missing or null.
  bool has(const char* key) const;
  const io::Json& at(const char* key) const;
  /// The readers below return `fallback` if the field is missing or null. Without a fallback they throw Error.
  bool boolean(const char* key, std::optional<bool> fallback = std::nullopt) const;
  std::string text(const char* key, std::optional<std::string> fallback = std::nullopt) const;
  /// A whole number in [0, highest].
  int64_t number(const char* key, int64_t highest, std::optional<int64_t> fallback = std::nullopt) const;
  JsonFields object(const char* key) const;
  /// The objects of a list.
  std::vector<JsonFields> list(const char* key) const;
  /// The index of the field's value in `names`; case is ignored.
  size_t choice(const char* key, std::initializer_list<const char*> names, std::optional<size_t> fallback) const;

  /// Throws "key is VALUE, must be WHAT" unless `condition` holds.
  void require(bool condition, const char* key, const char* what) const;

 private:
  std::string place_of(const char* key) const;
  const io::Json& json_;
  std::string place_;
  const std::string& source_;
};

}  // namespace attn::text
