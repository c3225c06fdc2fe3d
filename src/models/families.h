// families: what is known of the models of the Hugging Face hub, as data. docs/adding-a-family.md walks through one.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "attn/models_config.h"

namespace attn::models {

/// How a tensor of a checkpoint becomes a parameter.
enum class Layout {
  rows,        ///< those listed, one below the other
  transposed,  ///< [in, out]: GPT-2's Conv1D
  plus_one     ///< a gain that is stored as its distance from 1: Gemma
};

/// Among the names of theirs: a bias that is not there, as large as the last of the list, or alone as it is wanted.
inline constexpr const char* kZeros = "0";

/// The rows of a checkpoint's tensors, one below the other, that make a parameter, in its order.
struct PickedRows {
  std::vector<int64_t> rows = {};
  int64_t of = 0;  ///< how many rows the tensors have
  /// Appends `count` rows from `first` on.
  void add(int64_t first, int64_t count);
};

/// Where a parameter is. In names # is the number of a layer and * is weight or bias. Theirs are after the
/// family's prefix, but for those that begin with a slash. Of several rules for one parameter the first counts whose
/// tensors are there.
struct NameRule {
  const char* ours;
  std::vector<const char*> theirs;
  Layout layout = Layout::rows;
  PickedRows (*pick)(const Config& config) = nullptr;  ///< null: all rows, as they are
};

/// The names of theirs for a parameter, with # and * filled in; none where the rule is about another parameter.
std::vector<std::string> names_by(const NameRule& rule, const std::string& ours);

/// What a field of config.json says.
enum class Meaning {
  value,         ///< the field of a Config, as it is
  positive,      ///< the same, a number above 0, which in a Config means something else
  activation,    ///< a name of transformers
  inverse_root,  ///< x^-1/2
  pair_reach,    ///< a window of x tokens in all, x / 2 on either side
  required       ///< it must have the value given, or be absent: nothing else is supported
};
struct FieldRule {
  const char* theirs;
  const char* ours;  ///< a field of a Config; of `required`, the value as JSON
  Meaning meaning = Meaning::value;
  const char* null = nullptr;  ///< the value of ours that null means, as JSON; without it null is refused
};

/// Where config.json says how rope rotates, beside rope_parameters and, in older files, rope_scaling.
struct RopeRule {
  const char* theta = "rope_theta";
  const char* part = nullptr;    ///< the share of a head that rotates; null: all of it always
  double rotated = 1;            ///< that share where the file has none
  bool long_only = false;        ///< the one scaling is longrope, which older files call "su" or "yarn": Phi 3
  const char* window = nullptr;  ///< the base of layers with a window: rope_parameters has an object for either kind
};

/// What a class of transformers, whose name ends like this, puts after the layers.
struct HeadRule {
  const char* suffix;
  const char* defaults;  ///< of a Config, as JSON
  std::vector<NameRule> names;
  std::vector<FieldRule> fields = {};
};

struct Family {
  const char* name;                   ///< model_type
  const char* prefix;                 ///< of the layers' tensors; missing where the layers were saved alone
  std::vector<const char*> defaults;  ///< of a Config, as JSON: transformers' own; a later one changes those before
  std::vector<FieldRule> fields;
  std::vector<NameRule> names;
  std::vector<HeadRule> heads;
  /// What no rule can say: fields that depend on others. Throws Error.
  void (*derive)(const nlohmann::json& theirs, Config& config) = nullptr;
  RopeRule rope = {};
  /// The letters of Config::mixers among which config.json chooses for each layer; "" = the layers are alike.
  const char* layer_types = "";
  /// Other names of fields, each with the field that it means, over which it wins.
  std::vector<std::pair<const char*, const char*>> aliases = {};
};

/// Before a file or a head changes them.
Config defaults_of(const Family& family);
/// Null for a name that is unknown.
const Family* find_family(const std::string& name);

// The parts of the table.
std::vector<Family> decoder_families();
std::vector<Family> encoder_families();
std::vector<Family> answering_families();

// What several parts share.
using NameRules = std::vector<NameRule>;
using Fields = std::vector<FieldRule>;
using HeadRules = std::vector<HeadRule>;
template <class T>
std::vector<T> operator+(std::vector<T> a, const std::vector<T>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
/// Sizes, by the names that most families have for them.
Fields common_fields();
/// Of models that end in rows, and perhaps a pooler of them.
HeadRules row_heads();
/// A whole number in [lowest, highest], or `otherwise` where the field is absent. Throws Error.
int64_t whole_field(const nlohmann::json& theirs, const char* name, int64_t otherwise, int64_t lowest, int64_t highest);
/// True or false, likewise.
bool flag_field(const nlohmann::json& theirs, const char* name, bool otherwise);
/// A text, likewise.
std::string text_field(const nlohmann::json& theirs, const char* name, const std::string& otherwise);
/// Throws Error: what the field must be, and what it is.
[[noreturn]] void refuse_field(const char* name, const nlohmann::json& value, const std::string& wanted);
/// The activation that a name of transformers means; the name itself where none of ours is it.
std::string activation_named(const std::string& theirs);
void scale_by_width(Config& config);

}  // namespace attn::models
