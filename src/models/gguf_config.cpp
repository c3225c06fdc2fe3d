// The config.json that a GGUF file would have as a folder of the hub. Its entries are named ARCHITECTURE.KEY.
#include <cmath>
#include <cstring>

#include "models/gguf.h"
#include "models/shape.h"

namespace attn::models {
namespace {

using io::Json;

struct Rename {
  const char* theirs;  // after "llama."
  const char* ours;    // a field of config.json; "" = it says nothing that a tensor's shape does not
};
const std::vector<Rename> kCommon = {{"block_count", "num_hidden_layers"},
                                     {"context_length", "max_position_embeddings"},
                                     {"embedding_length", "hidden_size"},
                                     {"feed_forward_length", "intermediate_size"},
                                     {"attention.head_count", "num_attention_heads"},
                                     {"attention.head_count_kv", "num_key_value_heads"},
                                     {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
                                     {"attention.key_length", "head_dim"},
                                     {"attention.value_length", ""},
                                     {"rope.freq_base", "rope_theta"},
                                     {"rope.dimension_count", ""},
                                     {"vocab_size", ""}};
const std::vector<Rename> kGemma2 = {{"attention.sliding_window", "sliding_window"},
                                     {"attn_logit_softcapping", "attn_logit_softcapping"},
                                     {"final_logit_softcapping", "final_logit_softcapping"}};

struct Architecture {
  const char* name;  // and the model_type of transformers
  std::vector<Rename> entries;
};
const std::vector<Architecture> kArchitectures = {{"llama", {}}, {"qwen2", {}}, {"qwen3", {}}, {"gemma2", kGemma2}};

}  // namespace

std::vector<double> llama3_divisors(double theta, int64_t width, const nn::RopeScalingOptions& scaling) {
  std::vector<double> divisors = nn::rope_frequencies(theta, width, {}, 0);
  const std::vector<double> scaled = nn::rope_frequencies(theta, width, scaling, 0);
  for (size_t n = 0; n < divisors.size(); ++n) divisors[n] /= scaled[n];
  return divisors;
}

namespace {

class ConfigReader {
 public:
  explicit ConfigReader(const io::Gguf& file) : file_(file), entries_(file.metadata()) {
    const Json name = entries_.value("general.architecture", Json());
    for (const Architecture& architecture : kArchitectures)
      if (name == architecture.name) architecture_ = &architecture;
    std::string known;
    for (const Architecture& architecture : kArchitectures)
      known += (known.empty() ? "" : ", ") + std::string(architecture.name);
    if (!architecture_)
      refuse("general.architecture is " + io::as_shown(name) + ", which is not supported; supported are: " + known);
    prefix_ = std::string(architecture_->name) + ".";
  }

  Json config() {
    config_ = {{"model_type", architecture_->name}, {"tie_word_embeddings", !has_tensor("output.weight")}};
    read_entries();
    const char* table = "token_embd.weight";
    if (file_.foreign().contains(table)) refuse_type(file_, table);
    const auto tokens = file_.tensors().find(table);
    if (tokens == file_.tensors().end() || tokens->second.shape.size() != 2)
      refuse("there is no " + std::string(table) + " [tokens, width]");
    config_["vocab_size"] = tokens->second.shape[0];
    const std::optional<int64_t> heads = io::whole_number(config_.value("num_attention_heads", Json())),
                                 width = io::whole_number(config_.value("hidden_size", Json()));
    if (!heads || !width || *heads < 1) refuse(prefix_ + "attention.head_count or embedding_length is missing");
    const std::optional<int64_t> own_width = io::whole_number(config_.value("head_dim", Json(*width / *heads)));
    if (own_width) head_dim_ = *own_width;
    config_["head_dim"] = head_dim_;
    require_equal("attention.value_length", head_dim_);
    require_equal("rope.dimension_count", head_dim_);
    if (*architecture_->name == 'g') config_["query_pre_attn_scalar"] = large_gemma() ? *width / *heads : head_dim_;
    if (has_tensor("rope_freqs.weight")) read_frequencies();
    read_ends();
    return config_;
  }

 private:
  static constexpr int64_t kLayersOfLargeGemma = 46;  // 27B, the one whose scores are scaled by hidden_size / heads

  [[noreturn]] void refuse(const std::string& reason) const { throw Error("open", {file_.path() + ": " + reason}); }
  bool has_tensor(const char* name) const { return file_.tensors().contains(name) || file_.foreign().contains(name); }
  bool large_gemma() const { return config_.value("num_hidden_layers", Json()) == kLayersOfLargeGemma; }

  const Rename* find(const std::string& key) const {
    for (const auto* list : {&kCommon, &architecture_->entries})
      for (const Rename& rename : *list)
        if (key == rename.theirs) return &rename;
    return nullptr;
  }

  void read_entries() {
    for (const auto& [key, value] : entries_.items()) {
      if (!key.starts_with(prefix_)) continue;
      const std::string rest = key.substr(prefix_.size());
      if (rest.starts_with("rope.scaling.")) continue;
      if (const Rename* rename = find(rest)) {
        if (value.is_array()) refuse(key + " is a list, layers that differ are not supported");
        if (*rename->ours) config_[rename->ours] = value;
      } else if (value != 0 && value != false) {
        refuse(key + " is " + io::as_shown(value) + ", which is not supported");
      }
    }
    read_scaling();
  }

  void read_scaling() {
    const auto entry = [&](const char* name) { return entries_.value(prefix_ + "rope.scaling." + name, Json()); };
    const Json type = entry("type"), factor = entry("factor"), original = entry("original_context_length");
    if (type.is_null() || type == "none") return;
    if (type != "linear" && type != "yarn")
      refuse(prefix_ + "rope.scaling.type is " + io::as_shown(type) + ", must be none, linear or yarn");
    config_["rope_scaling"] = {{"rope_type", type}, {"factor", factor}};
    if (type == "yarn" && !original.is_null()) config_["rope_scaling"]["original_max_position_embeddings"] = original;
  }

  void require_equal(const char* name, int64_t wanted) const {
    const Json value = entries_.value(prefix_ + name, Json());
    if (!value.is_null() && value != wanted)
      refuse(prefix_ + name + " is " + io::as_shown(value) + ", must be the width of a head, " +
             std::to_string(wanted));
  }

  /// Llama 3 divides its frequencies by the factors of this tensor; config.json has the numbers that they are made of.
  void read_frequencies() {
    const auto found = file_.tensors().find("rope_freqs.weight");
    const double theta = config_.value("rope_theta", Json(10000.0)).get<double>();
    for (const double factor : {8.0, 32.0}) {
      if (found == file_.tensors().end() || found->second.type != io::GgufType::f32 ||
          found->second.shape != std::vector<int64_t>{head_dim_ / 2} || !are_factors(found->second, theta, factor))
        continue;
      config_["rope_scaling"] = {{"rope_type", "llama3"},
                                 {"factor", factor},
                                 {"low_freq_factor", 1.0},
                                 {"high_freq_factor", 4.0},
                                 {"original_max_position_embeddings", kLlama3Context}};
      return;
    }
    refuse("rope_freqs.weight has other factors than those of Llama 3.1, 3.2 and 3.3, which is not supported");
  }
  static bool are_factors(const io::GgufTensor& tensor, double theta, double factor) {
    const std::vector<double> wanted = llama3_divisors(
        theta, 2 * tensor.shape[0], {.kind = RopeScaling::llama3, .factor = factor, .context = kLlama3Context});
    for (size_t n = 0; n < wanted.size(); ++n) {
      float given;
      std::memcpy(&given, tensor.data + n * 4, sizeof given);
      if (!(std::abs(given - wanted[n]) < 1e-4 * wanted[n])) return false;
    }
    return true;
  }
  static constexpr int64_t kLlama3Context = 8192;

  void read_ends() {
    Json ends = Json::array();
    for (const char* name : {"eos_token_id", "eot_token_id"})
      if (const Json id = entries_.value(std::string("tokenizer.ggml.") + name, Json()); !id.is_null())
        ends.push_back(id);
    if (!ends.empty()) config_["eos_token_id"] = ends;
    if (const Json id = entries_.value("tokenizer.ggml.bos_token_id", Json()); !id.is_null())
      config_["bos_token_id"] = id;
  }

  const io::Gguf& file_;
  const Json& entries_;
  const Architecture* architecture_ = nullptr;
  std::string prefix_;
  Json config_;
  int64_t head_dim_ = 0;
};

}  // namespace

void refuse_type(const io::Gguf& file, const std::string& tensor) {
  throw Error("open", {file.path() + ": tensor " + tensor + " is of the type " + file.foreign().at(tensor) +
                       ", which is not read; read are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and "
                       "Q6_K, as in files named Q4_K_M or Q8_0"});
}

Json gguf_model_entries(const std::string& model_type, const Config& config) {
  std::string known;
  bool is_known = false;
  for (const Architecture& architecture : kArchitectures) {
    is_known = is_known || model_type == architecture.name;
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  if (!is_known || config.classes || !config.head)
    throw Error("export", {"the model is of the type " + model_type + (config.classes ? " and classifies" : "") +
                           "; a GGUF file is written for models that continue texts of the types " + known});
  const LayerShape heads = attention_shape(config);
  const int64_t width = heads.key_width;
  Json entries = {{"general.architecture", model_type}};
  const auto set = [&](const char* name, const Json& value) { entries[model_type + "." + name] = value; };
  set("block_count", config.layers);
  set("context_length", config.context);
  set("embedding_length", config.embed_dim);
  set("feed_forward_length", config.hidden_dim);
  set("attention.head_count", heads.heads);
  set("attention.head_count_kv", heads.kv_heads);
  set("attention.layer_norm_rms_epsilon", config.norm_epsilon);
  set("attention.key_length", width);
  set("attention.value_length", width);
  set("rope.dimension_count", width);
  set("rope.freq_base", config.rope_theta);
  set("vocab_size", config.vocab_size);
  if (config.rope_scaling == RopeScaling::linear) {
    set("rope.scaling.type", "linear");
    set("rope.scaling.factor", config.rope_factor);
  }
  if (model_type == "gemma2") {
    set("attention.sliding_window", config.window);
    set("attn_logit_softcapping", config.softcap);
    set("final_logit_softcapping", config.logit_softcap);
  }
  return entries;
}

Json gguf_config(const io::Gguf& file) { return ConfigReader(file).config(); }

}  // namespace attn::models
