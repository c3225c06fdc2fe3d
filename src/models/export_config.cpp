// config.json and tokenizer.json of an exported model. What is written is read back, and must give the same model.
#include "models/export_config.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "attn/core_names.h"
#include "models/shape.h"

namespace attn::models {
namespace {

using io::Json;

// ---------------------------------------------------------------------------------------------------- same computation

/// The configuration with explicit sizes, and with defaults for everything that this model does not use.
Json comparable(Config config) {
  const Config none;
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  if (config.head_dim == 0) config.head_dim = config.embed_dim / config.heads;
  if (config.token_dim == 0) config.token_dim = config.embed_dim;
  if (config.attention_scale == 0) config.attention_scale = 1 / std::sqrt(static_cast<double>(config.head_dim));
  if (config.embedding_scale == 0 && config.positions != PositionEncoding::sinusoidal) config.embedding_scale = 1;
  if (config.hidden_dim == 0)
    config.hidden_dim = config.gated ? (config.embed_dim * 8 / 3 + 31) / 32 * 32 : 4 * config.embed_dim;
  std::string letters;
  for (int64_t n = 0; n < config.layers; ++n)
    letters += mixer_of(config, n) == 'w' && config.window == 0 ? 'f' : mixer_of(config, n);
  config.mixers = letters;
  if (config.rope_context == 0) config.rope_context = config.context;
  if (config.window_theta == 0) config.window_theta = config.rope_theta;
  if (config.bias) config.qkv_bias = false;
  config.model = none.model;
  config.init = none.init, config.dropout = 0, config.attention_dropout = none.attention_dropout;
  Json fields = Json::parse(to_json(config));
  const auto reset = [&](std::string_view prefix) {
    const Json defaults = Json::parse(to_json(none));
    for (auto& [name, value] : fields.items())
      if (name.starts_with(prefix)) value = defaults[name];
  };
  if (config.positions != PositionEncoding::rope)
    for (const char* prefix : {"rope_", "window_theta", "rotary_dim"}) reset(prefix);
  if (!learns_distances(config))
    for (const char* prefix : {"buckets", "max_distance"}) reset(prefix);
  for (const auto& [letter, prefix] :
       {std::pair{'l', "linear_"}, {'c', "short_"}, {'r', "lstm_"}, {'m', "moba_"}, {'n', "nsa_"}})
    if (letters.find(letter) == std::string::npos) reset(prefix);
  if (config.classes == 0)
    for (const char* name : {"pooling", "problem_type"}) reset(name);
  if (!config.head_dense)
    for (const char* prefix : {"head_dense", "head_activation"}) reset(prefix);
  reset("lora_");
  return fields;
}

}  // namespace

std::vector<std::string> differences(const Json& config, const Config& model, double tolerance) {
  Config read;
  try {
    read = read_hub_config(config, "config.json", "").config;
  } catch (const Error& error) {
    return error.reasons();
  }
  const Json theirs = comparable(read), ours = comparable(model);
  std::vector<std::string> all;
  for (const auto& [name, value] : ours.items())
    if (theirs[name] != value &&
        !(value.is_number_float() &&
          std::abs(theirs[name].get<double>() - value.get<double>()) < tolerance * std::abs(value.get<double>())))
      all.push_back(name + " is " + value.dump() + ", there " + theirs[name].dump());
  return all;
}

namespace {

// ------------------------------------------------------------------------------------------------- models of our own

/// A family of the hub that `attn train` can make models of.
struct Candidate {
  const char* family;
  const char* class_prefix;
  const char* head;
  bool causal;
};
constexpr Candidate kCandidates[] = {{"gpt2", "GPT2", "LMHeadModel", true},
                                     {"llama", "Llama", "ForCausalLM", true},
                                     {"bert", "Bert", "ForMaskedLM", false}};

/// In the words of transformers.
std::string activation_in_hub(const std::string& ours) { return ours == "gelu_tanh" ? "gelu_new" : ours; }

/// config.json by the rules that read it.
Json config_by_rules(const Candidate& candidate, const Config& model) {
  const Family& family = *find_family(candidate.family);
  const char* suffix = model.classes ? "ForSequenceClassification" : candidate.head;
  Config sized = model;
  if (sized.hidden_dim == 0) sized.hidden_dim = comparable(model)["hidden_dim"].get<int64_t>();
  if (sized.kv_heads == 0) sized.kv_heads = sized.heads;
  if (sized.head_dim == 0) sized.head_dim = sized.embed_dim / sized.heads;
  const Json fields = Json::parse(to_json(sized));
  Json config = {{"model_type", candidate.family},
                 {"architectures", {std::string(candidate.class_prefix) + suffix}},
                 {"bos_token_id", nullptr},
                 {"eos_token_id", nullptr},
                 {"pad_token_id", nullptr}};
  for (const FieldRule& rule : family.fields) {
    if (rule.meaning == Meaning::required || rule.meaning == Meaning::inverse_root) continue;
    const Json value = fields.value(rule.ours, Json());
    if (value.is_null() || (rule.meaning == Meaning::positive && value == 0)) continue;
    config[rule.theirs] =
        rule.meaning == Meaning::activation ? Json(activation_in_hub(value.get<std::string>())) : value;
  }
  if (model.positions == PositionEncoding::rope) {
    config["rope_theta"] = model.rope_theta;
    config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", model.rope_theta}};
  }
  return config;
}

Json own_config(const Config& model) {
  std::vector<std::string> fewest;
  const char* nearest = "";
  for (const Candidate& candidate : kCandidates) {
    if (candidate.causal != model.causal) continue;
    const Json config = config_by_rules(candidate, model);
    std::vector<std::string> wrong = differences(config, model);
    if (wrong.empty()) return config;
    if (fewest.empty() || wrong.size() < fewest.size()) {
      fewest = std::move(wrong);
      nearest = candidate.family;
    }
  }
  fewest.insert(fewest.begin(), std::string("no model of transformers that attn writes computes this one; ") + nearest +
                                    " is the nearest");
  throw Error("export", std::move(fewest));
}

// --------------------------------------------------------------------------------------------------- fine-tuned models

/// The class of transformers with another head: "BertModel" and "ForMaskedLM" give "BertForMaskedLM".
std::string with_head(const std::string& name, const Family& family, const std::string& suffix) {
  std::string longest;
  for (const HeadRule& head : family.heads)
    if (name.ends_with(head.suffix) && std::string_view(head.suffix).size() > longest.size()) longest = head.suffix;
  return name.substr(0, name.size() - longest.size()) + suffix;
}

Json tuned_config(const Model& model, const Pretrained& original) {
  Json config = original.config;
  const HubModel hub = read_hub_config(config, "config.json", original.task);
  if (const Json names = config.value("architectures", Json()); names.is_array() && !names.empty())
    config["architectures"] = {with_head(names[0].get<std::string>(), *hub.family, hub.head->suffix)};
  config["tie_word_embeddings"] = model.config().tie_embeddings;
  return config;
}

void set_classes(Json& config, const Loaded& loaded) {
  Json names = Json::object(), numbers = Json::object();
  for (size_t n = 0; n < loaded.labels.size(); ++n) {
    names[std::to_string(n)] = loaded.labels[n];
    numbers[loaded.labels[n]] = n;
  }
  config["id2label"] = names;
  config["label2id"] = numbers;
  config.erase("num_labels");
  config["problem_type"] = attn::name_of(loaded.model->config().problem_type);
}

}  // namespace

Json config_for_hub(const Model& model, const Loaded& loaded, const Pretrained* original) {
  Json config = original ? tuned_config(model, *original) : own_config(model.config());
  if (model.config().classes) set_classes(config, loaded);
  config.erase("quantization_config");  // the weights are numbers
  config[config.contains("torch_dtype") ? "torch_dtype" : "dtype"] = name_of(model.parameters().dtype());
  if (std::vector<std::string> wrong = differences(config, model.config()); !wrong.empty())
    throw Error("export", std::move(wrong));
  return config;
}

// ----------------------------------------------------------------------------------------------------------- tokenizer

namespace {

/// The characters that byte-level tokenizers write for each byte: printable ones as they are, others from 256 on.
std::string byte_character(int byte) {
  const auto is_printable = [](int b) { return (b > 32 && b < 127) || (b > 160 && b < 256 && b != 173); };
  int character = byte;
  if (!is_printable(byte)) {
    character = 256;
    for (int b = 0; b < byte; ++b) character += !is_printable(b);
  }
  if (character < 128) return std::string(1, static_cast<char>(character));
  return {static_cast<char>(0xc0 | character >> 6), static_cast<char>(0x80 | (character & 63))};
}

Json pipeline_of(const Json& vocabulary, Json model, const Json& pre_tokenizer, const Json& decoder) {
  model["vocab"] = vocabulary;
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", pre_tokenizer},
          {"post_processor", nullptr},
          {"decoder", decoder},
          {"model", model}};
}

/// Each character is a token.
Json characters_json(const text::Tokenizer& tokenizer) {
  Json vocabulary = Json::object();
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) vocabulary[tokenizer.decode({&id, 1})] = id;
  return pipeline_of(
      vocabulary, {{"type", "WordLevel"}, {"unk_token", ""}},
      {{"type", "Split"}, {"pattern", {{"Regex", "[\\s\\S]"}}}, {"behavior", "Isolated"}, {"invert", false}},
      {{"type", "Fuse"}});
}

Json bytes_json() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[byte_character(byte)] = byte;
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"ignore_merges", false},
                      {"merges", Json::array()}};
  const Json level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  return pipeline_of(vocabulary, model, level, level);
}

}  // namespace

std::string tokenizers_json(const text::Tokenizer& tokenizer) {
  if (tokenizer.kind() == "words") return "";
  if (tokenizer.kind() == "characters") return characters_json(tokenizer).dump() + "\n";
  if (tokenizer.kind() == "bytes") return bytes_json().dump() + "\n";
  return tokenizer.to_json();
}

}  // namespace attn::models
