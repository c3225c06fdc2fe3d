// hub_tensors: parameters as the tensors of a folder of the hub, the inverse of HubWeights.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "models/hub.h"

namespace attn::models {

/// The name of a tensor after a rule's name of it: as the original, whose tensors `known` are, has it, or with the
/// family's prefix.
std::string full_name(const Family& family, const std::map<std::string, std::vector<int64_t>>& known,
                      const std::string& theirs);

class HubTensors {
 public:
  /// `known` are the shapes of the tensors that the original folder has, by name; empty for a model without one.
  HubTensors(const HubModel& model, std::map<std::string, std::vector<int64_t>> known);
  /// Adds the tensors of a parameter, which keep its memory. Throws Error if the family has no place for it.
  void put(const nn::Parameter& parameter);
  /// True for the weight of a linear layer, but for the head, with the rows of one parameter: torch.nn.Linear has it.
  bool is_linear(const std::string& tensor) const { return linear_.contains(tensor); }
  /// All tensors. Throws Error for rows of a tensor that no parameter has given.
  std::vector<io::NamedTensor> tensors() const;

 private:
  struct Target {
    std::string name;
    std::vector<int64_t> shape;
    int64_t rows = 0;
  };
  bool is_known(const NameRule& rule, const std::string& ours) const;
  void put_by(const NameRule& rule, const nn::Parameter& parameter);
  std::vector<Target> targets_of(const NameRule& rule, const nn::Parameter& parameter) const;
  std::vector<int64_t> rows_of_parts(const std::string& ours, int64_t rows, size_t parts) const;
  const HubModel& model_;
  std::map<std::string, std::vector<int64_t>> known_;
  struct Tensor {
    Array array;  // owns the memory, or shares it with the parameter
    io::NamedTensor named;
    std::set<int64_t> missing;  // rows that wait for a parameter
  };
  std::map<std::string, Tensor> tensors_;
  std::set<std::string> linear_;
};

}  // namespace attn::models
