// AdamW over the parameters of a model.
#include "attn/nn_optimiser.h"

#include <cmath>

#include "core/checker.h"

namespace attn::nn {

AdamW::AdamW(const Parameters& parameters, const ops::AdamWOptions& of) : options(of), parameters_(&parameters) {
  Checker checker("AdamW");
  checker.require(parameters.options().purpose == Purpose::training,
                  "the parameters are made for inference: they have no gradients");
  checker.done();
  for (const Parameter& parameter : parameters.all()) {
    first_moment_.emplace_back(parameter.master.dtype(), parameter.master.shape());
    second_moment_.emplace_back(parameter.master.dtype(), parameter.master.shape());
  }
}

void AdamW::step() {
  ops::AdamWOptions update = options;
  for (size_t n = 0; n < first_moment_.size(); ++n) {
    const Parameter& parameter = parameters_->all()[n];
    if (parameter.value.gradient_is_empty()) continue;
    update.weight_decay = parameter.decay ? options.weight_decay : 0;
    ops::adamw(parameter.master.flat(), parameter.value.gradient().flat(), first_moment_[n].flat(),
               second_moment_[n].flat(), update);
  }
  ++options.step;
  parameters_->refresh();
}

double AdamW::gradient_norm() const {
  double squares = 0;
  for (const Parameter& parameter : parameters_->all())
    if (!parameter.value.gradient_is_empty()) squares += ops::sum_of_squares(parameter.value.gradient().flat());
  return std::sqrt(squares);
}

}  // namespace attn::nn
