// A folder with a model in it: what a training of ours left, or what transformers saved.
#include <algorithm>
#include <functional>
#include <numeric>

#include "attn/core_names.h"
#include "attn/models_finetune.h"
#include "io/foreign.h"
#include "models/adapter.h"
#include "models/gguf.h"
#include "models/hub.h"
#include "models/pretrained.h"
#include "models/quantization.h"

namespace attn::models {
namespace {

using io::Json;

/// What a classifier's file calls its classes, or transformers where it does not; read_hub_config() has checked it.
std::vector<std::string> labels_of(const Json& config, int64_t classes) {
  const Json names = config.value("id2label", Json());
  std::vector<std::string> labels;
  for (int64_t n = 0; n < classes; ++n)
    labels.push_back(names.contains(std::to_string(n)) ? names[std::to_string(n)].get<std::string>()
                                                       : "LABEL_" + std::to_string(n));
  return labels;
}

/// Empty where there is no tokenizer file: a caller that needs one reports it. Its files may add tokens that the model
/// has not; a text with one of them is refused then.
std::unique_ptr<text::Tokenizer> tokenizer_of(const std::string& folder, int64_t vocab_size) {
  auto tokenizer = text::find_tokenizer(folder);
  if (!tokenizer) return tokenizer;
  for (const int64_t id : tokenizer->encode("").ids)
    if (id >= vocab_size)
      throw Error("open", {folder + ": the tokenizer puts the token " + std::to_string(id) +
                           " around a text, more than the vocab_size of " + std::to_string(vocab_size) +
                           " in config.json allows"});
  return tokenizer;
}

/// Of a file of its own or, in older folders, of the tokenizer's, where it may be one of several with names.
std::string chat_template_of(const std::string& folder) {
  const std::string own = folder + "/chat_template.jinja", path = folder + "/tokenizer_config.json";
  if (io::exists(own)) return io::read_file(own, 1 << 20);
  if (!io::exists(path)) return "";
  const Json config = io::read_json("open", path);
  const Json found = config.is_object() ? config.value("chat_template", Json()) : Json();
  if (found.is_string()) return found.get<std::string>();
  if (found.is_array())
    for (const Json& named : found)
      if (named.is_object() && named.value("name", Json()) == "default" && named.value("template", Json()).is_string())
        return named["template"].get<std::string>();
  return "";
}

/// A parameter that the folder may lack.
Array new_or(const HubWeights& weights, const nn::Variable& wanted, const std::function<void(const Array&)>& draw,
             const OpenOptions& options, Loaded& loaded) {
  const bool of_head = wanted.name.starts_with("head.");
  if (std::optional<Array> found = options.new_head && of_head ? std::nullopt : weights.find_fitting(wanted))
    return *found;
  loaded.new_parameters.push_back(wanted.name);
  return nn::random_parameter(wanted, draw);
}

Loaded open_hub_folder(const std::string& folder, const Json& config, const OpenOptions& options) {
  std::optional<PeftAdapter> adapter;
  if (!options.adapter.empty()) adapter.emplace(options.adapter);
  const std::string task = adapter && options.task.empty() ? adapter->task() : options.task;
  HubModel hub = read_hub_config(config, folder + "/config.json", task);
  if (options.adapt) options.adapt(hub.config);
  Loaded loaded;
  if (hub.config.causal) read_generation(folder, config, hub.config, loaded);
  HubWeights weights(folder, hub);
  if (adapter) adapter->adapt(hub);
  const int64_t total = count_parameters(hub.config).total();
  int64_t done = 0;
  const auto find = [&](const nn::Variable& wanted, const auto& draw) {
    const std::optional<Array> adapted = adapter ? adapter->find(wanted) : std::nullopt;
    nn::ParameterData data = adapted ? *adapted
                             : options.adapt && may_be_new(wanted.name)
                                 ? new_or(weights, wanted, draw, options, loaded)
                                 : weights.find(wanted, stays_quantized(wanted, options));
    done += std::accumulate(wanted.shape.begin(), wanted.shape.end(), int64_t{1}, std::multiplies<>());
    if (options.on_progress && !options.on_progress(done, total)) throw Error("open", {folder + ": stopped"});
    return data.packed ? data : quantized(wanted, data.array, hub.config, options);
  };
  loaded.model = std::make_unique<Model>(hub.config, parameter_options(options), find);
  if (!weights.reasons().empty()) throw Error("open", weights.reasons());
  loaded.tokenizer = tokenizer_of(folder, hub.config.vocab_size);
  if (hub.config.causal) loaded.chat_template = chat_template_of(folder);
  loaded.labels = labels_of(config, hub.config.classes);
  return loaded;
}

}  // namespace

nn::Parameters::Options parameter_options(const OpenOptions& options) {
  return {.precision = options.precision,
          .seed = options.seed,
          .purpose = options.purpose,
          .trains = options.trains,
          .tensor_ranks = options.tensor_ranks};
}

bool is_adapter(std::string_view parameter) { return parameter.find(".lora.") != std::string_view::npos; }
bool is_in_head(std::string_view parameter) { return parameter.starts_with("head"); }
bool may_be_new(std::string_view parameter) { return is_in_head(parameter) || is_adapter(parameter); }

std::unique_ptr<text::Tokenizer> read_tokenizer(const std::string& folder) {
  if (io::is_gguf(folder)) return text::open_tokenizer(folder);
  if (is_of_transformers(read_model_file("open", folder))) return text::open_tokenizer(folder);
  const std::string path = folder + "/tokenizer.json";
  return text::load_tokenizer(io::read_file(path, 1 << 28), path);
}

std::vector<std::string> read_labels(const std::string& folder) {
  const Json json = read_model_file("config", folder);
  if (!is_of_transformers(json)) {
    const Config config = config_of(json, folder, "");
    return config.classes ? load_labels(folder, config.classes) : std::vector<std::string>();
  }
  return labels_of(json, read_hub_config(json, folder + "/config.json", "").config.classes);
}

DecoderTokens read_decoder_tokens(const std::string& folder) {
  const Json json = read_model_file("open", folder);
  const Config config = config_of(json, folder, "");
  Loaded loaded;
  if (is_of_transformers(json)) read_generation(folder, json, config, loaded);
  else if (const std::optional<Pretrained> own = read_pretrained(folder))
    read_generation_fields(own->generation(), folder + "/" + kPretrainedFile, config, loaded);
  else return {config.vocab_size - 1, config.vocab_size - 1};
  if (loaded.eos_token_ids.empty() || loaded.decoder_start_token_ids.empty())
    throw Error("open", {folder + ": neither config.json nor generation_config.json names the eos_token_id and the "
                                  "decoder_start_token_id that answers begin and end with"});
  return {loaded.decoder_start_token_ids.front(), loaded.eos_token_ids.front()};
}

bool is_of_transformers(const Json& config) { return config.contains("model_type"); }

Json read_model_file(std::string_view operation, const std::string& folder) {
  io::require_model(operation, folder);
  const std::string path = folder + "/config.json";
  Json config = io::read_python_json(operation, path, 1 << 20);
  if (!config.is_object()) throw Error(operation, {path + ": must be an object, is " + io::as_shown(config)});
  if (!is_of_transformers(config) && !config.value("model", Json()).is_string())
    throw Error(operation,
                {path + " names no model_type, as transformers writes it, and is none that attn train wrote" +
                 io::instead_in(folder, io::Content::weights)});
  return config;
}

Config own_config(const Json& object, const std::string& source) {
  Config config;
  apply_fields(config, object, source);
  try {
    check(config);
  } catch (const Error& error) {
    std::vector<std::string> reasons;
    for (const std::string& reason : error.reasons()) reasons.push_back(source + ": " + reason);
    throw Error("config", std::move(reasons));
  }
  return config;
}

Config config_of(const Json& json, const std::string& folder, const std::string& task) {
  const std::string path = folder + "/config.json";
  return is_of_transformers(json) ? read_hub_config(json, path, task).config : own_config(json, path);
}

Config read_config(const std::string& folder, const std::string& task) {
  if (io::is_gguf(folder)) return read_gguf_config(folder);
  return config_of(read_model_file("config", folder), folder, task);
}

namespace {

void require_inference(const OpenOptions& options) {
  if (options.quantization && options.purpose == nn::Purpose::training)
    throw Error("open",
                {"weights of " + std::string(attn::name_of(*options.quantization)) + " are for inference alone"});
}

Loaded packed_if_wanted(Loaded loaded, const OpenOptions& options) {
  if (options.packed.value_or(false)) loaded.model->parameters().pack();
  return loaded;
}

}  // namespace

Loaded open_parsed(const std::string& folder, const Json& json, const OpenOptions& options) {
  if (!options.adapter.empty() && !is_of_transformers(json))
    throw Error("open", {folder + " is of attn train: an adapter of PEFT is for a folder of the hub"});
  require_inference(options);
  return packed_if_wanted(
      is_of_transformers(json) ? open_hub_folder(folder, json, options) : load_parsed(folder, json, options), options);
}

Loaded open(const std::string& folder, const OpenOptions& options) {
  if (io::is_gguf(folder)) {
    require_inference(options);
    return packed_if_wanted(open_gguf(folder, options), options);
  }
  return open_parsed(folder, read_model_file("open", folder), options);
}

Loaded open_with_tokenizer(const std::string& folder, const OpenOptions& options) {
  OpenOptions how = options;
  if (how.purpose == nn::Purpose::inference) how.packed = how.packed.value_or(true);
  Loaded loaded = open(folder, how);
  if (!loaded.tokenizer) loaded.tokenizer = text::open_tokenizer(folder);  // says which files are missing
  return loaded;
}

}  // namespace attn::models
