// fields: one object of a tokenizer.json, whose fields are asked for by name and type. What is wrong is an Error that
// names the file, the object and the field.
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
  /// `place` is where the object is, as "normalizer"; "" is the file itself. Both names are the error's.
  JsonFields(const io::Json& json, std::string place, const std::string& source);

  const std::string& source() const { return source_; }
  const std::string& place() const { return place_; }
  const io::Json& json() const { return json_; }
  /// Throws "source: place: reason".
  [[noreturn]] void refuse(const std::string& reason) const;
  /// "type"; "" where there is none.
  std::string type() const;
  [[noreturn]] void refuse_type(std::initializer_list<const char*> known) const;

  /// False for null too.
  bool has(const char* key) const;
  const io::Json& at(const char* key) const;
  /// Without a fallback the field must be there.
  bool boolean(const char* key, std::optional<bool> fallback = std::nullopt) const;
  std::string text(const char* key, std::optional<std::string> fallback = std::nullopt) const;
  /// In [0, highest].
  int64_t number(const char* key, int64_t highest, std::optional<int64_t> fallback = std::nullopt) const;
  JsonFields object(const char* key) const;
  /// Of objects.
  std::vector<JsonFields> list(const char* key) const;
  /// One of the names, whose place in the list is the result. Upper and lower case are the same.
  size_t choice(const char* key, std::initializer_list<const char*> names, std::optional<size_t> fallback) const;

  /// The value must be what the test said; throws "key is VALUE, must be WHAT".
  void require(bool condition, const char* key, const char* what) const;

 private:
  std::string place_of(const char* key) const;
  const io::Json& json_;
  std::string place_;
  const std::string& source_;
};

}  // namespace attn::text
