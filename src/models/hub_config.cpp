// config.json of transformers as a Config, by the rules of its family.
#include <algorithm>
#include <cmath>
#include <map>

#include "models/hub.h"

namespace attn::models {
namespace {

using io::Json;

/// One file's fields; collects what is wrong with them.
class Reader {
 public:
  Reader(const Json& theirs, const std::string& source) : theirs_(theirs), source_(source) {}

  void refuse(const std::string& reason) { reasons_.push_back(source_ + ": " + reason); }
  void done() const {
    if (!reasons_.empty()) throw Error("config", reasons_);
  }

  /// The field; null where it is absent or null.
  const Json& field(const std::string& name) const { return field_of(theirs_, name); }
  static const Json& field_of(const Json& object, const std::string& name) {
    static const Json none;
    const auto found = object.find(name);
    return found == object.end() ? none : *found;
  }
  bool has(const std::string& name) const { return !field(name).is_null(); }

  void set(Config& config, const std::string& ours, const Json& value, const std::string& theirs) {
    try {
      apply_json(config, Json::object({{ours, value}}).dump(-1, ' ', true, Json::error_handler_t::replace), "");
    } catch (const Error& error) {
      for (const std::string& reason : error.reasons())
        refuse(theirs + ": " + (reason.starts_with(": ") ? reason.substr(2) : reason));
    }
  }

  void apply(Config& config, const FieldRule& rule) {
    const Json& value = field(rule.theirs);
    if (value.is_null()) return;
    switch (rule.meaning) {
      case Meaning::value: return set(config, rule.ours, value, rule.theirs);
      case Meaning::activation: return set(config, rule.ours, activation(value), rule.theirs);
      case Meaning::inverse_root:
        if (!value.is_number() || value <= 0)
          return refuse(rule.theirs + (" is " + io::as_shown(value)) + ", must be positive");
        return set(config, rule.ours, 1 / std::sqrt(value.get<double>()), rule.theirs);
      case Meaning::pair_reach:
        if (!value.is_number_integer() || value < 0 || value > (1 << 24))
          return refuse(rule.theirs + (" is " + io::as_shown(value)) + ", must be a whole number");
        return set(config, rule.ours, value.get<int64_t>() / 2 + 1, rule.theirs);
      case Meaning::required:
        if (value != Json::parse(rule.ours))
          refuse(rule.theirs + (" is " + io::as_shown(value)) + ", only " + rule.ours + " is served");
    }
  }

  /// The layers with and without a window.
  void layer_types(Config& config) {
    const Json& types = field("layer_types");
    if (!types.is_array()) return;
    std::string pattern;
    for (const Json& type : types) {
      const std::string name = type.is_string() ? type.get<std::string>() : "";
      if (name != "full_attention" && name != "sliding_attention")
        return refuse("layer_types has " + io::as_shown(type) + ", served are full_attention and sliding_attention");
      pattern += name[0] == 'f' ? 'f' : 'w';
    }
    if (static_cast<int64_t>(pattern.size()) < config.layers)
      return refuse("layer_types has " + std::to_string(pattern.size()) + " entries for " +
                    std::to_string(config.layers) + " layers");
    set(config, "window_layers", pattern, "layer_types");
  }

  /// rope_parameters, or rope_theta and rope_scaling of older files; one for all layers, or one for each type.
  void rope(Config& config) {
    if (config.positions != Positions::rope) return;
    const Json& parameters = field("rope_parameters");
    if (parameters.is_object() && parameters.contains("full_attention")) {
      rope_of(config, field_of(parameters, "full_attention"));
      if (const Json& theta = field_of(field_of(parameters, "sliding_attention"), "rope_theta"); !theta.is_null())
        set(config, "window_theta", theta, "rope_parameters.sliding_attention.rope_theta");
      return;
    }
    if (has("rope_theta")) set(config, "rope_theta", field("rope_theta"), "rope_theta");
    for (const char* part : {"partial_rotary_factor", "rotary_pct"})
      if (has(part)) rotated_part(config, field(part), part);
    if (parameters.is_object()) rope_of(config, parameters);
    if (field("rope_scaling").is_object()) rope_of(config, field("rope_scaling"));
  }

 private:
  static Json activation(const Json& theirs) {
    static const std::map<std::string, std::string> ours = {
        {"gelu_new", "gelu_tanh"}, {"gelu_pytorch_tanh", "gelu_tanh"}, {"gelu_fast", "gelu_tanh"}, {"swish", "silu"}};
    const auto found = theirs.is_string() ? ours.find(theirs.get<std::string>()) : ours.end();
    return found == ours.end() ? theirs : Json(found->second);
  }

  void rotated_part(Config& config, const Json& part, const std::string& name) {
    if (!part.is_number() || part <= 0 || part > 1)
      return refuse(name + " is " + io::as_shown(part) + ", must be in (0, 1]");
    const int64_t width = config.head_dim ? config.head_dim : config.embed_dim / std::max<int64_t>(config.heads, 1);
    if (part != 1)
      set(config, "rope_width", static_cast<int64_t>(static_cast<double>(width) * part.get<double>()), name);
  }

  void rope_of(Config& config, const Json& rope) {
    if (!rope.is_object()) return refuse("the parameters of rope are " + io::as_shown(rope) + ", must be an object");
    if (rope.contains("rope_theta")) set(config, "rope_theta", rope["rope_theta"], "rope_theta");
    if (rope.contains("partial_rotary_factor"))
      rotated_part(config, rope["partial_rotary_factor"], "partial_rotary_factor");
    Json kind = field_of(rope, rope.contains("rope_type") ? "rope_type" : "type");
    if (kind.is_null() || kind == "default") return;
    if (rope.contains("long_factor")) kind = "longrope";  // older files of Phi 3 say "su" or "yarn"
    set(config, "rope_scaling", kind, "rope_type");
    static const std::vector<std::pair<const char*, const char*>> fields = {
        {"factor", "rope_factor"},
        {"original_max_position_embeddings", "rope_context"},
        {"low_freq_factor", "rope_low"},
        {"high_freq_factor", "rope_high"},
        {"beta_fast", "rope_fast"},
        {"beta_slow", "rope_slow"},
        {"attention_factor", "rope_magnitude"},
        {"truncate", "rope_whole"},
        {"short_factor", "rope_within"},
        {"long_factor", "rope_beyond"}};
    for (const auto& [theirs, ours] : fields)
      if (const Json& value = field_of(rope, theirs); !value.is_null()) set(config, ours, value, theirs);
    if (const Json& context = field("original_max_position_embeddings"); !context.is_null())
      set(config, "rope_context", context, "original_max_position_embeddings");
    if (config.rope_scaling == RopeScaling::dynamic) config.rope_context = 0;  // transformers takes the context
    if (kind == "longrope" && field_of(rope, "factor").is_null() && config.rope_context > 0)
      config.rope_factor =
          std::max(1.0, static_cast<double>(config.context) / static_cast<double>(config.rope_context));
    if (!field_of(rope, "mscale").is_null()) yarn_magnitude(config, rope);
  }

  /// DeepSeek's two factors.
  void yarn_magnitude(Config& config, const Json& rope) {
    const Json &one = field_of(rope, "mscale"), &all = field_of(rope, "mscale_all_dim");
    if (!one.is_number() || !all.is_number() || config.rope_magnitude > 0 || one == 0 || all == 0) return;
    const auto scale = [&](double by) { return 0.1 * by * std::log(config.rope_factor) + 1; };
    set(config, "rope_magnitude", scale(one.get<double>()) / scale(all.get<double>()), "mscale");
  }

  const Json& theirs_;
  const std::string& source_;
  std::vector<std::string> reasons_;
};

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// The head that `task` ends the name of, or the first architecture that the file names.
const HeadRule* head_of(Reader& reader, const Family& family, const std::string& task) {
  const Json& architectures = reader.field("architectures");
  std::string name = task;
  if (name.empty() && architectures.is_array() && !architectures.empty() && architectures[0].is_string())
    name = architectures[0].get<std::string>();
  if (name.empty()) return &family.heads.front();
  std::vector<std::string> known;
  for (const HeadRule& head : family.heads) {
    if (name.ends_with(head.suffix)) return &head;
    known.emplace_back(head.suffix);
  }
  reader.refuse("a " + std::string(family.name) + " that ends in " + io::in_quotes(name) +
                " is not served; known are " + listed(known));
  return nullptr;
}

void set_classes(Reader& reader, Config& config, const HeadRule& head) {
  const std::string suffix = head.suffix;
  if (!suffix.ends_with("Classification")) return;
  const Json &labels = reader.field("id2label"), &count = reader.field("num_labels");
  const int64_t classes = labels.is_object() ? static_cast<int64_t>(labels.size()) : 2;
  reader.set(config, "classes", count.is_null() ? Json(classes) : count, "num_labels");
}

}  // namespace

bool is_of_transformers(const Json& config) { return config.is_object() && config.contains("model_type"); }

HubModel read_hub_config(const Json& theirs, const std::string& source, const std::string& task) {
  Reader reader(theirs, source);
  HubModel model;
  const Json& type = reader.field("model_type");
  model.family = type.is_string() ? find_family(type.get<std::string>()) : nullptr;
  if (!model.family) {
    reader.refuse("model_type " + io::as_shown(type) + " is not known; known are " + listed(hub_families()));
    reader.done();
  }
  Config& config = model.config;
  for (const char* fields : model.family->defaults) apply_json(config, fields, model.family->name);
  config.model = model.family->name;
  model.head = head_of(reader, *model.family, task);
  if (model.head) apply_json(config, model.head->fields, model.head->suffix);
  for (const FieldRule& rule : model.family->fields) reader.apply(config, rule);
  if (model.head) set_classes(reader, config, *model.head);
  reader.layer_types(config);
  reader.rope(config);
  if (reader.has("quantization_config")) reader.refuse("the weights are quantised, which is not served");
  reader.done();
  try {
    if (model.family->derive) model.family->derive(theirs, config);
    check(config);
  } catch (const Error& error) {
    for (const std::string& reason : error.reasons()) reader.refuse(reason);
  } catch (const Json::exception& error) {
    reader.refuse(error.what());
  }
  reader.done();
  return model;
}

}  // namespace attn::models
