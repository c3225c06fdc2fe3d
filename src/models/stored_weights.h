// stored_weights: weights of 4 or 8 bits as folders of the hub store them, by compressed-tensors, GPTQ and AWQ.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attn/ops_quantized.h"
#include "io/json.h"

namespace attn::models {

/// quantization_config of a folder's config.json.
struct StoredFormat {
  enum class Method { compressed_tensors, gptq, awq };
  Method method = Method::compressed_tensors;
  int bits = 4;
  int64_t group = 0;          ///< terms with one scale; 0 = a whole row
  bool zeros_less_1 = false;  ///< the first format of GPTQ stores zero points minus 1
};
/// Throws Error of "open" with one reason for what is not supported; `source` is the file.
StoredFormat read_stored_format(const io::Json& config, const std::string& source);

/// A tensor of a safetensors file.
struct StoredTensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::string_view bytes;
};

/// W [N, K] of a linear layer, in the file as codes, scales and perhaps zero points.
class StoredMatrix {
 public:
  using Tensors = std::function<std::optional<StoredTensor>(const std::string& name)>;
  /// The weight `name`, which ends with ".weight"; nothing where the file does not have its codes. Throws Error that
  /// names the tensors that are missing or do not fit each other.
  static std::optional<StoredMatrix> find(const StoredFormat& format, const std::string& name, const Tensors& tensors);

  int64_t rows() const { return rows_; }
  int64_t terms() const { return terms_; }
  ops::QuantizedMatrix read() const;

 private:
  uint8_t code(int64_t row, int64_t term) const;
  int zero(int64_t row, int64_t group) const;
  StoredFormat format_;
  int64_t rows_ = 0, terms_ = 0, groups_ = 0;
  StoredTensor codes_ = {}, scales_ = {};
  std::optional<StoredTensor> zeros_;
};

}  // namespace attn::models
