#include "llama2c.h"

#include <fmt/core.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace cli {
namespace {

using attn::Array;

/// Rows of a head, whose pairs are neighbours, in the order of halves: what the hub's LLaMA rotates.
void pairs_to_halves(const float* from, float* to, int64_t heads, int64_t width, int64_t columns) {
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t r = 0; r < width; ++r)
      std::memcpy(to + (h * width + r % 2 * (width / 2) + r / 2) * columns, from + (h * width + r) * columns,
                  static_cast<size_t>(columns) * sizeof(float));
}

}  // namespace

Llama2c::Llama2c(std::string path, std::string bytes) : path_(std::move(path)), bytes_(std::move(bytes)) {
  if (bytes_.size() < sizeof(Header))
    refuse("has " + std::to_string(bytes_.size()) + " bytes, must begin with a header of 28 bytes");
  std::memcpy(&header_, bytes_.data(), sizeof header_);
  at_ = sizeof header_;
  tied_ = header_.vocabulary > 0;
  if (header_.vocabulary == INT32_MIN) refuse("has a vocabulary of -2^31 by its header, must be from -2^24 to 2^24");
  vocabulary_ = std::abs(header_.vocabulary);
  const Header& h = header_;
  const bool sane = h.dim > 0 && h.hidden > 0 && h.layers > 0 && h.layers <= 4096 && h.heads > 0 && h.kv_heads > 0 &&
                    vocabulary_ > 0 && h.context > 0 && h.dim <= 1 << 16 && h.hidden <= 1 << 20 &&
                    vocabulary_ <= 1 << 24 && h.context <= 1 << 24 && h.dim % h.heads == 0 &&
                    h.dim / h.heads % 2 == 0 && h.heads % h.kv_heads == 0;
  if (!sane)
    refuse(
        fmt::format("is not a model of llama2.c: its header says width {}, hidden {}, layers {}, heads {} and {}, "
                    "vocabulary {}, context {}",
                    h.dim, h.hidden, h.layers, h.heads, h.kv_heads, h.vocabulary, h.context));
}

void Llama2c::refuse(const std::string& reason) const { throw attn::Error("convert", {path_ + " " + reason}); }

void Llama2c::read() {
  const Header& h = header_;
  const int64_t C = h.dim, F = h.hidden, D = C / h.heads, kv = D * h.kv_heads;
  take("model.embed_tokens.weight", {vocabulary_, C});
  take_layers("input_layernorm.weight", {C});
  take_layers("self_attn.q_proj.weight", {C, C}, h.heads);
  take_layers("self_attn.k_proj.weight", {kv, C}, h.kv_heads);
  take_layers("self_attn.v_proj.weight", {kv, C});
  take_layers("self_attn.o_proj.weight", {C, C});
  take_layers("post_attention_layernorm.weight", {C});
  take_layers("mlp.gate_proj.weight", {F, C});
  take_layers("mlp.down_proj.weight", {C, F});
  take_layers("mlp.up_proj.weight", {F, C});
  take("model.norm.weight", {C});
  at_ += have(static_cast<size_t>(h.context) * static_cast<size_t>(D) * sizeof(float), "rope's tables");
  if (!tied_) take("lm_head.weight", {vocabulary_, C});
  if (at_ != bytes_.size()) refuse(fmt::format("has {} bytes, must have {} by its header", bytes_.size(), at_));
}

size_t Llama2c::have(size_t size, const std::string& name) const {
  if (bytes_.size() - at_ < size)
    refuse(fmt::format("ends at byte {}, inside {}, which has {} bytes from byte {}", bytes_.size(), name, size, at_));
  return size;
}

void Llama2c::take(const std::string& name, std::vector<int64_t> shape, int64_t rotated_heads) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  const size_t size = have(static_cast<size_t>(count) * sizeof(float), name);
  const Array array(attn::DType::float32, shape, false);
  float* const to = static_cast<float*>(array.data());
  std::memcpy(to, bytes_.data() + at_, size);
  if (rotated_heads > 0) {
    const std::vector<float> pairs(to, to + count);
    pairs_to_halves(pairs.data(), to, rotated_heads, shape[0] / rotated_heads, shape[1]);
  }
  at_ += size;
  arrays_.push_back(array);
  tensors_.push_back({name, attn::DType::float32, std::move(shape), array.data()});
}

void Llama2c::take_layers(const std::string& name, const std::vector<int64_t>& shape, int64_t rotated_heads) {
  for (int32_t n = 0; n < header_.layers; ++n) take(fmt::format("model.layers.{}.{}", n, name), shape, rotated_heads);
}

std::string Llama2c::tensors() const { return attn::io::format_safetensors(tensors_, {{"format", "pt"}}); }

std::string Llama2c::config() const {
  const Header& h = header_;
  const nlohmann::ordered_json json = {{"model_type", "llama"},
                                       {"architectures", {"LlamaForCausalLM"}},
                                       {"vocab_size", vocabulary_},
                                       {"hidden_size", h.dim},
                                       {"intermediate_size", h.hidden},
                                       {"num_hidden_layers", h.layers},
                                       {"num_attention_heads", h.heads},
                                       {"num_key_value_heads", h.kv_heads},
                                       {"max_position_embeddings", h.context},
                                       {"rms_norm_eps", 1e-5},
                                       {"rope_theta", 10000.0},
                                       {"hidden_act", "silu"},
                                       {"tie_word_embeddings", tied_},
                                       {"bos_token_id", 1},
                                       {"eos_token_id", 2}};
  return json.dump(2) + "\n";
}
}  // namespace cli
