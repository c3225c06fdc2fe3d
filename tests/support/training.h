// training: what the tests of training share. A text that can be learned in part, a tiny model, a short run.
#pragma once

#include "attn/train.h"
#include "layers.h"

namespace attn::test {

using namespace train;

inline std::vector<int64_t> some_tokens(int64_t count, int64_t vocabulary) {
  Random random(4);
  std::vector<int64_t> tokens(static_cast<size_t>(count));
  for (int64_t n = 0; n < count; ++n)
    tokens[n] = n % 3 ? (tokens[n - 1] * 5 + 1) % vocabulary : random.below(vocabulary);
  return tokens;
}

inline models::Config tiny(double dropout = 0.1) {
  models::Config config = models::family("gpt");
  config.vocab_size = 11;
  config.context = 12;
  config.embed_dim = 16;
  config.layers = 2;
  config.heads = 2;
  config.dropout = dropout;
  return config;
}

inline TrainerOptions short_run() {
  TrainerOptions options;
  options.steps = 20;
  options.accumulation = 2;
  options.warmup = 3;
  options.eval_every = 7;
  options.save_every = 5;
  return options;
}

inline TextDataset text() { return TextDataset(some_tokens(600, 11), 12, 3, 5, 4); }

/// Batch 0 for ever: updates differ by nothing but what the trainer makes of it.
struct SameBatch : TextDataset {
  using TextDataset::TextDataset;
  models::Batch training(uint64_t) const override { return TextDataset::training(0); }
};
inline SameBatch same_batch() { return SameBatch(some_tokens(600, 11), 12, 3, 5, 4); }

/// Their bytes: NaN equals itself.
inline std::string parameters_of(const models::Model& model) { return io::format_safetensors(model.tensors(), {}); }

}  // namespace attn::test
