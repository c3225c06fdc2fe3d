// shape: what a configuration says of its attention, where a field of 0 means a default.
#pragma once

#include "attn/models.h"

namespace attn::models {

/// The attention of each layer: heads H and Hk, widths D and Dv.
struct AttentionShape {
  int64_t layers, heads, kv_heads, key_width, value_width;
};

inline bool is_selfhead(const Config& config) { return config.model == "selfhead"; }

/// False where all that a model reads is rows.
inline bool has_tokens(const Config& config) { return !config.reads_rows || config.encoder_layers > 0; }

/// True where an encoder has something to read.
inline bool has_source(const Config& config, const Batch& batch) {
  return !batch.source.empty() || (config.encoder_layers > 0 && batch.rows);
}

inline int64_t token_width(const Config& config) { return config.token_width ? config.token_width : config.embed_dim; }

inline AttentionShape attention_shape(const Config& config) {
  const int64_t C = config.embed_dim;
  if (is_selfhead(config))
    return {1, 1, 1, config.key_dim ? config.key_dim : C, config.value_dim ? config.value_dim : C};
  const int64_t D = config.head_dim ? config.head_dim : C / config.heads;
  return {config.layers, config.heads, config.kv_heads ? config.kv_heads : config.heads, D, D};
}

}  // namespace attn::models
