// nn: an optimiser over the parameters of a model, for a training loop of one's own; docs/tape.md has one. attn/train.h
// has the whole loop for models of this library: schedule, clipping, loss scaling, checkpoints.
#pragma once

#include <vector>

#include "attn/nn_parameters.h"

#pragma GCC visibility push(default)
namespace attn::nn {

/// AdamW over all parameters that are there when it is made, which must outlive it.
class Optimiser {
 public:
  /// Throws Error for parameters of inference.
  explicit Optimiser(const Parameters& parameters, const ops::AdamW& options = {});

  /// Of the next step; may be changed between steps. decay applies to products and tables alone; step() counts `step`.
  ops::AdamW options;

  /// Updates the masters of all parameters that have a gradient, and what layers compute with. Gradients stay: call
  /// Parameters::clear_gradients() before the next ones. Throws Error as ops::adamw() does.
  void step();
  /// The square root of the sum of squares of all gradients, before options.gradient_factor; not finite where they are
  /// not.
  double gradient_norm() const;

  /// Running means of the gradient and of its square, of parameter n of Parameters::all(): what a checkpoint keeps,
  /// beside options.step.
  const Array& first_moment(size_t n) const { return first_moment_.at(n); }
  const Array& second_moment(size_t n) const { return second_moment_.at(n); }

 private:
  const Parameters* parameters_;
  std::vector<Array> first_moment_, second_moment_;
};

}  // namespace attn::nn
#pragma GCC visibility pop
