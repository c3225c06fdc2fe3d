// adapter: LoRA folders of PEFT, adapter_config.json and adapter_model.safetensors, in our own terms.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/hub.h"

namespace attn::models {

/// Before the names of modules in the tensors of an adapter.
inline const std::string kPeftPrefix = "base_model.model.";
/// The outputs that a module of transformers computes, as those of one of our linear layers.
struct AdapterModule {
  std::string name;         ///< "bert.encoder.layer.0.attention.self.query"
  std::string part;         ///< of the layer, "query"; empty where the module is the whole layer
  bool transposed = false;  ///< its weight is [in, out]
  const NameRule* rule = nullptr;
};
/// The modules that make a linear layer, "blocks.0.attention.qkv", in the order of its outputs; none if the family has
/// no such layer. In a model without a head their names have no prefix.
std::vector<AdapterModule> modules_of(const HubModel& model, const std::string& layer);

/// The adapter of a folder. Throws Error for what is not supported: its kind, and options beyond LoRA's.
class PeftAdapter {
 public:
  explicit PeftAdapter(const std::string& folder);
  /// The head of the model that it adapts, as OpenOptions::task.
  std::string task() const;
  /// Sets the fields of adapters and, of a classifier, the number of classes. Throws Error for an adapter of other
  /// modules than the model has, or of some of its layers only.
  void adapt(HubModel& model);
  /// A parameter that the folder has: a matrix of an adapter, or the head. Throws Error for another shape.
  std::optional<Array> find(const nn::Variable& wanted) const;

 private:
  Array read(const std::string& tensor, const nn::Variable& wanted, const NameRule& rule) const;
  [[noreturn]] void refuse(const std::string& reason) const;
  std::string folder_;
  io::Json config_;
  io::Safetensors file_;
  const HubModel* model_ = nullptr;
  struct Place {
    std::string tensor;
    const NameRule* rule;
  };
  std::map<std::string, Place> places_;  // by our parameter
};

}  // namespace attn::models
