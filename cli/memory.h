// Before long work: will it fit in memory?
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "attn/models.h"

namespace cli {

/// A training that is asked for.
struct TrainingShape {
  attn::models::Config config;
  attn::nn::Precision precision = attn::nn::Precision::float32;
  int64_t batch = 1;   ///< sequences
  int64_t length = 1;  ///< of each, at most
  bool recompute = false;
  std::function<bool(std::string_view)> trains = {};  ///< null: all parameters
};

/// "1.2 GB: weights 0.1, ..."
std::string describe(const attn::models::TrainingMemory& memory);

/// Throws UsageError if the training needs more memory than there is, with both numbers and with what would fit; a
/// warning on standard error instead, if `force`, or if it comes close.
void require_memory(const TrainingShape& shape, bool force);

}  // namespace cli
