// Reading LoRA folders of PEFT. Which modules are adapted is what the tensors say, not the patterns of target_modules.
#include "models/adapter.h"

#include <algorithm>
#include <cstring>

#include "models/hub_tensors.h"

namespace attn::models {
namespace {

using io::Json;

/// The names of the parts that a fused layer of ours consists of.
std::vector<std::string> parts_of(const std::string& layer, size_t count) {
  if (count == 3 && layer.ends_with(".qkv")) return {"query", "key", "value"};
  if (count == 2 && layer.ends_with(".key_value")) return {"key", "value"};
  if (count == 2 && layer.ends_with(".up")) return {"gate", "up"};
  return std::vector<std::string>(count);
}

/// The fields that must have the value that means nothing, or be absent.
void require_plain(const Json& config, std::vector<std::string>& reasons) {
  const Json none = nullptr, no = false, empty = Json::object(), list = Json::array();
  for (const char* name : {"rank_pattern", "alpha_pattern", "layers_to_transform", "layers_pattern", "use_dora",
                           "layer_replication", "trainable_token_indices", "alora_invocation_tokens", "corda_config",
                           "eva_config", "use_bdlora", "target_parameters"}) {
    const Json value = config.value(name, none);
    if (value != none && value != no && value != empty && value != list)
      reasons.push_back(std::string(name) + " is " + io::as_shown(value) + ", which is not supported");
  }
  if (const Json bias = config.value("bias", none); bias != none && bias != "none")
    reasons.push_back("bias is " + io::as_shown(bias) + ", only \"none\" is supported");
}

}  // namespace

namespace {

std::string module_name(const HubModel& model, const std::string& theirs) {
  const std::string name = theirs.substr(0, theirs.rfind('.'));
  if (name.starts_with('/')) return name.substr(1);
  return (model.config.head ? model.family->prefix : "") + name;
}

}  // namespace

std::vector<AdapterModule> modules_of(const HubModel& model, const std::string& layer) {
  for (const auto* rules : {&model.head->names, &model.family->names})
    for (const NameRule& rule : *rules) {
      std::vector<std::string> names = names_by(rule, layer + ".weight");
      if (names.empty()) continue;
      const std::vector<std::string> parts = parts_of(layer, names.size());
      std::vector<AdapterModule> modules;
      for (size_t n = 0; n < names.size(); ++n)
        modules.push_back({module_name(model, names[n]), names.size() == 1 ? "" : parts[n],
                           rule.layout == Layout::transposed, &rule});
      return modules;
    }
  return {};
}

PeftAdapter::PeftAdapter(const std::string& folder)
    : folder_(folder),
      config_(io::read_python_json("open", folder + "/adapter_config.json", 1 << 20)),
      file_(io::Safetensors::map(folder + "/adapter_model.safetensors")) {
  std::vector<std::string> reasons;
  if (!config_.is_object()) refuse("adapter_config.json must be an object");
  if (const Json kind = config_.value("peft_type", Json()); kind != "LORA")
    reasons.push_back("peft_type is " + io::as_shown(kind) + ", only \"LORA\" is supported");
  const std::optional<int64_t> rank = io::whole_number(config_.value("r", Json()));
  if (!rank || *rank < 1 || *rank > (1 << 12))
    reasons.push_back("r must be a whole number from 1 to 4096, not " + io::as_shown(config_.value("r", Json())));
  if (!config_.value("lora_alpha", Json(8)).is_number()) reasons.push_back("lora_alpha must be a number");
  for (const char* name : {"use_rslora"})
    if (!config_.value(name, Json(false)).is_boolean()) reasons.push_back(std::string(name) + " must be true or false");
  require_plain(config_, reasons);
  if (!reasons.empty()) {
    for (std::string& reason : reasons) reason = folder + "/adapter_config.json: " + reason;
    throw Error("open", std::move(reasons));
  }
}

void PeftAdapter::refuse(const std::string& reason) const { throw Error("open", {folder_ + ": " + reason}); }

std::string PeftAdapter::task() const {
  const Json type = config_.value("task_type", Json());
  if (type == "SEQ_CLS") return "ForSequenceClassification";
  if (type == "TOKEN_CLS") return "ForTokenClassification";
  return type == "FEATURE_EXTRACTION" ? "Model" : "";
}

void PeftAdapter::adapt(HubModel& model) {
  model_ = &model;
  Config& config = model.config;
  std::set<std::string> targets, used;
  std::map<std::string, std::pair<int64_t, int64_t>> layers;  // of a target: with an adapter, in all
  const auto tensor = [&](const std::string& module, const char* end) { return kPeftPrefix + module + end; };
  for (const ParameterShape& parameter : parameter_shapes(config)) {
    if (!parameter.name.ends_with(".weight") || parameter.shape.size() != 2) continue;
    const std::string layer = parameter.name.substr(0, parameter.name.rfind('.'));
    for (const AdapterModule& module : modules_of(model, layer)) {
      const std::string a = tensor(module.name, ".lora_A.weight"), b = tensor(module.name, ".lora_B.weight");
      std::string target = module.part.empty() ? layer.substr(layer.rfind('.') + 1) : module.part;
      if (module.part.empty() && target == "up" && config.gated) target = "gate_up";
      auto& [with, all] = layers[target];
      ++all;
      if (!file_.has(a) || !file_.has(b)) continue;
      ++with;
      targets.insert(target);
      const std::string ours = layer + ".lora." + (module.part.empty() ? "" : module.part + ".");
      places_[ours + "a"] = {a, module.rule};
      places_[ours + "b"] = {b, module.rule};
      used.insert({a, b});
    }
  }
  for (const std::string& target : targets)
    if (layers[target].first != layers[target].second)
      refuse("it adapts " + target + " in " + std::to_string(layers[target].first) + " of " +
             std::to_string(layers[target].second) + " layers; only adapters of all layers are supported");
  for (const NameRule& rule : model.head->names)
    for (const char* end : {"weight", "bias"}) {
      std::string ours = rule.ours;
      if (ours.ends_with('*')) ours = ours.substr(0, ours.size() - 1) + end;
      const std::vector<std::string> names = names_by(rule, ours);
      if (names.size() != 1) continue;
      const std::string saved = kPeftPrefix + module_name(model, names[0]) + "." + end;
      if (!file_.has(saved)) continue;
      places_[ours] = {saved, &rule};
      used.insert(saved);
      if (ours == "head.weight" && config.classes) config.classes = file_.tensors().at(saved).shape.front();
    }
  for (const auto& [name, info] : file_.tensors())
    if (!used.contains(name)) refuse("tensor " + io::in_quotes(name) + " adapts nothing of this model");
  if (targets.empty()) refuse("it has no adapter of this model");
  config.lora_rank = *io::whole_number(config_["r"]);
  config.lora_alpha = config_.value("lora_alpha", 8.0);
  config.lora_rank_stabilized = config_.value("use_rslora", false);
  config.lora_targets = "";
  for (const std::string& target : targets) config.lora_targets += (config.lora_targets.empty() ? "" : ",") + target;
}

std::optional<Array> PeftAdapter::find(const nn::Variable& wanted) const {
  const auto place = places_.find(wanted.name);
  return place == places_.end() ? std::nullopt : std::optional(read(place->second.tensor, wanted, *place->second.rule));
}

Array PeftAdapter::read(const std::string& tensor, const nn::Variable& wanted, const NameRule& rule) const {
  const io::TensorInfo& info = file_.tensors().at(tensor);
  if (info.shape != wanted.shape || !is_floating(info.dtype))
    refuse(tensor + " is " + std::string(name_of(info.dtype)) + " " +
           to_string(info.shape.data(), static_cast<int>(info.shape.size())) + ", must be of a floating type and " +
           to_string(wanted.shape.data(), static_cast<int>(wanted.shape.size())));
  const Array stored(info.dtype, info.shape, false), array(wanted.dtype, wanted.shape, false);
  file_.copy(tensor, info.dtype, info.shape, stored.data());
  if (!rule.pick || !wanted.name.ends_with(".b")) {
    ops::convert(stored.flat(), array.flat());
    return array;
  }
  const PickedRows picked = rule.pick(model_->config);  // outputs in our order
  for (size_t r = 0; r < picked.rows.size(); ++r)
    ops::convert(stored.rows().slice(0, picked.rows[r], picked.rows[r] + 1),
                 array.rows().slice(0, static_cast<int64_t>(r), static_cast<int64_t>(r) + 1));
  return array;
}

}  // namespace attn::models
