// Small models of each kind, and batches for them.
#pragma once

#include <string>

#include "attn/models.h"

namespace attn::test {

inline models::Config tiny_config(const std::string& name) {
  models::Config config = models::family(name);
  config.vocab_size = 13;
  config.context = 16;
  config.embed_dim = 16;
  if (name != "selfhead") {
    config.layers = 2;
    config.heads = 4;
    config.kv_heads = name == "llama" ? 2 : 0;
  }
  return config;
}

inline models::Batch random_batch(const models::Config& config, int64_t sequences, int64_t length, uint64_t seed) {
  models::Batch batch;
  batch.sequences = sequences;
  batch.length = length;
  Random random(seed);
  for (int64_t n = 0; n < sequences * length; ++n) batch.tokens.push_back(random.below(config.vocab_size));
  if (config.encoder_layers) {
    batch.source_length = length + 2;
    for (int64_t n = 0; n < sequences * batch.source_length; ++n)
      batch.source.push_back(random.below(config.vocab_size));
    batch.source_lengths.assign(static_cast<size_t>(sequences), batch.source_length);
    batch.source_lengths.back() = 3;
  }
  const int64_t targets = config.classes ? sequences : sequences * length;
  for (int64_t n = 0; n < targets; ++n)
    batch.targets.push_back(random.below(config.classes ? config.classes : config.vocab_size));
  return batch;
}

}  // namespace attn::test
