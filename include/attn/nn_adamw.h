// nn: AdamW over named parameters, for training loops of your own. train::Trainer (attn/train.h) adds a schedule,
// clipping, loss scaling and checkpoints.
//
// ```cpp
// #include "attn/autograd_operations.h"
// #include "attn/nn_adamw.h"
// #include "attn/nn_layers.h"
// using namespace attn;
// int main() {
//   nn::Parameters parameters({.seed = 1});
//   const nn::Linear layer(nn::Scope(parameters) / "linear", 8, 1);
//   nn::AdamW optimizer(parameters, {.learning_rate = 0.01});
//   for (int step = 0; step < 3; ++step) {
//     parameters.clear_gradients();
//     autograd::Tape tape({.record = true});
//     tape.backward(autograd::sum(tape, layer(tape, nn::Value(Array(DType::float32, {4, 8})))));
//     optimizer.step();
//   }
// }
// ```
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/nn_parameters.h"

#pragma GCC visibility push(default)
namespace attn::nn {

/// AdamW over the parameters that exist at its construction and want a gradient. It borrows them: they must outlive it.
class AdamW {
 public:
  /// Throws Error for parameters made with Purpose::inference.
  explicit AdamW(Parameters& parameters, const ops::AdamWOptions& options = {});

  /// The options of the next step; you may change them between steps. weight_decay applies to matrices and embeddings
  /// only. step() increments `step`.
  ops::AdamWOptions options;
  /// The learning rate of a parameter, by name, is options.learning_rate times this factor; null = 1. Layer-wise
  /// learning rates of fine-tuning are such factors.
  std::function<double(std::string_view name)> learning_rate_factor = {};

  /// Updates all parameters that have a gradient: the masters and the copies that layers compute with. It keeps the
  /// gradients: call Parameters::clear_gradients() before the next backward. Throws Error as ops::adamw() does.
  void step();
  /// The norm of all gradients together, before options.gradient_factor. It is not finite if a gradient is not.
  double gradient_norm() const;

  /// The state to save beside options.step, for io::format_safetensors(): "adamw.m.NAME" and "adamw.v.NAME", the
  /// running means of the gradient and of its square, for each trained parameter NAME. The data is borrowed from this
  /// object.
  std::vector<io::NamedTensor> tensors() const;
  /// Continues from a file with these tensors and from the options.step that was saved; Parameters::load() reads the
  /// parameters. Throws Error, before anything changes, with all tensors that are missing or have another type or
  /// shape.
  void load(const io::Safetensors& file, int64_t step);

 private:
  std::vector<std::pair<std::string, Array>> moments() const;
  Parameters* parameters_;
  std::vector<Array> first_moment_, second_moment_;
};

}  // namespace attn::nn
#pragma GCC visibility pop
