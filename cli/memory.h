// Before long work: will it fit in memory?
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "attn/cluster_grid.h"
#include "attn/models.h"

namespace cli {

/// A training that is asked for.
struct TrainingShape {
  attn::models::Config config;
  attn::nn::Precision precision = attn::nn::Precision::float32;
  int64_t batch = 1;   ///< sequences
  int64_t length = 1;  ///< of each, at most, on all ranks together
  bool recompute = false;
  std::function<bool(std::string_view)> trains = {};  ///< null: all parameters
  attn::cluster::GridShape ranks = {.data = 1};       ///< what they share; no extent is 0
  std::string schedule = "ring";                      ///< by which they exchange keys; auto: of those the largest
  int64_t on_machine = 1;                             ///< of all ranks: they share its memory
};

/// Of a rank. One of several has a part of the moments, and the sums of that part of the gradients.
attn::models::TrainingMemory memory_of(const TrainingShape& shape);
/// "1.2 GB: weights 0.1, ..."
std::string describe(const attn::models::TrainingMemory& memory);

/// Throws UsageError if the training needs more memory than the machine has, with both numbers and with what would fit;
/// a warning on standard error instead, if `force`, or if it comes close.
void require_memory(const TrainingShape& shape, bool force);

}  // namespace cli
