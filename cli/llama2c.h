// llama2.c's file of a model, read as the tensors of a folder of the Hugging Face hub.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attn/autograd.h"
#include "attn/io.h"

namespace cli {

/// The file: seven int32, then float32, layer after layer of each kind. A negative vocabulary says that the head is not
/// the embedding's table.
class Llama2c {
 public:
  /// Throws Error for a header that no model has; `path` is the name that errors use.
  Llama2c(std::string path, std::string bytes);
  /// Throws Error unless the bytes are as many as the header says.
  void read();

  std::string tensors() const;  ///< as a safetensors file
  std::string config() const;   ///< config.json
  int64_t vocabulary() const { return vocabulary_; }

 private:
  struct Header {
    int32_t dim, hidden, layers, heads, kv_heads, vocabulary, context;
  };
  [[noreturn]] void refuse(const std::string& reason) const;
  size_t have(size_t size, const std::string& name) const;  ///< the size; throws Error where so many bytes are not left
  void take(const std::string& name, std::vector<int64_t> shape, int64_t rotated_heads = 0);
  void take_layers(const std::string& name, const std::vector<int64_t>& shape, int64_t rotated_heads = 0);

  std::string path_, bytes_;
  Header header_ = {};
  size_t at_ = 0;
  bool tied_ = true;
  int64_t vocabulary_ = 0;
  std::vector<attn::Array> arrays_;  // keeps the memory
  std::vector<attn::io::NamedTensor> tensors_;
};

}  // namespace cli
