// nn: AdamW over named parameters, for training loops of your own. attn/train.h has a complete loop for this library's
// models: schedule, clipping, loss scaling, checkpoints.
//
// ```cpp
// #include "attn/autograd_operations.h"
// #include "attn/nn_layers.h"
// #include "attn/nn_optimiser.h"
// using namespace attn;
// int main() {
//   nn::Parameters parameters({.seed = 1});
//   const nn::Linear layer(nn::Scope(parameters) / "linear", 8, 1);
//   nn::AdamW optimizer(parameters, {.learning_rate = 0.01});
//   for (int step = 0; step < 3; ++step) {
//     parameters.clear_gradients();
//     autograd::Tape tape({.record = true});
//     tape.backward(autograd::sum(tape, layer(tape, nn::Value(nn::Array(DType::float32, {4, 8})))));
//     optimizer.step();
//   }
// }
// ```
#pragma once

#include <vector>

#include "attn/nn_parameters.h"

#pragma GCC visibility push(default)
namespace attn::nn {

/// AdamW over all parameters that exist at its construction. It borrows them: they must outlive it.
class AdamW {
 public:
  /// Throws Error for parameters made with Purpose::inference.
  explicit AdamW(const Parameters& parameters, const ops::AdamWOptions& options = {});

  /// The options of the next step; you may change them between steps. weight_decay applies to matrices and embeddings
  /// only. step() increments `step`.
  ops::AdamWOptions options;

  /// Updates all parameters that have a gradient: the masters and the copies that layers compute with. It keeps the
  /// gradients: call Parameters::clear_gradients() before the next backward. Throws Error as ops::adamw() does.
  void step();
  /// The norm of all gradients together, before options.gradient_factor. It is not finite if a gradient is not.
  double gradient_norm() const;

  /// The moments of parameter n of Parameters::all(): the running means of the gradient and of its square. Together
  /// with options.step they are the state to save.
  const Array& first_moment(size_t n) const { return first_moment_.at(n); }
  const Array& second_moment(size_t n) const { return second_moment_.at(n); }

 private:
  const Parameters* parameters_;
  std::vector<Array> first_moment_, second_moment_;
};

}  // namespace attn::nn
#pragma GCC visibility pop
