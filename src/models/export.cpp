// export_folder(): config.json, weights and tokenizer of a model as transformers reads them.
#include "models/export.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "attn/core_names.h"
#include "attn/models_finetune.h"
#include "models/adapter.h"
#include "models/export_config.h"
#include "models/hub_tensors.h"
#include "models/packed_tensors.h"

namespace attn::models {

using io::Json;

int64_t bytes_in(const io::NamedTensor& tensor) {
  int64_t bytes = size_of(tensor.dtype);
  for (const int64_t extent : tensor.shape) bytes *= extent;
  return bytes;
}

void require_empty_folder(const std::string& to) {
  namespace fs = std::filesystem;
  if (to.empty()) throw Error("export", {"the folder to write has no name"});
  std::error_code unknown;
  const fs::file_status status = fs::status(to, unknown);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status)) throw Error("export", {to + " is not a folder"});
  if (!fs::is_empty(to, unknown) || unknown) throw Error("export", {to + " is not empty: export needs a new folder"});
}

ExportSource open_for_export(const std::string& folder, const ExportOptions& options) {
  const Json json = read_model_file("export", folder);
  ExportSource source;
  source.loaded = open_parsed(
      folder, json,
      {.precision = options.precision, .dequantize = true, .which = options.which, .adapter = options.adapter});
  if (is_of_transformers(json)) {
    const std::string task = options.adapter.empty() ? "" : PeftAdapter(options.adapter).task();
    source.original = parse_pretrained(pretrained_json(folder, task), folder);
  }
  if (!source.original) source.original = read_pretrained(folder);
  return source;
}

namespace {

// ------------------------------------------------------------------------------------------------------------ weights

/// Tensors of files of at most `limit` bytes, in order of their names.
std::vector<std::vector<io::NamedTensor>> shards_of(const std::vector<io::NamedTensor>& tensors, int64_t limit) {
  std::vector<std::vector<io::NamedTensor>> shards(1);
  int64_t bytes = 0;
  for (const io::NamedTensor& tensor : tensors) {
    const int64_t own = bytes_in(tensor);
    if (bytes > 0 && bytes + own > limit) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(tensor);
    bytes += own;
  }
  return shards;
}

/// "model-00001-of-00003.safetensors"
std::string shard_name(size_t number, size_t count) {
  const auto five = [](size_t n) {
    const std::string digits = std::to_string(n);
    return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
  };
  return "model-" + five(number) + "-of-" + five(count) + ".safetensors";
}

void write_weights(const std::string& to, const std::vector<io::NamedTensor>& tensors, int64_t limit,
                   Exported& exported) {
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  for (const io::NamedTensor& tensor : tensors) exported.bytes += bytes_in(tensor);
  exported.tensors = std::ssize(tensors);
  const auto shards = shards_of(tensors, limit);
  const auto write = [&](const std::string& name, const std::vector<io::NamedTensor>& part) {
    io::write_safetensors(to + "/" + name, part, metadata);
    exported.files.push_back(name);
  };
  if (shards.size() == 1) return write("model.safetensors", tensors);
  Json places = Json::object();
  for (size_t n = 0; n < shards.size(); ++n) {
    const std::string name = shard_name(n + 1, shards.size());
    write(name, shards[n]);
    for (const io::NamedTensor& tensor : shards[n]) places[tensor.name] = name;
  }
  const Json index = {{"metadata", {{"total_size", exported.bytes}}}, {"weight_map", places}};
  io::write_file(to + "/model.safetensors.index.json", index.dump(2) + "\n");
  exported.files.emplace_back("model.safetensors.index.json");
}

// ------------------------------------------------------------------------------------------------------------- folder

void write_tokenizer(const std::string& to, const ExportSource& source, Exported& exported) {
  const auto write = [&](const std::string& name, const std::string& content) {
    io::write_file(to + "/" + name, content);
    exported.files.push_back(name);
  };
  if (source.loaded.tokenizer) {
    const std::string json = tokenizers_json(*source.loaded.tokenizer);
    if (json.empty())
      exported.notes.push_back("no tokenizer.json: tokenizers has none of the kind " + source.loaded.tokenizer->kind());
    else write("tokenizer.json", json);
  }
  const std::map<std::string, std::string> kept =
      source.original ? source.original->files : std::map<std::string, std::string>();
  for (const auto& [name, content] : kept) {
    if (const size_t slash = name.rfind('/'); slash != std::string::npos)
      std::filesystem::create_directories(to + "/" + name.substr(0, slash));
    write(name, content);
  }
  if (source.loaded.tokenizer && !kept.contains("tokenizer_config.json"))
    write("tokenizer_config.json", Json({{"tokenizer_class", "PreTrainedTokenizerFast"}}).dump(2) + "\n");
}

}  // namespace

// ------------------------------------------------------------------------------------------------------------ adapters

namespace {

/// The first output that an adapter changes, of a layer of `out` outputs; `part` is LinearPart's name or empty.
int64_t first_output(std::string_view part, int64_t out, int64_t width) {
  if (part == "key") return out - 2 * width;
  return part == "value" || part == "up" ? out - width : 0;
}

/// to += factor B A
void add_product(const Array& b, const Array& a, double factor, const View<2>& to) {
  const Array scaled(b.dtype(), b.shape(), false);
  ops::scale(b.rows(), factor, scaled.rows());
  ops::matmul(scaled.rows(), a.rows(), to, {.accumulate = true});
}

}  // namespace

Model merge_adapters(const Model& model) {
  Config config = model.config();
  config.lora_rank = 0;
  const nn::Parameters& from = model.parameters();
  const double factor = from.options().lora.rank ? from.options().lora.scale() : 0;
  const auto merged = [&](const nn::Variable& wanted, const auto&) {
    const nn::Parameter& parameter = *from.find(wanted.name);
    if (parameter.value.is_freed())
      throw Error("merge_adapters", {wanted.name + " is packed, and its matrix was freed: open the model unpacked"});
    const Array own(wanted.dtype, wanted.shape, false);
    ops::convert(parameter.master.flat(), own.flat());
    if (!parameter.is_linear) return own;
    const std::string stem = wanted.name.substr(0, wanted.name.rfind('.')) + ".lora.";
    for (const char* part : {"", "query", "key", "value", "gate", "up"}) {
      const std::string at = stem + part + (*part ? "." : "");
      const nn::Parameter *a = from.find(at + "a"), *b = from.find(at + "b");
      if (!a || !b) continue;
      const int64_t width = b->master.shape()[0], first = first_output(part, wanted.shape[0], width);
      add_product(b->master, a->master, factor, own.rows().slice(0, first, first + width));
    }
    return own;
  };
  return Model(config, from.options().precision, merged);
}

Exported export_folder(const std::string& folder, const std::string& to, const ExportOptions& options) {
  if (options.precision == nn::Precision::float64)
    throw Error("export", {"precision is float64, must be float32, bfloat16 or float16"});
  if (options.file_bytes < 1)
    throw Error("export", {"file_bytes is " + std::to_string(options.file_bytes) + ", must be positive"});
  require_empty_folder(to);
  ExportSource source = open_for_export(folder, options);
  if (source.loaded.model->config().lora_rank) *source.loaded.model = merge_adapters(*source.loaded.model);
  const Model& model = *source.loaded.model;
  Json config = config_for_hub(model, source.loaded, source.original ? &*source.original : nullptr);
  const HubModel hub = read_hub_config(config, "config.json", "");
  HubTensors tensors(hub, source.original ? source.original->tensors : decltype(Pretrained::tensors)());
  for (const nn::Parameter& parameter : model.parameters().all()) tensors.put(parameter);
  std::vector<io::NamedTensor> all = tensors.tensors();
  PackedTensors packed;
  if (options.quantization) {
    const auto is_linear = [&](const std::string& name) { return tensors.is_linear(name); };
    all = packed.quantize(all, is_linear, *options.quantization, hub.config.causal);
    config["quantization_config"] = packed.config();
  }

  Exported exported;
  if (const Json names = config.value("architectures", Json()); names.is_array() && !names.empty())
    exported.architecture = names[0].get<std::string>();
  io::make_directory(to);
  write_weights(to, all, options.file_bytes, exported);
  write_tokenizer(to, source, exported);
  io::write_file(to + "/config.json", config.dump(2) + "\n");  // last: with it the folder is a model
  exported.files.emplace_back("config.json");
  return exported;
}

}  // namespace attn::models
