// Random tokens, and a training on one batch again and again, which is measured and not meant to learn.
#pragma once

#include <utility>

#include "attn/train.h"

namespace cli {

/// Tokens with targets: of a classifier of texts one a sequence, else one a token.
inline attn::models::Batch random_batch(const attn::models::Config& config, int64_t sequences, int64_t length,
                                        uint64_t seed) {
  attn::models::Batch batch{.sequences = sequences, .length = length};
  attn::Random random(seed);
  const bool one_class = classifies_texts(config);
  for (int64_t n = 0; n < sequences * length; ++n) {
    batch.tokens.push_back(random.below(config.vocab_size));
    if (!one_class || n < sequences)
      batch.targets.push_back(random.below(config.classes ? config.classes : config.vocab_size));
  }
  return batch;
}

class OneBatch : public attn::train::Dataset {
 public:
  explicit OneBatch(attn::models::Batch batch) : batch_(std::move(batch)) {}
  attn::models::Batch training(uint64_t) const override { return batch_; }
  attn::models::Batch validation(int64_t) const override { return batch_; }
  int64_t validation_batches() const override { return 1; }
  int64_t batches_per_epoch() const override { return 1; }
  std::string describe() const override { return "one batch"; }

 private:
  attn::models::Batch batch_;
};

}  // namespace cli
