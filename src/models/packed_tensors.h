// packed_tensors: weights in the format pack-quantized of compressed-tensors, as stored_weights reads them.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "attn/models.h"
#include "io/json.h"

namespace attn::models {

class PackedTensors {
 public:
  /// The tensors, with codes, scales and shape in place of each weight of a linear layer whose rows are whole groups.
  /// The result borrows from `tensors` and from this object. Throws Error where no weight can be quantized.
  std::vector<io::NamedTensor> quantize(const std::vector<io::NamedTensor>& tensors,
                                        const std::function<bool(const std::string& name)>& is_linear,
                                        Quantization quantization, bool causal);
  /// quantization_config of config.json.
  io::Json config() const;

 private:
  void put(const io::NamedTensor& tensor, std::vector<io::NamedTensor>& all);
  int bits_ = 8;
  int64_t group_ = 0;
  std::deque<Array> arrays_;
  std::vector<std::string> others_;  // modules that stay as they are
};

}  // namespace attn::models
