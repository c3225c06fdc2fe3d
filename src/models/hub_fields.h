// hub_fields: the fields of one config.json, and what is wrong with them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "models/families.h"

namespace attn::models {

/// Reads fields into a Config; collects reasons, each after the file's name.
class FieldReader {
 public:
  /// `theirs` has other names where `aliases` say so.
  FieldReader(io::Json theirs, const std::string& source) : theirs_(std::move(theirs)), source_(source) {}
  void rename(const std::vector<std::pair<const char*, const char*>>& aliases);

  const io::Json& all() const { return theirs_; }
  /// Null where it is absent.
  const io::Json* given(const std::string& name) const { return given_in(theirs_, name); }
  static const io::Json* given_in(const io::Json& object, const std::string& name);
  /// The field, null where it is absent or null.
  const io::Json& field(const std::string& name) const;

  void refuse(const std::string& reason) { reasons_.push_back(source_ + ": " + reason); }
  void refuse(const std::string& name, const io::Json& value, const std::string& wanted) {
    refuse(name + " must be " + wanted + ", not " + io::as_shown(value));
  }
  /// Also those of an Error about a Config, in the names that the family's file has for its fields.
  void refuse(const Error& error, const std::vector<FieldRule>& rules);
  bool good() const { return reasons_.empty(); }
  void done() const {
    if (!reasons_.empty()) throw Error("config", reasons_);
  }

  /// A field of ours to their value, which errors call `name`.
  void set(Config& config, const std::string& ours, const io::Json& value, const std::string& name);
  void apply(Config& config, const FieldRule& rule);

 private:
  void require_above_zero(const Config& config, const FieldRule& rule, const io::Json& value);
  io::Json theirs_;
  std::string source_;
  std::vector<std::string> reasons_;
};

/// rope_parameters, or what older files have in their place.
void read_rope(FieldReader& reader, const RopeRule& rule, Config& config);

}  // namespace attn::models
