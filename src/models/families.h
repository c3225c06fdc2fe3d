// families: what is known of the models of the Hugging Face hub, as data. docs/adding-a-family.md walks through one.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "attn/models_config.h"

namespace attn::models {

/// How a tensor of a checkpoint becomes a parameter.
enum class Layout {
  rows,         ///< those listed, one below the other
  transposed,   ///< [in, out]: GPT-2's Conv1D
  interleaved,  ///< rows go by head, in each first its query, then its key and value: GPT-NeoX
  plus_one      ///< a gain that is stored as its distance from 1: Gemma
};

/// Among the names of theirs: a bias that is not there, as large as the last of the list.
inline constexpr const char* kZeros = "0";

/// Where a parameter lies. In names # is the number of a layer and * is weight or bias. Theirs stand behind the
/// family's prefix, but for those that begin with a slash.
struct NameRule {
  const char* ours;
  std::vector<const char*> theirs;
  Layout layout = Layout::rows;
};

/// What a field of config.json says.
enum class Meaning {
  value,         ///< the field of a Config, as it is
  activation,    ///< a name of transformers
  inverse_root,  ///< x^-1/2
  pair_reach,    ///< a window of x tokens in all, x / 2 on either side
  required,      ///< it must have the value given, or be absent: nothing else is served
};
struct FieldRule {
  const char* theirs;
  const char* ours;  ///< a field of a Config; of `required`, the value as JSON
  Meaning meaning = Meaning::value;
};

/// What a class of transformers, whose name ends like this, puts behind the layers.
struct HeadRule {
  const char* suffix;
  const char* fields;  ///< of a Config, as JSON
  std::vector<NameRule> names;
};

struct Family {
  const char* name;                   ///< model_type
  const char* prefix;                 ///< of the layers' tensors; missing where the layers were saved alone
  std::vector<const char*> defaults;  ///< of a Config, as JSON; a later one changes those before
  std::vector<FieldRule> fields;
  std::vector<NameRule> names;
  std::vector<HeadRule> heads;
  /// What no rule can say: fields that depend on others.
  void (*derive)(const nlohmann::json& theirs, Config& config) = nullptr;
};

/// Null for a name that is unknown.
const Family* find_family(const std::string& name);

}  // namespace attn::models
