// The fields of a JSON object that asks for a text, in a request of attn serve or a line of attn generate --batch.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "attn/generate_text.h"

namespace cli {

/// What is wrong with a field, whose name may be empty.
struct FieldError : std::runtime_error {
  explicit FieldError(const std::string& reason, std::string field_name = {})
      : std::runtime_error(reason), field(std::move(field_name)) {}
  std::string field;
};

/// A JSON object whose fields are read one by one. All methods throw FieldError.
class Fields {
 public:
  using Json = nlohmann::ordered_json;

  /// `what` the text is, in errors: "the body".
  Fields(const std::string& text, const std::string& what);
  const Json& all() const { return all_; }
  /// Null where the field is absent or null.
  const Json* take(const std::string& name);
  const Json& required(const std::string& name);
  void number(const std::string& name, std::optional<double>& to, double least, double most);
  void number(const std::string& name, std::optional<int64_t>& to, double least, double most);
  bool flag(const std::string& name);
  std::string text(const std::string& name, const std::string& otherwise);
  /// Fields that have no use here, and which change no text.
  void ignore(std::initializer_list<const char*> names) { read_.insert(names.begin(), names.end()); }
  /// A field that may only have one of these values, which mean the absence of what it is for.
  void refuse(const std::string& name, const std::vector<Json>& harmless);
  /// Refuses fields that nobody has read.
  void done() const;
  /// A value, short enough for a message.
  static std::string shown(const Json& value);

 private:
  Json all_;
  std::set<std::string> read_;
};

/// True for a list that has something, each of a kind, as all_of(list, &Json::is_string).
bool all_of(const Fields::Json& list, bool (Fields::Json::*is)() const noexcept);

/// temperature, top_p, top_k, min_p, repetition_penalty, seed and stop, where they are given.
void read_sampling(Fields& fields, attn::generate::TextOptions& options);

}  // namespace cli
