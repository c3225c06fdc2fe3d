// Configurations: the families' defaults, and fields from JSON or a command line. One list of fields serves all.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "attn/models.h"
#include "core/checker.h"
#include "io/json.h"

namespace attn::models {
namespace {

using io::Json;
using Names = std::vector<std::string>;

// The names of each enumeration, in its order.
const Names& names_of(Pooling) {
  static const Names names = {"mean", "first"};
  return names;
}
const Names& names_of(Positions) {
  static const Names names = {"none", "learned", "sinusoidal", "relative", "alibi", "rope"};
  return names;
}
const Names& names_of(NormKind) {
  static const Names names = {"layer", "rms"};
  return names;
}
const Names& names_of(Activation) {
  static const Names names = {"relu", "gelu", "gelu_tanh", "silu", "tanh"};
  return names;
}
const Names& names_of(Scheme) {
  static const Names names = {"xavier", "gpt2"};
  return names;
}

/// As JSON has a field's value; a number for what is none of an enumeration's.
template <class T>
Json json_of(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    const Names& names = names_of(value);
    const auto n = static_cast<size_t>(value);
    return n < names.size() ? Json(names[n]) : Json(static_cast<int64_t>(value));
  } else {
    return value;
  }
}

/// Calls visit(name, description, field) for every field, with the limits of a number or the choices of a text behind.
template <class C, class Visit>
void each_field(C& config, const Visit& visit) {
  constexpr int64_t kMany = int64_t{1} << 24;
  visit("model", "family: the defaults of all other fields", config.model, families());
  visit("vocab_size", "tokens, V; from the tokenizer", config.vocab_size, 0, kMany);
  visit("context", "tokens of the longest sequence", config.context, 1, kMany);
  visit("embed_dim", "width of the model, C", config.embed_dim, 1, 1 << 16);
  visit("layers", "blocks", config.layers, 1, 1 << 12);
  visit("heads", "heads of attention, H", config.heads, 1, 1 << 12);
  visit("kv_heads", "heads of keys and values, which groups of heads share; 0 = heads", config.kv_heads, 0, 1 << 12);
  visit("head_dim", "width of a head; 0 = embed_dim / heads", config.head_dim, 0, 1024);
  visit("key_dim", "d_k of selfhead; 0 = embed_dim", config.key_dim, 0, 1024);
  visit("value_dim", "d_v of selfhead; 0 = embed_dim", config.value_dim, 0, 1024);
  visit("output_projection", "selfhead ends in a projection W_O to the model's width", config.output_projection);
  visit("hidden_dim", "width inside the feed-forward; 0 = 4 C, or 8/3 C rounded up to 32 where it is gated",
        config.hidden_dim, 0, 1 << 20);
  visit("classes", "classes of a classifier, unless its data have more; 0 = predicts tokens", config.classes, 0, kMany);
  visit("pooling", "what a classifier looks at, the mean of all tokens or the first", config.pooling);
  visit("positions", "how the model knows where a token stands", config.positions);
  visit("embedding_scale", "factor of the tokens' embeddings; 0 = sqrt(C) with sinusoidal positions, else 1",
        config.embedding_scale, 0.0, 1e6);
  visit("norm", "layer norm or RMS norm", config.norm);
  visit("norm_first", "norms before attention and feed-forward, as GPT-2; else after, as BERT", config.norm_first);
  visit("norm_epsilon", "added to the variance", config.norm_epsilon, 0.0, 1.0);
  visit("activation", "of the feed-forward", config.activation);
  visit("gated", "a gate in the feed-forward, as in SwiGLU", config.gated);
  visit("bias", "of products and layer norms", config.bias);
  visit("causal", "a token sees only itself and what is before", config.causal);
  visit("window", "a token sees so many tokens, itself included; 0 = all", config.window, 0, kMany);
  visit("tie_embeddings", "the head is the embedding's table", config.tie_embeddings);
  visit("rope_theta", "base of the angles of rope", config.rope_theta, 1.0, 1e12);
  visit("rope_interleaved", "rope rotates neighbouring columns; else halves", config.rope_interleaved);
  visit("dropout", "share of activations that training hides", config.dropout, 0.0, 0.999);
  visit("init", "how weights are drawn", config.init);
}

std::string joined(const Names& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// Puts one JSON value into the field of its name; says why not.
struct Assign {
  const std::string& name;
  const Json& value;
  std::string* reason;
  bool* found;

  void operator()(const char* field, const char*, bool& to) const {
    if (name != field) return;
    *found = true;
    if (value.is_boolean()) to = value.get<bool>();
    else *reason = name + " must be true or false, not " + io::as_shown(value);
  }
  void operator()(const char* field, const char*, std::string& to, const Names& names) const {
    if (const std::optional<size_t> n = choose(field, names)) to = names[*n];
  }
  template <class E>
  requires std::is_enum_v<E>
  void operator()(const char* field, const char*, E& to) const {
    if (const std::optional<size_t> n = choose(field, names_of(to))) to = static_cast<E>(*n);
  }
  void operator()(const char* field, const char*, int64_t& to, int64_t lowest, int64_t highest) const {
    if (name != field) return;
    *found = true;
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(highest)) &&
                      value.get<int64_t>() >= lowest && value.get<int64_t>() <= highest;
    if (fits) to = value.get<int64_t>();
    else
      *reason = name + " must be a whole number from " + std::to_string(lowest) + " to " + std::to_string(highest) +
                ", not " + io::as_shown(value);
  }
  void operator()(const char* field, const char*, double& to, double lowest, double highest) const {
    if (name != field) return;
    *found = true;
    if (value.is_number() && value.get<double>() >= lowest && value.get<double>() <= highest) to = value.get<double>();
    else
      *reason = name + " must be a number from " + Json(lowest).dump() + " to " + Json(highest).dump() + ", not " +
                io::as_shown(value);
  }

 private:
  std::optional<size_t> choose(const char* field, const Names& names) const {
    if (name != field) return {};
    *found = true;
    const auto place =
        value.is_string() ? std::find(names.begin(), names.end(), value.get<std::string>()) : names.end();
    if (place != names.end()) return place - names.begin();
    *reason = name + " must be one of " + joined(names) + ", not " + io::as_shown(value);
    return {};
  }
};

/// Says what is wrong with the value that a field has.
struct Judge {
  std::vector<std::string>* reasons;

  void operator()(const char*, const char*, const bool&) const {}
  template <class T, class... Limits>
  void operator()(const char* field, const char* description, const T& value, const Limits&... limits) const {
    const std::string name(field);
    const Json as_json = json_of(value);
    std::string reason;
    bool found = false;
    T copy = value;
    Assign{name, as_json, &reason, &found}(field, description, copy, limits...);
    if (!reason.empty()) reasons->push_back(reason);
  }
};

std::vector<std::string> faults_of(const Config& config) {
  std::vector<std::string> reasons;
  each_field(config, Judge{&reasons});
  return reasons;
}

/// Empty if all went well.
std::string assign(Config& config, const std::string& name, const Json& value) {
  std::string reason;
  bool found = false;
  each_field(config, Assign{name, value, &reason, &found});
  return found ? reason : "there is no field '" + name + "'";
}

}  // namespace

std::vector<std::string> families() { return {"selfhead", "encoder", "gpt", "llama"}; }

Config family(std::string_view name) {
  Config config;
  config.model = name;
  if (name == "gpt") return config;
  if (name == "selfhead") {
    config.layers = 1;
    config.heads = 1;
    config.bias = false;
    config.tie_embeddings = false;
    config.init = Scheme::xavier;
    return config;
  }
  if (name == "encoder") {
    config.causal = false;
    config.norm_first = false;
    config.norm_epsilon = 1e-12;
    config.activation = Activation::gelu;
    config.classes = 2;
    return config;
  }
  if (name == "llama") {
    config.norm = NormKind::rms;
    config.positions = Positions::rope;
    config.activation = Activation::silu;
    config.gated = true;
    config.bias = false;
    return config;
  }
  throw Error("model", {"there is no model '" + std::string(name) + "'; choices: " + joined(families())});
}

std::vector<FieldInfo> field_info(const Config& config) {
  std::vector<FieldInfo> all;
  each_field(config, [&](const char* name, const char* description, const auto& field, const auto&... limits) {
    using Field = std::decay_t<decltype(field)>;
    FieldInfo info{name, description, "whole number", {}, 0, 0, ""};
    if constexpr (std::is_same_v<Field, std::string>) {
      info.kind = "text";
      info.choices = (limits, ...);
      info.value = field;
    } else if constexpr (std::is_enum_v<Field>) {
      info.kind = "text";
      info.choices = names_of(field);
      info.value = json_of(field).template get<std::string>();
    } else {
      info.value = Json(field).dump();
    }
    if constexpr (std::is_same_v<Field, bool>) {
      info.kind = "true or false";
      info.choices = {"true", "false"};
    } else if constexpr (std::is_arithmetic_v<Field>) {
      if (std::is_same_v<Field, double>) info.kind = "number";
      std::tie(info.lowest, info.highest) = std::make_tuple(static_cast<double>(limits)...);
    }
    all.push_back(std::move(info));
  });
  return all;
}

void apply_json(Config& config, std::string_view json, const std::string& source) {
  const Json object = io::parse_json("config", source, json);
  if (!object.is_object()) throw Error("config", {source + " is not a JSON object"});
  std::vector<std::string> reasons;
  for (const auto& [name, value] : object.items())
    if (std::string reason = assign(config, name, value); !reason.empty()) reasons.push_back(source + ": " + reason);
  if (!reasons.empty()) throw Error("config", std::move(reasons));
}

void set_field(Config& config, std::string_view field, std::string_view value) {
  const std::string name(field), text(value);
  Json parsed = Json::parse(text, nullptr, false);
  if (parsed.is_discarded() || parsed.is_structured()) parsed = text;
  if (std::string reason = assign(config, name, parsed); !reason.empty()) throw Error("config", {reason});
}

std::string to_json(const Config& config) {
  if (std::vector<std::string> reasons = faults_of(config); !reasons.empty()) throw Error("config", std::move(reasons));
  nlohmann::ordered_json object;
  each_field(config,
             [&](const char* name, const char*, const auto& field, const auto&...) { object[name] = json_of(field); });
  return object.dump(2) + "\n";
}

void check(const Config& config) {
  Checker checker("model");
  for (const std::string& reason : faults_of(config)) checker.require(false, reason);
  const auto number = [](int64_t value) { return std::to_string(value); };
  const bool selfhead = config.model == "selfhead";
  const int64_t kv_heads = config.kv_heads ? config.kv_heads : config.heads;
  checker.require(config.vocab_size > 0, "vocab_size must be given");
  const bool whole = config.heads > 0 && (config.head_dim || config.embed_dim % config.heads == 0);
  if (checker.require(whole, [&] {
        return "heads " + number(config.heads) + " must divide embed_dim " + number(config.embed_dim) +
               ", or head_dim must be given";
      })) {
    const int64_t width = config.head_dim ? config.head_dim : config.embed_dim / config.heads;
    checker.require(selfhead || width <= 1024, [&] { return "a head of width " + number(width) + " is over 1024"; });
    checker.require(config.positions != Positions::rope || width % 2 == 0,
                    [&] { return "rope needs heads of even width, not " + number(width); });
  }
  checker.require(kv_heads > 0 && config.heads % kv_heads == 0,
                  [&] { return "kv_heads " + number(kv_heads) + " must divide heads " + number(config.heads); });
  if (selfhead) {
    checker.require(config.layers == 1 && config.heads == 1 && kv_heads == 1, "selfhead has one layer and one head");
    checker.require(config.embed_dim <= 1024 || (config.key_dim && config.value_dim),
                    "selfhead wider than 1024 needs key_dim and value_dim");
    checker.require(config.positions == Positions::learned || config.positions == Positions::sinusoidal ||
                        config.positions == Positions::none,
                    [&] {
                      return "selfhead takes learned, sinusoidal or no positions, not " +
                             json_of(config.positions).get<std::string>();
                    });
    checker.require(config.head_dim == 0, "selfhead has key_dim and value_dim in place of head_dim");
    checker.require(
        !config.tie_embeddings || config.output_projection || !config.value_dim || config.value_dim == config.embed_dim,
        "tied embeddings need value_dim equal to embed_dim, or output_projection");
  } else {
    checker.require(!config.output_projection, "output_projection is of selfhead; the others always have one");
  }
  checker.require(config.model != "encoder" || config.classes > 0, "an encoder needs classes");
  checker.require(config.classes > 0 || config.causal, "a model that predicts tokens must be causal");
  checker.done();
}

}  // namespace attn::models
