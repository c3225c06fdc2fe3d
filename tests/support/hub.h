// hub: small folders of the Hugging Face hub, with random tensors.
#pragma once

#include <string>
#include <vector>

#include "attn/models.h"
#include "folder.h"
#include "layers.h"

namespace attn::test {

constexpr const char* kTwoLayers = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 13,
  "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "max_position_embeddings": 24, "rms_norm_eps": 1e-5, "eos_token_id": [2, 99, -1]})";
constexpr const char* kBert = R"({"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 13,
  "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
  "max_position_embeddings": 24, "type_vocab_size": 2})";

struct Tensor {
  std::string name;
  attn::Array array;
};

/// Random tensors of a LLaMA of kTwoLayers.
inline std::vector<Tensor> llama_tensors(DType type) {
  std::vector<Tensor> all;
  uint64_t seed = 0;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    all.push_back({name, random_array(type, std::move(shape), ++seed, 0.3)});
  };
  add("model.embed_tokens.weight", {13, 8});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    add(layer + "input_layernorm.weight", {8});
    add(layer + "post_attention_layernorm.weight", {8});
    add(layer + "self_attn.q_proj.weight", {8, 8});
    add(layer + "self_attn.k_proj.weight", {4, 8});
    add(layer + "self_attn.v_proj.weight", {4, 8});
    add(layer + "self_attn.o_proj.weight", {8, 8});
    add(layer + "mlp.gate_proj.weight", {12, 8});
    add(layer + "mlp.up_proj.weight", {12, 8});
    add(layer + "mlp.down_proj.weight", {8, 12});
  }
  add("model.norm.weight", {8});
  add("lm_head.weight", {13, 8});
  return all;
}

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

inline const Folder& put_llama(const Folder& folder, DType type = DType::float32) {
  return folder.put("config.json", kTwoLayers).put("model.safetensors", file_of(llama_tensors(type)));
}

}  // namespace attn::test
