// config.json of transformers as a Config, by the rules of its family.
#include <algorithm>
#include <cctype>
#include <cmath>

#include "attn/core_names.h"
#include "models/hub.h"
#include "models/hub_fields.h"

namespace attn::models {

using io::Json;

// ------------------------------------------------------------------------------------------------------ single fields

void FieldReader::rename(const std::vector<std::pair<const char*, const char*>>& aliases) {
  for (const auto& [other, name] : aliases)
    if (const Json* value = given(other)) theirs_[name] = Json(*value);
}

const Json* FieldReader::given_in(const Json& object, const std::string& name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

const Json& FieldReader::field(const std::string& name) const {
  static const Json none;
  const Json* value = given(name);
  return value ? *value : none;
}

namespace {

/// The text with `to` for every word `from`; where that is no name but a plain word, a number has to follow.
std::string renamed(std::string text, const std::string& from, const std::string& to) {
  const auto is_part = [&](size_t n) { return n < text.size() && (std::isalnum(text[n]) || text[n] == '_'); };
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos;) {
    const size_t end = at + from.size();
    const bool is_value = end + 1 < text.size() && text[end] == ' ' && std::isdigit(text[end + 1]);
    const bool is_word = !is_part(end) && (at == 0 || !is_part(at - 1));
    const bool is_field = is_word && (is_value || from.find('_') != std::string::npos);
    if (is_field) text.replace(at, from.size(), to);
    at += is_field ? to.size() : from.size();
  }
  return text;
}

}  // namespace

void FieldReader::refuse(const Error& error, const std::vector<FieldRule>& rules) {
  for (std::string reason : error.reasons()) {
    for (const FieldRule& rule : rules)
      if (rule.meaning != Meaning::required) reason = renamed(reason, rule.ours, rule.theirs);
    refuse(reason);
  }
}

void FieldReader::set(Config& config, const std::string& ours, const Json& value, const std::string& name) {
  if (const std::string reason = assign(config, ours, value); !reason.empty())
    refuse(reason.starts_with(ours + " ") ? name + reason.substr(ours.size()) : name + ": " + reason);
}

void FieldReader::apply(Config& config, const FieldRule& rule) {
  const Json* given = this->given(rule.theirs);
  if (!given) return;
  const Json& value = *given;
  if (value.is_null() && rule.null) {
    if (rule.meaning != Meaning::required) set(config, rule.ours, Json::parse(rule.null), rule.theirs);
    return;
  }
  switch (rule.meaning) {
    case Meaning::positive:
      if (value == 0) return refuse(rule.theirs, value, "above 0");
      [[fallthrough]];
    case Meaning::value: return set(config, rule.ours, value, rule.theirs);
    case Meaning::activation:
      return set(config, rule.ours, value.is_string() ? Json(activation_named(value.get<std::string>())) : value,
                 rule.theirs);
    case Meaning::inverse_root:
      if (!value.is_number() || value <= 0) return refuse(rule.theirs, value, "a number above 0");
      return set(config, rule.ours, 1 / std::sqrt(value.get<double>()), rule.theirs);
    case Meaning::pair_reach:
      if (const std::optional<int64_t> pair = io::whole_number(value); pair && *pair <= (1 << 24))
        return set(config, rule.ours, *pair / 2 + 1, rule.theirs);
      return refuse(rule.theirs, value, "a whole number from 0 to " + std::to_string(1 << 24));
    case Meaning::required:
      if (value != Json::parse(rule.ours))
        refuse(rule.theirs + (" is " + io::as_shown(value)) + ", only " + rule.ours + " is supported");
  }
}

// ------------------------------------------------------------------------------------------------------ the whole file
namespace {

/// A name without what names of families and of classes differ in.
std::string plain(std::string name) {
  std::erase_if(name, [](char c) { return c == '-' || c == '_'; });
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

/// True where a class of this name has that head. "Model" ends the names of other heads too, as of BertLMHeadModel.
bool has_head(const std::string& name, const std::string& suffix) {
  if (!name.ends_with(suffix)) return false;
  const std::string before = plain(name.substr(0, name.size() - suffix.size()));
  const std::vector<std::string> families = hub_families();
  return suffix != "Model" || before.empty() ||
         std::any_of(families.begin(), families.end(), [&](const std::string& f) { return plain(f) == before; });
}

/// The head that `task` ends the name of, or the first architecture that the file names.
const HeadRule* head_of(FieldReader& reader, const Family& family, const std::string& task) {
  const Json& architectures = reader.field("architectures");
  const bool named = architectures.is_array() && !architectures.empty() && architectures[0].is_string();
  if (!named && !architectures.is_null() && architectures != Json::array())
    reader.refuse("architectures", architectures, "a list of names");
  const std::string name = !task.empty() || !named ? task : architectures[0].get<std::string>();
  if (name.empty()) return &family.heads.front();
  std::vector<std::string> known;
  for (const HeadRule& head : family.heads) {
    if (has_head(name, head.suffix)) return &head;
    known.emplace_back(head.suffix);
  }
  reader.refuse("architectures: a " + std::string(family.name) + " that ends in " + io::in_quotes(name) +
                " is not supported; known are " + joined(known));
  return nullptr;
}

/// What files of every family may say.
void require_common(FieldReader& reader, const Config& config) {
  const auto require = [&](const char* name, const Json& served, bool or_null) {
    if (const Json* value = reader.given(name); value && *value != served && !(or_null && value->is_null()))
      reader.refuse(name + (" is " + io::as_shown(*value)) + ", only " + served.dump() + " is supported");
  };
  require("is_encoder_decoder", config.encoder_layers > 0, false);
  if (config.causal) require("is_causal", true, false);
  for (const char* name : {"per_layer_config", "pruned_heads"}) require(name, Json::object(), true);
}

/// The names of a classifier's classes, "0" ... in order: as many as it has.
void set_classes(FieldReader& reader, Config& config, const HeadRule& head) {
  const std::string suffix = head.suffix;
  if (!suffix.ends_with("Classification")) return;
  const Json &labels = reader.field("id2label"), &count = reader.field("num_labels");
  if (!labels.is_null() && (!labels.is_object() || labels.empty()))
    return reader.refuse("id2label", labels, "an object of classes and their names");
  const auto classes = static_cast<int64_t>(labels.is_object() ? labels.size() : 2);
  for (int64_t n = 0; n < classes && labels.is_object(); ++n) {
    const Json* name = FieldReader::given_in(labels, std::to_string(n));
    if (!name || !name->is_string() || !is_label(name->get<std::string>()))
      return reader.refuse("id2label names " + std::to_string(classes) + " classes; that of class " +
                           std::to_string(n) + (name ? " is " + io::as_shown(*name) : " is absent") +
                           ", must be 1 to 256 bytes of printable text");
  }
  if (labels.is_object() && !count.is_null() && count != classes)
    return reader.refuse("num_labels is " + io::as_shown(count) + ", but id2label names " + std::to_string(classes) +
                         " classes");
  if (count == 0) return reader.refuse("num_labels", count, "above 0");
  reader.set(config, "classes", count.is_null() ? Json(classes) : count, "num_labels");
}

/// As the pipeline of transformers understands a classifier.
void set_problem_type(FieldReader& reader, Config& config) {
  const Json& type = reader.field("problem_type");
  if (config.classes == 0) return;
  if (type.is_null()) {
    if (config.classes == 1) config.problem_type = ProblemType::multi_label;
    return;
  }
  const auto problem = type.is_string() ? from_name<ProblemType>(type.get<std::string>()) : std::nullopt;
  if (!problem)
    return reader.refuse("problem_type", type, "regression, single_label_classification or multi_label_classification");
  if (problem == ProblemType::single_label && config.classes == 1)
    return reader.refuse(
        "problem_type is single_label_classification, but there is one label: only several are supported");
  config.problem_type = *problem;
}

/// transformers' names of what mixes a layer's tokens, and ours.
constexpr auto kLayerTypes = std::to_array<std::pair<const char*, char>>(
    {{"full_attention", 'f'}, {"sliding_attention", 'w'}, {"linear_attention", 'l'}, {"conv", 'c'}});

const char* type_named(char letter) {
  for (const auto& [name, known] : kLayerTypes)
    if (known == letter) return name;
  return "";
}

/// What mixes the tokens of each layer, one by one.
void read_layer_types(FieldReader& reader, const Family& family, Config& config) {
  const Json& types = reader.field("layer_types");
  if (!types.is_null()) {
    if (!types.is_array()) return reader.refuse("layer_types", types, "a list");
    std::string pattern;
    std::string alike;  // of a family whose layers are all of one kind
    for (int64_t n = 0; n < config.layers; ++n)
      alike += mixer_of(config, n) == 'w' && !config.window ? 'f' : mixer_of(config, n);
    const std::string supported = family.layer_types[0] ? family.layer_types : "wfl";
    for (const Json& type : types) {
      const auto kind = std::find_if(kLayerTypes.begin(), kLayerTypes.end(), [&](const auto& known) {
        return type == known.first && supported.find(known.second) != std::string::npos;
      });
      if (kind == kLayerTypes.end()) {
        std::vector<std::string> names;
        for (const auto& [name, letter] : kLayerTypes)
          if (supported.find(letter) != std::string::npos) names.emplace_back(name);
        return reader.refuse("layer_types has " + io::as_shown(type) + ", supported are: " + joined(names));
      }
      pattern += kind->second;
    }
    if (std::ssize(pattern) != config.layers)
      return reader.refuse("layer_types has " + std::to_string(pattern.size()) + " entries for " +
                           std::to_string(config.layers) + " layers");
    if (family.layer_types[0]) config.mixers = pattern;
    else if (pattern != alike)
      return reader.refuse(std::string("layer_types must be ") + type_named(alike.front()) + " for every layer of a " +
                           family.name);
  }
  for (int64_t n = 0; n < config.layers && family.layer_types[0] && !config.window; ++n)
    if (mixer_of(config, n) == 'w' && (!types.is_null() || reader.given("sliding_window")))
      return reader.refuse("layer_types: layer " + std::to_string(n) +
                           " is sliding_attention, but there is no sliding_window, or it is not used");
}

void derive(FieldReader& reader, const Family& family, Config& config) {
  if (!family.derive) return;
  try {
    family.derive(reader.all(), config);
  } catch (const Error& error) {
    for (const std::string& reason : error.reasons()) reader.refuse(reason);
  }
}

}  // namespace

Config defaults_of(const Family& family) {
  Config config;
  for (const char* fields : family.defaults) apply_json(config, fields, family.name);
  config.model = family.name;
  return config;
}

Config defaults_named(const std::string& name) {
  const std::vector<std::string> ours = families();  // of two llamas this one
  const Family* theirs = find_family(name);
  if (!theirs || std::find(ours.begin(), ours.end(), name) != ours.end()) return family(name);
  Config config = defaults_of(*theirs);
  apply_json(config, theirs->heads.front().defaults, name);
  return config;
}

HubModel read_hub_config(const Json& theirs, const std::string& source, const std::string& task) {
  FieldReader reader(theirs, source);
  HubModel model;
  const Json& type = reader.field("model_type");
  model.family = type.is_string() ? find_family(type.get<std::string>()) : nullptr;
  if (!model.family) {
    reader.refuse("unknown model_type " + io::as_shown(type) + "; known are: " + joined(hub_families()));
    reader.done();
  }
  const Family& family = *model.family;
  reader.rename(family.aliases);
  Config& config = model.config = defaults_of(family);
  model.head = head_of(reader, family, task);
  if (model.head) apply_json(config, model.head->defaults, model.head->suffix);
  for (const FieldRule& rule : family.fields) reader.apply(config, rule);
  if (model.head) {
    for (const FieldRule& rule : model.head->fields) reader.apply(config, rule);
    set_classes(reader, config, *model.head);
    set_problem_type(reader, config);
  }
  require_common(reader, config);
  if (const Json& stored = reader.field("quantization_config"); !stored.is_null())
    model.stored = read_stored_format(stored, source);
  if (reader.good()) derive(reader, family, config);
  if (config.classes) config.logit_softcap = 0;  // of token logits alone
  if (reader.good()) read_layer_types(reader, family, config);
  if (reader.good() && config.positions == PositionEncoding::rope) read_rope(reader, family.rope, config);
  reader.done();
  try {
    check(config);
  } catch (const Error& error) {
    reader.refuse(error, family.fields + Fields{{"short_factor", "rope_within"}, {"long_factor", "rope_beyond"}});
  }
  reader.done();
  return model;
}

}  // namespace attn::models
