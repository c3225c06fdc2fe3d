// shape: what a configuration says of its attention, where a field of 0 means a default.
#pragma once

#include "attn/models.h"
#include "core/checker.h"

namespace attn::models {

/// An attention layer: heads H and Hk, widths D and Dv.
struct LayerShape {
  int64_t heads, kv_heads, key_width, value_width;
};

inline bool is_selfhead(const Config& config) { return config.model == "selfhead"; }

/// False where a model reads embeddings and no tokens.
inline bool has_tokens(const Config& config) { return !config.takes_embeddings || config.encoder_layers > 0; }

/// True where an encoder has something to read.
inline bool has_source(const Config& config, const Batch& batch) {
  return !batch.source.empty() || (config.encoder_layers > 0 && batch.inputs_embeds);
}

/// The names in lora_targets.
inline std::vector<std::string> lora_targets(const Config& config) {
  std::vector<std::string> names(1);
  for (const char c : config.lora_targets)
    if (c == ',') names.emplace_back();
    else names.back() += c;
  return names;
}

inline int64_t token_dim(const Config& config) { return config.token_dim ? config.token_dim : config.embed_dim; }

/// The index of a layer's attention in attention_layers(). A model with an encoder has attention in all layers.
inline int64_t attention_place(const Config& config, AttentionKind kind, int64_t layer) {
  if (kind != AttentionKind::self) return (kind == AttentionKind::cross ? 1 : 2) * config.layers + layer;
  int64_t before = 0;
  for (int64_t n = 0; n < layer; ++n) before += has_attention(config, n);
  return before;
}
/// As many as attention_layers() lists.
inline int64_t attention_count(const Config& config) {
  const int64_t self = attention_place(config, AttentionKind::self, config.layers);
  return config.encoder_layers ? self + config.layers + config.encoder_layers : self;
}

/// True where the mixer of a layer is attention to selected keys, of which it keeps all.
inline bool selects_keys(const Config& config, int64_t layer) {
  return mixer_of(config, layer) == 'm' || mixer_of(config, layer) == 'n';
}
/// The heads of such a layer.
inline LayerShape selecting_shape(const Config& config) {
  const int64_t D = config.head_dim ? config.head_dim : config.embed_dim / config.heads;
  return {config.heads, config.kv_heads ? config.kv_heads : config.heads, D, D};
}

/// Of the attention layer at this place; of the whole model where nothing has been removed.
inline LayerShape attention_shape(const Config& config, int64_t place = 0) {
  const int64_t C = config.embed_dim;
  if (is_selfhead(config)) return {1, 1, config.key_dim ? config.key_dim : C, config.value_dim ? config.value_dim : C};
  const int64_t D = config.head_dim ? config.head_dim : C / config.heads;
  const int64_t whole = config.kv_heads ? config.kv_heads : config.heads, group = config.heads / whole;
  const int64_t kept =
      config.kept_heads.empty() ? whole : static_cast<int64_t>(config.kept_heads[static_cast<size_t>(place)].size());
  return {kept * group, kept, D, D};
}

/// What a streaming cache of such a model may keep.
void check_streaming(Checker& checker, const Config& config, const Streaming& streaming);

/// The options of layers with linear attention, with the values that 0 means.
inline nn::LinearMixerOptions linear_options(const Config& config) {
  nn::LinearMixerOptions o = config.linear;
  if (o.heads == 0) o.heads = config.heads;
  o.norm_epsilon = config.norm_epsilon;
  if (o.value_heads == 0) o.value_heads = o.heads;
  if (o.head_dim == 0 && config.embed_dim % o.heads == 0) o.head_dim = config.embed_dim / o.heads;
  if (o.value_dim == 0) o.value_dim = o.head_dim;
  return o;
}

}  // namespace attn::models
