// export_adapter(): adapters, and the head that was trained with them, as PEFT writes them.
#include <cctype>
#include <set>

#include "attn/models_export.h"
#include "models/adapter.h"
#include "models/export.h"
#include "models/export_config.h"
#include "models/hub_tensors.h"

namespace attn::models {
namespace {

using io::Json;

/// "blocks.0.attention.qkv" and "query" of "blocks.0.attention.qkv.lora.query.a"; nothing of another parameter.
std::optional<std::pair<std::string, std::string>> adapted_layer(const std::string& parameter) {
  constexpr std::string_view kLora = ".lora.";
  const size_t at = parameter.find(kLora);
  if (at == std::string::npos || !parameter.ends_with(".a")) return {};
  const std::string rest = parameter.substr(at + kLora.size());
  return std::pair(parameter.substr(0, at), rest.size() > 1 ? rest.substr(0, rest.size() - 2) : std::string());
}

/// Rows first .. first + rows - 1 of B, in the order of transformers.
Array rows_of(const Array& b, int64_t first, int64_t rows, const PickedRows& picked) {
  const Array part(b.dtype(), {rows, b.shape()[1]}, false);
  if (picked.rows.empty()) ops::convert(b.rows().slice(0, first, first + rows), part.rows());
  for (size_t r = 0; r < picked.rows.size(); ++r) {
    const auto row = static_cast<int64_t>(r);
    ops::convert(b.rows().slice(0, row, row + 1), part.rows().slice(0, picked.rows[r], picked.rows[r] + 1));
  }
  return part;
}

/// The tensors of an adapter's folder, with the memory that is their own.
class PeftTensors {
 public:
  PeftTensors(const HubModel& hub, const Model& model) : hub_(hub), model_(model), head_(hub, {}) {
    for (const nn::Parameter& parameter : model.parameters().all()) {
      if (const auto layer = adapted_layer(parameter.name)) put(layer->first, layer->second, parameter);
      if (model.config().classes && parameter.name.starts_with("head")) head_.put(parameter);
    }
    for (io::NamedTensor tensor : head_.tensors()) {
      saved_.insert(tensor.name.substr(0, tensor.name.rfind('.')));
      tensor.name = kPeftPrefix + tensor.name;
      tensors_.push_back(std::move(tensor));
    }
  }
  const std::vector<io::NamedTensor>& tensors() const { return tensors_; }
  const std::set<std::string>& adapted() const { return adapted_; }
  const std::set<std::string>& saved() const { return saved_; }
  bool transposed() const { return transposed_; }

 private:
  void put(const std::string& layer, const std::string& part, const nn::Parameter& a) {
    const nn::Parameter& b = *model_.parameters().find(a.name.substr(0, a.name.size() - 1) + "b");
    std::vector<AdapterModule> modules = modules_of(hub_, layer);
    const bool is_whole = modules.size() == 1;
    if (!part.empty()) std::erase_if(modules, [&](const AdapterModule& module) { return module.part != part; });
    if (modules.empty())
      throw Error("export", {layer + (is_whole ? " is one matrix in transformers: its adapter must be that of \"" +
                                                     layer.substr(layer.rfind('.') + 1) + "\", not of \"" + part + "\""
                                               : std::string(" has no place in a model of transformers"))});
    const int64_t all = b.master.shape()[0];
    int64_t first = 0;
    for (const AdapterModule& module : modules) {
      const int64_t rows = modules.size() == 1 ? all : rows_of_part(module.part, modules.size(), all);
      add(module, "lora_A", a.master);
      add(module, "lora_B",
          rows_of(b.master, first, rows, module.rule->pick ? module.rule->pick(model_.config()) : PickedRows()));
      first += rows;
    }
  }
  /// Of one adapter for queries, keys and values, or for two matrices of one size.
  int64_t rows_of_part(const std::string& part, size_t count, int64_t all) const {
    if (count == 2) return all / 2;
    const Config& config = model_.config();
    const int64_t queries = config.heads * (config.head_dim ? config.head_dim : config.embed_dim / config.heads);
    return part == "query" ? queries : (all - queries) / 2;
  }
  void add(const AdapterModule& module, const char* matrix, const Array& array) {
    kept_.push_back(array);
    const std::string name = kPeftPrefix + module.name + "." + matrix + ".weight";
    tensors_.push_back({name, array.dtype(), array.shape(), array.data(), {}});
    adapted_.insert(module.name);
    transposed_ = transposed_ || module.transposed;
  }

  const HubModel& hub_;
  const Model& model_;
  HubTensors head_;
  std::vector<Array> kept_;
  std::vector<io::NamedTensor> tensors_;
  std::set<std::string> adapted_, saved_;
  bool transposed_ = false;
};

/// A regular expression of the modules, in which the number of a layer is any number.
std::string pattern_of(const std::set<std::string>& modules) {
  std::set<std::string> patterns;
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  for (const std::string& module : modules) {
    std::string pattern;
    for (size_t n = 0; n < module.size(); ++n) {
      if (n > 0 && module[n - 1] == '.' && is_digit(module[n])) {
        while (n + 1 < module.size() && is_digit(module[n + 1])) ++n;
        pattern += "\\d+";
      } else {
        pattern += module[n] == '.' ? std::string("\\.") : std::string(1, module[n]);
      }
    }
    patterns.insert(pattern);
  }
  std::string all;
  for (const std::string& pattern : patterns) all += (all.empty() ? "" : "|") + pattern;
  return all;
}

}  // namespace

Exported export_adapter(const std::string& folder, const std::string& to, const std::string& base,
                        const ExportOptions& options) {
  require_empty_folder(to);
  const ExportSource source = open_for_export(folder, options);
  const Model& model = *source.loaded.model;
  const Config& config = model.config();
  if (!config.lora_rank) throw Error("export", {folder + " has no adapters: attn train --lora-rank makes them"});
  if (!source.original) throw Error("export", {folder + " does not begin with a folder of the hub"});
  const HubModel hub = read_hub_config(config_for_hub(model, source.loaded, &*source.original), "config.json", "");
  const PeftTensors tensors(hub, model);
  const Json about = {{"peft_type", "LORA"},
                      {"task_type", config.classes ? "SEQ_CLS" : "CAUSAL_LM"},
                      {"base_model_name_or_path", base},
                      {"r", config.lora_rank},
                      {"lora_alpha", config.lora_alpha},
                      {"lora_dropout", config.lora_dropout},
                      {"use_rslora", config.lora_rank_stabilized},
                      {"target_modules", pattern_of(tensors.adapted())},
                      {"modules_to_save", tensors.saved().empty() ? Json() : Json(tensors.saved())},
                      {"fan_in_fan_out", tensors.transposed()},
                      {"bias", "none"},
                      {"inference_mode", true}};
  Exported exported{.architecture = "LoRA adapter of PEFT", .tensors = std::ssize(tensors.tensors())};
  for (const io::NamedTensor& tensor : tensors.tensors()) exported.bytes += bytes_in(tensor);
  io::make_directory(to);
  io::write_safetensors(to + "/adapter_model.safetensors", tensors.tensors(), {{"format", "pt"}});
  io::write_file(to + "/adapter_config.json", about.dump(2) + "\n");
  exported.files = {"adapter_model.safetensors", "adapter_config.json"};
  return exported;
}

}  // namespace attn::models
