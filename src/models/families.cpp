// The table of families, and what its parts share.
#include "models/families.h"

#include <cmath>
#include <map>
#include <optional>

#include "io/json.h"

namespace attn::models {
namespace {

using io::Json;

const std::vector<Family>& table() {
  static const std::vector<Family> all = decoder_families() + encoder_families() + answering_families();
  return all;
}

/// Null where the field is absent.
const Json* given(const Json& theirs, const char* name) {
  const auto found = theirs.find(name);
  return found == theirs.end() ? nullptr : &*found;
}

}  // namespace

const Family* find_family(const std::string& name) {
  for (const Family& family : table())
    if (family.name == name) return &family;
  return nullptr;
}

std::vector<std::string> hub_families() {
  std::vector<std::string> names;
  for (const Family& family : table()) names.emplace_back(family.name);
  return names;
}

namespace {

/// The text that # and * of a pattern mean in a name; nothing if they do not fit.
struct Match {
  std::string number, ending;
};

std::optional<Match> match(const std::string& pattern, const std::string& name) {
  Match found;
  size_t at = 0;
  for (size_t p = 0; p < pattern.size(); ++p) {
    if (pattern[p] == '#') {
      const size_t begin = at;
      while (at < name.size() && name[at] >= '0' && name[at] <= '9') ++at;
      found.number = name.substr(begin, at - begin);
      if (found.number.empty()) return {};
    } else if (pattern[p] == '*') {
      found.ending = name.substr(at);
      if (found.ending != "weight" && found.ending != "bias") return {};
      at = name.size();
    } else if (at >= name.size() || name[at++] != pattern[p]) {
      return {};
    }
  }
  return at == name.size() ? std::optional(found) : std::nullopt;
}

std::string filled(std::string pattern, const Match& with) {
  if (const size_t at = pattern.find('#'); at != std::string::npos) pattern.replace(at, 1, with.number);
  if (const size_t at = pattern.find('*'); at != std::string::npos) pattern.replace(at, 1, with.ending);
  return pattern;
}

}  // namespace

std::vector<std::string> names_by(const NameRule& rule, const std::string& ours) {
  std::vector<std::string> names;
  if (const std::optional<Match> found = match(rule.ours, ours))
    for (const char* theirs : rule.theirs) names.push_back(filled(theirs, *found));
  return names;
}

void PickedRows::add(int64_t first, int64_t count) {
  for (int64_t n = 0; n < count; ++n) rows.push_back(first + n);
}

Fields common_fields() {
  return {{"vocab_size", "vocab_size", Meaning::positive},
          {"hidden_size", "embed_dim", Meaning::positive},
          {"num_hidden_layers", "layers", Meaning::positive},
          {"num_attention_heads", "heads", Meaning::positive},
          {"intermediate_size", "hidden_dim", Meaning::positive},
          {"max_position_embeddings", "context", Meaning::positive},
          {"tie_word_embeddings", "tie_embeddings"}};
}

HeadRules row_heads() {
  return {{"Pooler", R"({"head": false, "pooler": true})", {{"pooler.*", {"pooler.dense.*"}}}},
          {"Model", R"({"head": false})", {}}};
}

void refuse_field(const char* name, const Json& value, const std::string& wanted) {
  throw Error("config", {std::string(name) + " must be " + wanted + ", not " + io::as_shown(value)});
}

int64_t whole_field(const Json& theirs, const char* name, int64_t otherwise, int64_t lowest, int64_t highest) {
  const Json* value = given(theirs, name);
  if (!value) return otherwise;
  const std::optional<int64_t> number = io::whole_number(*value);
  if (!number || *number < lowest || *number > highest)
    refuse_field(name, *value, "a whole number from " + std::to_string(lowest) + " to " + std::to_string(highest));
  return *number;
}

bool flag_field(const Json& theirs, const char* name, bool otherwise) {
  const Json* value = given(theirs, name);
  if (value && !value->is_boolean()) refuse_field(name, *value, "true or false");
  return value ? value->get<bool>() : otherwise;
}

std::string text_field(const Json& theirs, const char* name, const std::string& otherwise) {
  const Json* value = given(theirs, name);
  if (value && !value->is_string()) refuse_field(name, *value, "a text");
  return value ? value->get<std::string>() : otherwise;
}

std::string activation_named(const std::string& theirs) {
  static const std::map<std::string, std::string> ours = {
      {"gelu_new", "gelu_tanh"},  {"gelu_pytorch_tanh", "gelu_tanh"}, {"gelu_python_tanh", "gelu_tanh"},
      {"gelu_fast", "gelu_tanh"}, {"gelu_accurate", "gelu_tanh"},     {"gelu_python", "gelu"},
      {"swish", "silu"}};
  const auto found = ours.find(theirs);
  return found == ours.end() ? theirs : found->second;
}

void scale_by_width(Config& config) { config.embedding_scale = std::sqrt(static_cast<double>(config.embed_dim)); }

}  // namespace attn::models
