// A folder of the hub with a small random BERT.
#pragma once

#include "folder.h"
#include "layers.h"

namespace attn::test {

inline constexpr const char* kBert = R"({"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 13,
  "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
  "max_position_embeddings": 24, "type_vocab_size": 2})";

struct Tensor {
  std::string name;
  autograd::Array array;
};

inline std::vector<Tensor> bert_tensors() {
  std::vector<Tensor> all;
  uint64_t seed = 0;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    all.push_back({name, random_array(DType::float32, std::move(shape), ++seed, 0.3)});
  };
  const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    add(name + ".weight", {out, in});
    add(name + ".bias", {out});
  };
  const auto norm = [&](const std::string& name) {  // as the first checkpoints name it
    add(name + ".gamma", {8});
    add(name + ".beta", {8});
  };
  add("embeddings.word_embeddings.weight", {13, 8});
  add("embeddings.position_embeddings.weight", {24, 8});
  add("embeddings.token_type_embeddings.weight", {2, 8});
  norm("embeddings.LayerNorm");
  for (const std::string layer : {"encoder.layer.0.", "encoder.layer.1."}) {
    for (const char* part : {"query", "key", "value"}) linear(layer + "attention.self." + part, 8, 8);
    linear(layer + "attention.output.dense", 8, 8);
    norm(layer + "attention.output.LayerNorm");
    linear(layer + "intermediate.dense", 12, 8);
    linear(layer + "output.dense", 8, 12);
    norm(layer + "output.LayerNorm");
  }
  return all;
}

inline std::string file_of(const std::vector<Tensor>& tensors) {
  std::vector<io::NamedTensor> named;
  for (const Tensor& t : tensors) named.push_back({t.name, t.array.dtype(), t.array.shape(), t.array.data()});
  return io::format_safetensors(named, {});
}

}  // namespace attn::test
