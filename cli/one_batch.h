// A training on one batch again and again, which is measured and not meant to learn.
#pragma once

#include <utility>

#include "attn/train.h"

namespace cli {

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
