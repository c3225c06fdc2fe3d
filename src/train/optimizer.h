// What the loop of training does with gradients, in this process alone or with other ranks.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attn/cluster_grid.h"
#include "attn/nn_adamw.h"

namespace attn::train {

/// AdamW on the sum of the gradients of some batches.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Before the first batch of an update.
  virtual void begin() = 0;
  /// Before the forward of each batch,
  virtual void begin_batch() {}
  /// after each step of its backward, if gradients may be sent so early,
  virtual void after_step() {}
  /// and after its backward. Throws what that has thrown, `failure`, if it is not null.
  virtual void add_batch(const std::exception_ptr& failure) = 0;
  /// After the last: the sum of squares of each parameter's gradient; absent where it has none.
  virtual std::vector<std::optional<double>> squares() = 0;
  /// Updates the parameters. `options.step` is that of this object.
  virtual void step(ops::AdamWOptions options) = 0;
  /// Updates so far.
  virtual int64_t updates() const = 0;

  /// The moments of this part of the model, on the first of the ranks that have it. They are read one after the other,
  /// until end_moments(); the other ranks give theirs meanwhile.
  virtual std::vector<io::NamedTensor> moments() = 0;
  virtual void end_moments() {}
  virtual void give_moments() {}
  virtual void load(const io::Safetensors& file, int64_t updates) = 0;
};

using LearningRateFactor = std::function<double(std::string_view name)>;

std::unique_ptr<Optimizer> own_optimizer(nn::Parameters& parameters, LearningRateFactor factor);
/// Each rank updates a part of the parameters, from gradients that all send it (shared_optimizer.cpp).
std::unique_ptr<Optimizer> shared_optimizer(const cluster::RankGrid& ranks, nn::Parameters& parameters,
                                            LearningRateFactor factor);

}  // namespace attn::train
