// How the positions of a folder rotate: rope_parameters of config.json, or rope_scaling, rope_theta and others of older
// files, as transformers brings them together.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "models/hub_fields.h"

namespace attn::models {
namespace {

using io::Json;

/// A parameter of some kinds of scaling.
struct ScalingField {
  const char* theirs;
  const char* ours;
  const char* needed_by;
  const char* read_by;
  bool or_null = false;  ///< null is as if it were absent, for kinds that can do without
};
constexpr ScalingField kScalingFields[] = {{"factor", "rope_factor", "linear dynamic llama3 yarn", "longrope", true},
                                           {"low_freq_factor", "rope_low", "llama3", ""},
                                           {"high_freq_factor", "rope_high", "llama3", ""},
                                           {"beta_fast", "rope_fast", "", "yarn", true},
                                           {"beta_slow", "rope_slow", "", "yarn", true},
                                           {"attention_factor", "rope_magnitude", "", "yarn longrope", true},
                                           {"truncate", "rope_whole", "", "yarn"},
                                           {"short_factor", "rope_within", "longrope", ""},
                                           {"long_factor", "rope_beyond", "longrope", ""}};

bool is_in(const char* kinds, const std::string& kind) {
  return std::string_view(kinds).find(kind) != std::string::npos;
}

class Rope {
 public:
  /// `where` is the place of the parameters, as "rope_scaling."
  Rope(FieldReader& reader, const RopeRule& rule, Config& config, const Json& parameters, std::string where)
      : reader_(reader), rule_(rule), config_(config), parameters_(parameters), where_(std::move(where)) {}

  void read() {
    theta();
    part();
    const std::string kind = this->kind();
    stretches_ = kind == "yarn" || kind == "longrope";
    context(kind);
    if (kind.empty() || kind == "default") return;
    static const std::set<std::string> kinds = {"linear", "dynamic", "llama3", "yarn", "longrope"};
    if (!kinds.contains(kind) || (rule_.long_only && kind != "longrope"))
      return reader_.refuse(
          where_ + "rope_type", kind,
          rule_.long_only ? "default or longrope" : "default, linear, dynamic, llama3, yarn or longrope");
    const int64_t width = config_.head_dim ? config_.head_dim : config_.embed_dim / std::max<int64_t>(config_.heads, 1);
    if (kind == "dynamic" && (config_.rotary_dim ? config_.rotary_dim : width) < 4)
      return reader_.refuse(where_ + "rope_type is dynamic, which needs at least 4 columns of a head that rotate");
    reader_.set(config_, "rope_scaling", kind, where_ + "rope_type");
    if (reader_.good()) scaling(kind);
  }
  /// "" where it is none.
  std::string kind() {
    const Json* named = given("rope_type");
    if (!named) named = given("type");
    if (!named) return "default";
    if (rule_.long_only && (*named == "su" || *named == "yarn")) return "longrope";
    if (named->is_string()) return named->get<std::string>();
    reader_.refuse(where_ + "rope_type", *named, "the name of a kind of rope");
    return "";
  }

 private:
  const Json* given(const char* name) const { return FieldReader::given_in(parameters_, name); }

  void theta() {
    if (const Json* theta = given("rope_theta")) reader_.set(config_, "rope_theta", *theta, where_ + "rope_theta");
    else if (const Json* older = reader_.given(rule_.theta)) reader_.set(config_, "rope_theta", *older, rule_.theta);
  }

  void part() {
    const char* name = "partial_rotary_factor";
    const Json* part = given(name);
    const std::string where = part ? where_ : "";
    if (!part) part = reader_.given(name = rule_.part ? rule_.part : name);
    if (!rule_.part) {
      if (part && !part->is_null() && *part != 1) reader_.refuse(where + name, *part, "1: heads rotate as a whole");
      return;
    }
    const double share = part && part->is_number() ? part->get<double>() : part ? -1 : rule_.rotated;
    if (!(share > 0 && share <= 1)) return reader_.refuse(where + name, *part, "in (0, 1]");
    const int64_t width = config_.head_dim ? config_.head_dim : config_.embed_dim / std::max<int64_t>(config_.heads, 1);
    const auto columns = static_cast<int64_t>(static_cast<double>(width) * share);
    if (columns < 2 || columns % 2)
      return reader_.refuse(
          where + name + " is " + Json(share).dump() + ", which rotates " + std::to_string(columns) + " of " +
          std::to_string(width) +
          " columns of a head (hidden_size / num_attention_heads): must be an even number, at least 2");
    if (columns < width) config_.rotary_dim = columns;
  }

  void scaling(const std::string& kind) {
    for (const ScalingField& field : kScalingFields) {
      const bool needed = is_in(field.needed_by, kind);
      if (!needed && !is_in(field.read_by, kind)) continue;
      const Json* value = given(field.theirs);
      if (!value && needed) reader_.refuse("a " + kind + " rope needs " + where_ + field.theirs);
      const bool zero = value && *value == 0, is_beta = std::string_view(field.theirs).starts_with("beta");
      if (!value || (value->is_null() && field.or_null && stretches_) || (zero && is_beta)) continue;
      if (zero) reader_.refuse(where_ + field.theirs, *value, "above 0");
      else reader_.set(config_, field.ours, *value, where_ + field.theirs);
    }
    if (!reader_.good() || !stretches_) return;
    const Json* factor = given("factor");
    if (!factor || factor->is_null())
      config_.rope_factor =
          std::max(1.0, static_cast<double>(config_.context) / static_cast<double>(config_.rope_context));
    if (kind == "yarn") yarn_magnitude();
  }

  /// The length of the texts before. A field beside the parameters wins.
  void context(const std::string& kind) {
    const char* name = "original_max_position_embeddings";
    const int64_t otherwise = std::exchange(config_.rope_context, 0);
    const Json* length = reader_.given(name);
    if (!stretches_ && kind != "llama3") {  // which take the model's own
      if (length && !io::whole_number(*length) && !length->is_null()) reader_.refuse(name, *length, "a whole number");
      return;
    }
    if (!length && otherwise == 0) length = given(name);
    if (length && *length == 0) reader_.refuse(name, *length, "above 0");
    else if (length) reader_.set(config_, "rope_context", *length, name);
    else config_.rope_context = otherwise ? otherwise : config_.context;
  }

  /// DeepSeek's two factors.
  void yarn_magnitude() {
    const Json *one = given("mscale"), *all = given("mscale_all_dim");
    for (const auto& [name, value] : {std::pair("mscale", one), {"mscale_all_dim", all}})
      if (value && !value->is_null() && !value->is_number()) reader_.refuse(where_ + name, *value, "a number");
    if (!one || !all || !one->is_number() || !all->is_number() || config_.rope_magnitude > 0 || *one == 0 || *all == 0)
      return;
    const auto scale = [&](double by) { return 0.1 * by * std::log(config_.rope_factor) + 1; };
    reader_.set(config_, "rope_magnitude", scale(one->get<double>()) / scale(all->get<double>()), "mscale");
  }

  FieldReader& reader_;
  const RopeRule& rule_;
  Config& config_;
  const Json& parameters_;
  std::string where_;
  bool stretches_ = false;
};

/// ModernBERT's: an object for the layers that see all, another for those with a window.
void read_both(FieldReader& reader, const RopeRule& rule, Config& config, const Json& parameters) {
  static const Json none = Json::object();
  if (const Json& older = reader.field("rope_scaling"); !older.is_null() && older != none)
    reader.refuse("rope_scaling", older, "absent: rope_parameters is supported");
  const auto of = [&](const char* layers) -> const Json& {
    const Json* found = FieldReader::given_in(parameters, layers);
    if (!found || found->is_null()) return none;
    if (!found->is_object()) reader.refuse(std::string("rope_parameters.") + layers, *found, "an object");
    return found->is_object() ? *found : none;
  };
  const Json &full = of("full_attention"), &windows = of("sliding_attention");
  for (const auto& [name, value] : parameters.items())
    if (name != "full_attention" && name != "sliding_attention")
      reader.refuse("rope_parameters." + name, value, "in full_attention or sliding_attention");
  Rope(reader, rule, config, full, "rope_parameters.full_attention.").read();
  const Json* theta = FieldReader::given_in(windows, "rope_theta");
  const char* name = theta ? "rope_parameters.sliding_attention.rope_theta" : rule.window;
  if (!theta) theta = reader.given(rule.window);
  if (theta && *theta == 0) reader.refuse(name, *theta, "above 0");
  if (theta) reader.set(config, "window_theta", *theta, name);
  const auto rest = [&](const Json& one) {
    Json others = one;
    others["rope_type"] = Rope(reader, rule, config, one, "rope_parameters.").kind();
    for (const char* apart : {"type", "rope_theta"}) others.erase(apart);
    return others;
  };
  if (rest(full) != rest(windows))
    reader.refuse(
        "rope_parameters: full_attention and sliding_attention differ in more than rope_theta, which is not "
        "supported");
}

}  // namespace

void read_rope(FieldReader& reader, const RopeRule& rule, Config& config) {
  static const Json none = Json::object();
  for (const char* name : {"rope_scaling", "rope_parameters"})
    if (const Json& value = reader.field(name); !value.is_null() && !value.is_object())
      return reader.refuse(name, value, "an object");
  const Json &newer = reader.field("rope_parameters"), &older = reader.field("rope_scaling");
  if (rule.window) return read_both(reader, rule, config, newer.is_null() ? none : newer);
  const bool in_older = older.is_object() && !older.empty();
  const std::string where = in_older ? "rope_scaling." : "rope_parameters.";
  const Json& parameters = in_older ? older : newer.is_object() ? newer : none;
  for (const char* layers : {"full_attention", "sliding_attention"})
    if (const Json* nested = FieldReader::given_in(parameters, layers))
      return reader.refuse(where + layers, *nested, "absent: the parameters must be an object for all layers");
  Rope(reader, rule, config, parameters, where).read();
}

}  // namespace attn::models
