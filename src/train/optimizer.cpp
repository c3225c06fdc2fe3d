// The optimizer of a process that trains alone: the backward of each batch adds to the gradients themselves.
#include "train/optimizer.h"

namespace attn::train {
namespace {

class OwnOptimizer : public Optimizer {
 public:
  OwnOptimizer(nn::Parameters& parameters, LearningRateFactor factor) : parameters_(parameters), adamw_(parameters) {
    adamw_.learning_rate_factor = std::move(factor);
  }

  void begin() override { parameters_.clear_gradients(); }
  void add_batch(const std::exception_ptr& failure) override {
    if (failure) std::rethrow_exception(failure);
  }

  std::vector<std::optional<double>> squares() override {
    std::vector<std::optional<double>> all;
    for (const nn::Parameter& parameter : parameters_.all())
      all.push_back(parameter.value.gradient_is_empty()
                        ? std::nullopt
                        : std::optional(ops::sum_of_squares(parameter.value.gradient().flat())));
    return all;
  }

  void step(ops::AdamWOptions options) override {
    options.step = adamw_.options.step;
    adamw_.options = options;
    adamw_.step();
  }
  int64_t updates() const override { return adamw_.options.step - 1; }

  std::vector<io::NamedTensor> moments() override { return adamw_.tensors(); }
  void load(const io::Safetensors& file, int64_t updates) override { adamw_.load(file, updates + 1); }

 private:
  nn::Parameters& parameters_;
  nn::AdamW adamw_;
};

}  // namespace

std::unique_ptr<Optimizer> own_optimizer(nn::Parameters& parameters, LearningRateFactor factor) {
  return std::make_unique<OwnOptimizer>(parameters, std::move(factor));
}

}  // namespace attn::train
