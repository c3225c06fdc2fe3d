// Configurations: the families' defaults, and fields from JSON or a command line. All use one list of fields.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <tuple>

#include "attn/core_names.h"
#include "attn/models.h"
#include "core/checker.h"
#include "models/folder.h"
#include "models/shape.h"

namespace attn::models {
namespace {

using io::Json;
using Strings = std::vector<std::string>;

/// As JSON has a field's value; a number for what is none of an enumeration's.
template <class T>
Json json_of(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    const std::string_view name = name_of(value);
    return name.empty() ? Json(static_cast<int64_t>(value)) : Json(name);
  } else {
    return value;
  }
}

/// The letters that a text field may have, and how many.
struct Letters {
  const char* letters;
  size_t most;
};

constexpr int64_t kMostLayers = 1 << 12;

Strings all_families() {
  Strings names = families();
  for (const std::string& name : hub_families()) names.push_back(name);
  return names;
}

bool is_among(const Strings& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Of layers with linear attention, as each_field().
template <class Linear, class Visit>
void each_linear_field(Linear& linear, const Visit& visit) {
  visit("linear_heads", "heads of q and k of linear attention; 0 = heads", linear.heads, 0, 1 << 12);
  visit("linear_value_heads", "heads of v of linear attention, a multiple; 0 = linear_heads", linear.value_heads, 0,
        1 << 12);
  visit("linear_head_dim", "Dk of linear attention; 0 = embed_dim / linear_heads", linear.head_dim, 0, 1024);
  visit("linear_value_dim", "Dv of linear attention; 0 = linear_head_dim", linear.value_dim, 0, 1024);
  visit("linear_convolution", "tokens of the short convolution on q, k and v; 0 = none", linear.convolution, 0, 8);
  visit("linear_convolution_bias", "bias of that convolution", linear.convolution_bias);
  visit("linear_decay", "decay of the state: none, a constant a head, learned by token or by row", linear.decay);
  visit("linear_features", "function of q and k", linear.features);
  visit("linear_delta", "the delta rule: a token writes what the state does not have yet", linear.delta);
  visit("linear_beta", "factor on what a token writes: none, sigmoid(W x), the step of Mamba 2", linear.beta);
  visit("linear_l2norm", "q and k have length 1", linear.l2norm);
  visit("linear_scale", "factor on q; 0 = 1 / sqrt(Dk)", linear.scale, 0.0, 1e6);
  visit("linear_normalize", "the output is divided by the sum of its weights", linear.normalize);
  visit("linear_skip", "the output gains a learned factor times v", linear.skip);
  visit("linear_norm", "RMS norm of the output, per head or over all heads", linear.norm);
  visit("linear_gate", "gate on the output", linear.gate);
  visit("linear_gate_first", "the gate comes before the norm", linear.gate_first);
  visit("linear_bias", "biases of the projections of linear attention", linear.bias);
}

/// Calls visit(name, description, field) for every field, with the limits of a number or the choices of a text after.
template <class C, class Visit>
void each_field(C& config, const Visit& visit) {
  constexpr int64_t kMany = int64_t{1} << 24;
  visit("model", "family: the defaults of all other fields", config.model, all_families());
  visit("vocab_size", "tokens, V; from the tokenizer", config.vocab_size, 0, kMany);
  visit("context", "tokens of the longest sequence", config.context, 1, kMany);
  visit("embed_dim", "width of the model, C", config.embed_dim, 1, 1 << 16);
  visit("layers", "blocks", config.layers, 1, kMostLayers);
  visit("encoder_layers", "blocks of the encoder; 0 = no encoder", config.encoder_layers, 0, kMostLayers);
  visit("source_vocab_size", "tokens of the encoder's own vocabulary; 0 = it shares the embeddings",
        config.source_vocab_size, 0, kMany);
  visit("source_context", "learned positions of the encoder; 0 = context", config.source_context, 0, kMany);
  visit("takes_embeddings", "the model, or its encoder, takes embeddings [B, L, C] instead of tokens",
        config.takes_embeddings);
  visit("token_dim", "width of the token embeddings, projected to C; 0 = C", config.token_dim, 0, 1 << 16);
  visit("type_vocab_size", "kinds of tokens with an embedding each", config.type_vocab_size, 0, kMany);
  visit("positions", "encoding of positions", config.positions);
  visit("position_offset", "rows of the learned positions before the first", config.position_offset, 0, 1 << 12);
  visit("embedding_scale", "factor of the tokens' embeddings; 0 = sqrt(C) with sinusoidal positions, else 1",
        config.embedding_scale, 0.0, 1e6);
  visit("embedding_norm", "a norm after the embeddings", config.embedding_norm);
  visit("heads", "heads of attention, H", config.heads, 1, 1 << 12);
  visit("kv_heads", "key/value heads of grouped-query attention; 0 = heads", config.kv_heads, 0, 1 << 12);
  visit("head_dim", "width of a head; 0 = embed_dim / heads", config.head_dim, 0, 1024);
  visit("key_dim", "d_k of selfhead; 0 = embed_dim", config.key_dim, 0, 1024);
  visit("value_dim", "d_v of selfhead; 0 = embed_dim", config.value_dim, 0, 1024);
  visit("output_projection", "selfhead ends in a projection W_O to the model's width", config.output_projection);
  visit("causal", "causal mask: a token attends to itself and earlier tokens", config.causal);
  visit("attention_scale", "factor of the scores; 0 = 1 / sqrt(head_dim)", config.attention_scale, 0.0, 1e6);
  visit("softcap", "c: scores become c tanh(s / c); 0 = as they are", config.softcap, 0.0, 1e6);
  visit("sinks", "attention sinks: a learned logit per head", config.sinks);
  visit("attention_gate", "the output of attention is multiplied with sigmoid(W x)", config.attention_gate);
  visit("query_key_norm", "RMS norm of queries and keys, per head or over all heads", config.query_key_norm);
  visit("window", "sliding window: number of tokens, itself included; 0 = all", config.window, 0, kMany);
  visit("mixers",
        "pattern over the layers: w = attention with the window, f = full attention, l = linear attention, c = short "
        "convolution, r = LSTM, m = MoBA, n = native sparse attention, o = the program's own",
        config.mixers, Letters{"wflcrmno", kMostLayers});
  each_linear_field(config.linear, visit);
  visit("short_convolution", "tokens that the convolution of layers c reads", config.short_convolution.width, 1, 8);
  visit("short_convolution_bias", "biases of the layers c", config.short_convolution.bias);
  visit("lstm_dim", "width of the LSTM of layers r; 0 = embed_dim, unprojected", config.lstm.hidden_dim, 0, 1 << 16);
  visit("moba_block", "tokens of a block of the layers m", config.moba.block, 1, kMany);
  visit("moba_count", "blocks that a query of the layers m attends to, its own among them", config.moba.count, 1,
        kMany);
  visit("nsa_block", "tokens of a block of the layers n", config.nsa.block, 1, kMany);
  visit("nsa_count", "blocks that a query of the layers n selects, its own and the first among them", config.nsa.count,
        2, kMany);
  visit("nsa_window", "tokens of the sliding window of the layers n, the query's own included", config.nsa.window, 1,
        kMany);
  visit("rope_theta", "base of the rotary angles", config.rope_theta, 1.0, 1e12);
  visit("window_theta", "rope_theta of layers with a window; 0 = rope_theta", config.window_theta, 0.0, 1e12);
  visit("rotary_dim", "rotated columns of a head; 0 = all", config.rotary_dim, 0, 1024);
  visit("rope_interleaved", "rotate neighbouring columns (GPT-J); else halves (GPT-NeoX)", config.rope_interleaved);
  visit("rope_scaling", "scaling of rope to longer texts", config.rope_scaling);
  visit("rope_factor", "factor of the scaling", config.rope_factor, 1.0, 1e6);
  visit("rope_context", "context before the scaling; 0 = context", config.rope_context, 0, kMany);
  visit("rope_low", "llama3: turns of the slowest angle that is blended", config.rope_low, 0.0, 1e6);
  visit("rope_high", "llama3: turns of the fastest", config.rope_high, 0.0, 1e6);
  visit("rope_fast", "yarn: turns of the fastest angle that is blended", config.rope_fast, 0.0, 1e6);
  visit("rope_slow", "yarn: turns of the slowest", config.rope_slow, 0.0, 1e6);
  visit("rope_magnitude", "yarn, longrope: factor on queries and keys; 0 = as rope_factor says", config.rope_magnitude,
        0.0, 1e6);
  visit("rope_whole", "yarn: the blend begins and ends at whole pairs", config.rope_whole);
  visit("rope_within", "longrope: what the angle of each pair of columns is divided by, as [1, 1.5]",
        config.rope_within, 1e-6, 1e6);
  visit("rope_beyond", "longrope: the same in texts of more than rope_context tokens", config.rope_beyond, 1e-6, 1e6);
  visit("buckets", "buckets of relative positions", config.buckets, 2, 1 << 16);
  visit("max_distance", "largest distance with a bucket of its own", config.max_distance, 1, kMany);
  visit("shared_relative_bias", "one table of relative positions for all layers", config.shared_relative_bias);
  visit("kept_heads", "key/value heads left by pruning in each attention layer, as [[0, 2], [1]]", config.kept_heads, 0,
        1 << 12);
  visit("feed_forward", "blocks have a feed-forward", config.feed_forward);
  visit("hidden_dim", "width inside the feed-forward; 0 = 4 C, or 8/3 C rounded up to 32 where it is gated",
        config.hidden_dim, 0, 1 << 20);
  visit("activation", "activation of the feed-forward", config.activation);
  visit("gated", "a gate in the feed-forward, as in SwiGLU", config.gated);
  visit("bias", "biases of linear layers and layer norms", config.bias);
  visit("qkv_bias", "biases of queries, keys and values if bias is false", config.qkv_bias);
  visit("norm", "layer norm or RMS norm", config.norm);
  visit("norm_placement", "place of the norms: pre as GPT-2, post as BERT, branch as OLMo 2", config.norm_placement);
  visit("parallel", "attention and feed-forward read the same input, as GPT-J", config.parallel);
  visit("norm_epsilon", "added to the variance", config.norm_epsilon, 0.0, 1.0);
  visit("head", "a head that gives logits; else the model returns hidden states", config.head);
  visit("pooler", "without a head: BERT's pooler, tanh of a linear layer of the first token", config.pooler);
  visit("classes", "classes of a classifier, unless its data have more; 0 = predicts tokens", config.classes, 0, kMany);
  visit("problem_type", "the meaning of a classifier's logits", config.problem_type);
  visit("pooling", "input of a classifier: the mean of all tokens, the first, each or the last token", config.pooling);
  visit("head_dense", "a linear layer with an activation before the logits", config.head_dense);
  visit("head_dense_bias", "bias of that linear layer", config.head_dense_bias);
  visit("head_activation", "activation of that linear layer", config.head_activation);
  visit("head_norm", "a norm after that linear layer", config.head_norm);
  visit("head_bias", "of the logits of tokens", config.head_bias);
  visit("tie_embeddings", "the head shares the weights of the token embedding", config.tie_embeddings);
  visit("logit_scale", "factor of the input of the head", config.logit_scale, 0.0, 1e6);
  visit("logit_softcap", "c: logits become c tanh(l / c); 0 = as they are", config.logit_softcap, 0.0, 1e6);
  visit("lora_rank", "rank of low-rank adapters (LoRA); 0 = none", config.lora_rank, 0, 1 << 12);
  visit("lora_alpha", "adapters are multiplied with lora_alpha / lora_rank", config.lora_alpha, 1e-6, 1e6);
  visit("lora_rank_stabilized", "adapters are scaled by lora_alpha / sqrt(lora_rank)", config.lora_rank_stabilized);
  visit("lora_dropout", "dropout probability of the input of adapters in training", config.lora_dropout, 0.0, 0.999);
  visit("lora_targets",
        "layers with adapters, comma-separated: query, key, value, qkv, key_value, output, gate, up, gate_up, down",
        config.lora_targets, Letters{"abcdefghijklmnopqrstuvwxyz_,", 256});
  visit("dropout", "dropout probability in training", config.dropout, 0.0, 0.999);
  visit("attention_dropout", "dropout of attention weights; -1 = as dropout", config.attention_dropout, -1.0, 0.999);
  visit("init", "initialisation of the weights", config.init);
}

const Strings kOfBlocks = {"encoder_layers", "source_vocab_size", "attention_scale", "softcap",
                           "sinks",          "query_key_norm",    "window",          "mixers",
                           "feed_forward",   "attention_gate",    "rope_scaling",    "qkv_bias",
                           "parallel",       "embedding_norm",    "token_dim",       "shared_relative_bias",
                           "kept_heads"};

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
  void operator()(const char* field, const char*, std::string& to, const Strings& names) const {
    if (const std::optional<size_t> n = choose(field, names)) to = names[*n];
  }
  void operator()(const char* field, const char*, std::string& to, const Letters& all) const {
    if (name != field) return;
    *found = true;
    const std::string text = value.is_string() ? value.get<std::string>() : "";
    if (!text.empty() && text.size() <= all.most && text.find_first_not_of(all.letters) == std::string::npos) to = text;
    else
      *reason = name + " must be 1 to " + std::to_string(all.most) + " of the letters " + all.letters + ", not " +
                io::as_shown(value);
  }
  template <class E>
  requires std::is_enum_v<E>
  void operator()(const char* field, const char*, E& to) const {
    if (const std::optional<size_t> n = choose(field, names_of<E>())) to = static_cast<E>(*n);
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
  void operator()(const char* field, const char*, std::vector<double>& to, double lowest, double highest) const {
    if (name != field) return;
    *found = true;
    constexpr size_t kMost = 512;  // pairs of columns of the widest head
    const auto fits = [&](const Json& each) { return each.is_number() && each >= lowest && each <= highest; };
    if (value.is_array() && value.size() <= kMost && std::all_of(value.begin(), value.end(), fits)) value.get_to(to);
    else
      *reason = name + " must be a list of numbers from " + Json(lowest).dump() + " to " + Json(highest).dump() +
                ", at most " + std::to_string(kMost) + ", not " + io::as_shown(value);
  }

  void operator()(const char* field, const char*, std::vector<std::vector<int64_t>>& to, int64_t lowest,
                  int64_t highest) const {
    if (name != field) return;
    *found = true;
    const auto fits = [&](const Json& each) { return each.is_number_integer() && each >= lowest && each <= highest; };
    const auto is_list = [&](const Json& each) {
      return each.is_array() && std::all_of(each.begin(), each.end(), fits);
    };
    if (value.is_array() && std::all_of(value.begin(), value.end(), is_list)) value.get_to(to);
    else
      *reason = name + " must be a list of lists of whole numbers from " + std::to_string(lowest) + " to " +
                std::to_string(highest) + ", not " + io::as_shown(value);
  }

 private:
  std::optional<size_t> choose(const char* field, const Strings& names) const {
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

}  // namespace

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string assign(Config& config, const std::string& name, const Json& value, bool family_defaults) {
  std::string reason;
  bool found = false;
  each_field(config, Assign{name, value, &reason, &found});
  if (name == "model" && reason.empty() && family_defaults) config = defaults_named(config.model);
  return found ? reason : "unknown field '" + name + "'";
}

bool learns_positions(const Config& config) {
  return config.positions == PositionEncoding::learned || config.positions == PositionEncoding::learned_relative;
}

bool classifies_texts(const Config& config) { return config.classes > 0 && config.pooling != ClassifierPooling::each; }

bool classifies_tokens(const Config& config) { return config.classes > 0 && config.pooling == ClassifierPooling::each; }

bool learns_distances(const Config& config) {
  return config.positions == PositionEncoding::relative || config.positions == PositionEncoding::learned_relative;
}

char mixer_of(const Config& config, int64_t layer) {
  if (config.mixers.empty()) throw Error("model", {"mixers is empty, must have a letter for each layer"});
  return config.mixers[static_cast<size_t>(layer) % config.mixers.size()];
}

bool has_attention(const Config& config, int64_t layer) {
  const char mixer = mixer_of(config, layer);
  return mixer == 'w' || mixer == 'f';
}

int64_t window_of(const Config& config, int64_t layer) { return mixer_of(config, layer) == 'w' ? config.window : 0; }

std::vector<AttentionLayer> attention_layers(const Config& config) {
  check(config);
  std::vector<AttentionLayer> all;
  const auto add = [&](const std::string& name) {
    const size_t place = all.size();
    const LayerShape shape = attention_shape(config, static_cast<int64_t>(place));
    std::vector<int64_t> kept(static_cast<size_t>(shape.kv_heads));
    std::iota(kept.begin(), kept.end(), 0);
    if (!config.kept_heads.empty()) kept = config.kept_heads[place];
    all.push_back({name, shape.heads, shape.kv_heads, std::move(kept)});
  };
  if (is_selfhead(config)) add("attention");
  for (int64_t n = 0; n < config.layers && !is_selfhead(config); ++n)
    if (has_attention(config, n)) add("blocks." + std::to_string(n) + ".attention");
  for (int64_t n = 0; n < config.layers && config.encoder_layers; ++n) add("blocks." + std::to_string(n) + ".cross");
  for (int64_t n = 0; n < config.encoder_layers; ++n) add("encoder." + std::to_string(n) + ".attention");
  return all;
}

std::vector<std::string> families() { return {"selfhead", "encoder", "gpt", "llama", "seq2seq"}; }

Config family(std::string_view name) {
  Config config;
  config.model = name;
  if (name == "gpt") return config;
  if (name == "selfhead") {
    config.layers = 1;
    config.heads = 1;
    config.bias = false;
    config.tie_embeddings = false;
    config.init = Initialization::xavier;
    return config;
  }
  if (name == "encoder") {
    config.causal = false;
    config.norm_placement = NormPlacement::post;
    config.norm_epsilon = 1e-12;
    config.activation = Activation::gelu;
    config.classes = 2;
    return config;
  }
  if (name == "llama") {
    config.norm = NormKind::rms;
    config.positions = PositionEncoding::rope;
    config.activation = Activation::silu;
    config.gated = true;
    config.bias = false;
    return config;
  }
  if (name == "seq2seq") {
    config.encoder_layers = config.layers = 3;
    config.dropout = 0.1;
    return config;
  }
  throw Error("model", {"unknown model '" + std::string(name) + "'; known are: " + joined(families())});
}

namespace {

const Strings& choices_of(const Strings& names) { return names; }
Strings choices_of(const Letters&) { return {}; }

}  // namespace

std::vector<FieldInfo> field_info(const Config& config) {
  std::vector<FieldInfo> all;
  each_field(config, [&](const char* name, const char* description, const auto& field, const auto&... limits) {
    using Field = std::decay_t<decltype(field)>;
    FieldInfo info{name, description, "whole number", {}, 0, 0, ""};
    if constexpr (std::is_same_v<Field, std::string>) {
      info.kind = "text";
      info.choices = choices_of(limits...);
      info.value = field;
    } else if constexpr (std::is_enum_v<Field>) {
      info.kind = "text";
      info.choices = names_of<Field>();
      info.value = json_of(field).template get<std::string>();
    } else {
      info.value = Json(field).dump();
    }
    if constexpr (std::is_same_v<Field, std::vector<double>>) info.kind = "list of numbers";
    if constexpr (std::is_same_v<Field, std::vector<std::vector<int64_t>>>)
      info.kind = "list of lists of whole numbers";
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

void apply_json(Config& config, std::string_view json, const std::string& source, bool family_defaults) {
  apply_fields(config, io::parse_json("config", source, json), source, family_defaults);
}

void apply_fields(Config& config, const Json& object, const std::string& source, bool family_defaults) {
  if (!object.is_object()) throw Error("config", {source + " is not a JSON object"});
  std::vector<std::string> reasons;
  const auto named = object.find("model");  // before the fields that change what it brings
  const std::string model = named == object.end() ? "" : assign(config, "model", *named, family_defaults);
  for (const auto& [name, value] : object.items())
    if (std::string reason = name == "model" ? model : assign(config, name, value); !reason.empty())
      reasons.push_back(source + ": " + reason);
  if (!reasons.empty()) throw Error("config", std::move(reasons));
}

void set_field(Config& config, std::string_view field, std::string_view value) {
  const std::string name(field), text(value);
  Json parsed = Json::parse(text, nullptr, false);
  if (parsed.is_discarded() || parsed.is_object()) parsed = text;
  if (std::string reason = assign(config, name, parsed); !reason.empty()) throw Error("config", {reason});
}

std::string to_json(const Config& config) {
  if (std::vector<std::string> reasons = faults_of(config); !reasons.empty()) throw Error("config", std::move(reasons));
  nlohmann::ordered_json object;
  each_field(config,
             [&](const char* name, const char*, const auto& field, const auto&...) { object[name] = json_of(field); });
  return object.dump(2) + "\n";
}

namespace {

/// What blocks have, and the textbook's single head has not.
void check_selfhead(Checker& checker, const Config& config) {
  checker.require(config.layers == 1 && config.heads == 1 && config.kv_heads <= 1,
                  "selfhead must have one layer and one head");
  checker.require(config.embed_dim <= 1024 || (config.key_dim && config.value_dim),
                  "selfhead wider than 1024 needs key_dim and value_dim");
  checker.require(config.positions == PositionEncoding::learned || config.positions == PositionEncoding::sinusoidal ||
                      config.positions == PositionEncoding::none,
                  [&] {
                    return "selfhead takes learned, sinusoidal or no positions, not " +
                           json_of(config.positions).get<std::string>();
                  });
  checker.require(config.head_dim == 0, "selfhead has key_dim and value_dim in place of head_dim");
  checker.require(
      !config.tie_embeddings || config.output_projection || !config.value_dim || config.value_dim == config.embed_dim,
      "tied embeddings need value_dim equal to embed_dim, or output_projection");
  const std::vector<FieldInfo> own = field_info(family("selfhead"));
  for (const FieldInfo& field : field_info(config)) {
    const auto same = [&](const FieldInfo& other) { return other.name == field.name && other.value == field.value; };
    checker.require(!is_among(kOfBlocks, field.name) || std::any_of(own.begin(), own.end(), same),
                    [&] { return "selfhead has no " + field.name; });
  }
}

/// Each layer keeps at least one head, and nothing mixes the heads of a layer, or of two.
void check_kept_heads(Checker& checker, const Config& config) {
  const int64_t kv_heads = config.kv_heads ? config.kv_heads : config.heads, count = attention_count(config);
  const auto& lists = config.kept_heads;
  checker.require(static_cast<int64_t>(lists.size()) == count, [&] {
    return "kept_heads has " + std::to_string(lists.size()) + " lists, must have one for each of " +
           std::to_string(count) + " attention layers";
  });
  for (size_t n = 0; n < lists.size(); ++n) {
    const bool rising = std::adjacent_find(lists[n].begin(), lists[n].end(), std::greater_equal<>()) == lists[n].end();
    checker.require(!lists[n].empty() && rising && lists[n].front() >= 0 && lists[n].back() < kv_heads, [&] {
      return "kept_heads[" + std::to_string(n) + "] must rise, from 0 to below the " + std::to_string(kv_heads) +
             " key/value heads, and keep at least one";
    });
  }
  checker.require(config.query_key_norm != QueryKeyNorm::rows,
                  "kept_heads cannot be combined with query_key_norm rows, which mixes all heads of a token");
  checker.require(!config.shared_relative_bias,
                  "kept_heads cannot be combined with shared_relative_bias: layers differ in heads");
}

/// Layers without attention are causal, and nothing but attention mixes an encoder's tokens.
void check_mixers(Checker& checker, const Config& config) {
  int64_t own = 0, others = 0, selecting = 0;
  for (int64_t n = 0; n < config.layers; ++n) {
    others += !has_attention(config, n);
    selecting += selects_keys(config, n);
    own += mixer_of(config, n) == 'o';
  }
  checker.require(others == 0 || (config.causal && config.encoder_layers == 0),
                  "mixers other than w and f are causal: the model must be causal, without an encoder");
  checker.require(own == 0 || config.own_mixer,
                  "mixers has the letter o, the program's own mixer: the program must set Config::own_mixer");
  checker.require(others == 0 || !config.shared_relative_bias,
                  "shared_relative_bias is for models whose layers all have attention");
  checker.require(selecting == 0 || (!learns_distances(config) && config.positions != PositionEncoding::alibi), [&] {
    return "layers m and n take no distances: positions is " + json_of(config.positions).get<std::string>() +
           ", must be rope, learned, sinusoidal or none";
  });
  checker.require(selecting == 0 || config.rope_scaling == RopeScaling::none, [&] {
    return "layers m and n take rope as it is: rope_scaling is " + json_of(config.rope_scaling).get<std::string>() +
           ", must be none";
  });
  checker.require(config.feed_forward || !config.parallel, "parallel layers need a feed_forward");
  checker.require(config.feed_forward || config.norm_placement != NormPlacement::pre_except_first,
                  "norm_placement pre_except_first needs a feed_forward");
}

}  // namespace

void check(const Config& config) {
  Checker checker("model");
  for (const std::string& reason : faults_of(config)) checker.require(false, reason);
  const auto number = [](int64_t value) { return std::to_string(value); };
  const bool selfhead = config.model == "selfhead";
  const int64_t kv_heads = config.kv_heads ? config.kv_heads : config.heads;
  const bool has_text = has_tokens(config);
  checker.require(config.vocab_size > 0 || !has_text, "vocab_size must be given");
  checker.require(config.attention_dropout >= 0 || config.attention_dropout == -1,
                  "attention_dropout is " + std::to_string(config.attention_dropout) + ", must be -1 or in [0, 1)");
  checker.require(has_text || config.classes > 0 || !config.head,
                  "a model that reads embeddings has no tokens to predict");
  checker.require(!config.takes_embeddings || (is_among(hub_families(), config.model) && config.token_dim == 0 &&
                                               config.type_vocab_size == 0 && config.source_vocab_size == 0),
                  "takes_embeddings is for models of the hub, without token_dim, type_vocab_size and "
                  "source_vocab_size");
  const bool whole = config.heads > 0 && (config.head_dim || config.embed_dim % config.heads == 0);
  if (checker.require(whole, [&] {
        return "heads " + number(config.heads) + " must divide embed_dim " + number(config.embed_dim) +
               ", or head_dim must be given";
      })) {
    const int64_t width = config.head_dim ? config.head_dim : config.embed_dim / config.heads;
    checker.require(selfhead || width <= 1024,
                    [&] { return "the width of a head is " + number(width) + ", must be at most 1024"; });
    checker.require(config.positions != PositionEncoding::rope || width % 2 == 0,
                    [&] { return "the width of a head is " + number(width) + ", must be even with rope"; });
    const int64_t pairs = (config.rotary_dim ? config.rotary_dim : width) / 2;
    const auto has_all = [&](const auto& factors) { return static_cast<int64_t>(factors.size()) == pairs; };
    checker.require(
        config.rope_scaling != RopeScaling::longrope || (has_all(config.rope_within) && has_all(config.rope_beyond)),
        [&] { return "longrope needs rope_within and rope_beyond of " + number(pairs) + " numbers each"; });
  }
  checker.require(kv_heads > 0 && config.heads % kv_heads == 0,
                  [&] { return "kv_heads " + number(kv_heads) + " must divide heads " + number(config.heads); });
  checker.require(selfhead || !config.output_projection,
                  "output_projection is for selfhead; all other models have one");
  if (selfhead) check_selfhead(checker, config);
  if (!selfhead && !config.mixers.empty() && config.layers <= kMostLayers) check_mixers(checker, config);
  if (!config.kept_heads.empty() && !selfhead) check_kept_heads(checker, config);
  checker.require(config.model != "encoder" || config.classes > 0 || !config.head,
                  "an encoder with a head needs classes");
  checker.require(!config.pooler || !config.head, "a pooler is for models without a head");
  checker.require(config.classes > 0 || config.causal || !config.head || is_among(hub_families(), config.model),
                  "a model that predicts tokens must be causal");
  checker.require(config.encoder_layers == 0 || (config.causal && config.classes == 0),
                  "a model with an encoder must be causal and predict tokens");
  checker.require(config.encoder_layers > 0 || (config.source_vocab_size == 0 && config.source_context == 0),
                  "source_vocab_size and source_context need encoder_layers");
  checker.require(config.model != "seq2seq" || config.encoder_layers > 0, "seq2seq needs encoder_layers");
  checker.require(!config.tie_embeddings || config.classes > 0 || !config.head || !config.token_dim ||
                      config.token_dim == config.embed_dim || config.head_dense,
                  "tied embeddings need token_dim equal to embed_dim, or head_dense");
  checker.require(!config.parallel || (config.norm_placement == NormPlacement::pre && config.encoder_layers == 0),
                  "parallel layers must have norm_placement pre, and no encoder");
  checker.require(!is_selfhead(config) || config.norm_placement == NormPlacement::pre ||
                      config.norm_placement == NormPlacement::post,
                  "norm_placement of selfhead must be pre or post");
  checker.done();
}

}  // namespace attn::models
