// AdamW over the parameters of a model.
#include "attn/nn_adamw.h"

#include <cmath>

#include "core/checker.h"
#include "nn/state.h"

namespace attn::nn {

AdamW::AdamW(Parameters& parameters, const ops::AdamWOptions& of) : options(of), parameters_(&parameters) {
  Checker checker("AdamW");
  checker.require(parameters.options().purpose == Purpose::training,
                  "the parameters are made for inference: they have no gradients");
  checker.done();
  for (const Parameter& parameter : parameters.all()) {
    const bool trains = parameter.value.wants_gradient();
    first_moment_.push_back(trains ? Array(parameter.master.dtype(), parameter.master.shape()) : Array());
    second_moment_.push_back(trains ? Array(parameter.master.dtype(), parameter.master.shape()) : Array());
  }
}

void AdamW::step() {
  ops::AdamWOptions update = options;
  for (size_t n = 0; n < first_moment_.size(); ++n) {
    const Parameter& parameter = parameters_->all()[n];
    if (!first_moment_[n] || parameter.value.gradient_is_empty()) continue;
    update.weight_decay = parameter.decay ? options.weight_decay : 0;
    if (learning_rate_factor) update.learning_rate = options.learning_rate * learning_rate_factor(parameter.name);
    const Array& value = parameter.value.data();
    ops::adamw(parameter.master.flat(), parameter.value.gradient().flat(), first_moment_[n].flat(),
               second_moment_[n].flat(), update, value.dtype() == parameter.master.dtype() ? View<2>() : value.flat());
  }
  ++options.step;
  parameters_->unpack();
}

double AdamW::gradient_norm() const {
  double squares = 0;
  for (const Parameter& parameter : parameters_->all())
    if (!parameter.value.gradient_is_empty()) squares += ops::sum_of_squares(parameter.value.gradient().flat());
  return std::sqrt(squares);
}

NamedArrays AdamW::moments() const {
  NamedArrays all;
  for (size_t n = 0; n < first_moment_.size(); ++n) {
    if (!first_moment_[n]) continue;
    all.emplace_back("adamw.m." + parameters_->all()[n].name, first_moment_[n]);
    all.emplace_back("adamw.v." + parameters_->all()[n].name, second_moment_[n]);
  }
  return all;
}

std::vector<io::NamedTensor> AdamW::tensors() const { return tensors_of(moments()); }

void AdamW::load(const io::Safetensors& file, int64_t step) {
  if (step < 1) throw Error("load", {"the step is " + std::to_string(step) + ", must be at least 1"});
  load_into(moments(), file);
  options.step = step;
}

}  // namespace attn::nn
