// What all mixers share, and the mixer by a gated short convolution.
#include <cstring>

#include "attn/autograd_operations.h"
#include "attn/nn_mixers.h"
#include "nn/check.h"

namespace attn::nn {
namespace {

/// [n, ..] of x [B, ..]: the given places of the first axis.
Array select_first(const Array& x, std::span<const int64_t> places) {
  std::vector<int64_t> shape = x.shape();
  const int64_t bytes = shape[0] ? x.count() / shape[0] * size_of(x.dtype()) : 0;
  shape[0] = std::ssize(places);
  const Array some(x.dtype(), shape);
  for (size_t n = 0; n < places.size(); ++n)
    std::memcpy(static_cast<char*>(some.data()) + static_cast<int64_t>(n) * bytes,
                static_cast<const char*>(x.data()) + places[n] * bytes, static_cast<size_t>(bytes));
  return some;
}

}  // namespace

int64_t MixerState::bytes() const {
  int64_t total = 0;
  for (const Array& part : parts) total += part.count() * size_of(part.dtype());
  return total;
}

void MixerState::select(std::span<const int64_t> sequences) {
  const int64_t B = parts.empty() ? 0 : parts.front().shape()[0];
  Checker checker("MixerState");
  for (const int64_t n : sequences)
    checker.require(n >= 0 && n < B, [&] {
      return "the sequence is " + std::to_string(n) + ", must be in [0, " + std::to_string(B) + ")";
    });
  checker.done();
  for (Array& part : parts) part = select_first(part, sequences);
}

MixerState Mixer::new_state(int64_t) const {
  throw Error(name(), {"this mixer keeps no state, so that it cannot continue a text: its class does not override "
                       "new_state()"});
}

void check_convolution_width(Checker& checker, const char* name, int64_t width, int64_t lowest) {
  constexpr int64_t kWidest = 8;  // the operator's
  checker.require(width >= lowest && width <= kWidest, [&] {
    return std::string(name) + " is " + std::to_string(width) + ", must be in [" + std::to_string(lowest) + ", " +
           std::to_string(kWidest) + "]";
  });
}

void check_state(Checker& checker, const Tape& tape, const MixerInputs& inputs, const std::vector<StatePart>& wanted) {
  checker.require(!tape.recording(), "a state is for inference, and the tape records");
  checker.require(inputs.cu_seqlens.empty(), "a state is for sequences of a batch, not for packed ones");
  const std::vector<Array>& given = inputs.state->parts;
  if (!checker.require(given.size() == wanted.size(), [&] {
        return "the state has " + std::to_string(given.size()) + " parts, must have " + std::to_string(wanted.size()) +
               ": new_state() makes it";
      }))
    return;
  for (size_t n = 0; n < wanted.size(); ++n)
    checker.require(given[n] && given[n].shape() == wanted[n].shape && given[n].dtype() == wanted[n].dtype, [&] {
      return "the state's part " + std::to_string(n) + " is " + given[n].describe() + ", must be " +
             std::string(name_of(wanted[n].dtype)) + " " + shape_of(wanted[n].shape) + ": new_state() makes it";
    });
}

void check_state(Checker& checker, const Tape& tape, const MixerInputs& inputs, const MixerState& expected) {
  std::vector<StatePart> wanted;
  for (const Array& part : expected.parts) wanted.push_back({part.dtype(), part.shape()});
  check_state(checker, tape, inputs, wanted);
}

ShortConvolution::ShortConvolution(const Scope& scope, int64_t width, const ShortConvolutionOptions& given)
    : Mixer("ShortConvolution", scope), options(given) {
  Checker checker(name());
  check_extent(checker, "", "width of the model", width);
  check_convolution_width(checker, "width", options.width, 1);
  checker.done();
  input = Linear(scope / "input", width, 3 * width, {.bias = options.bias});
  convolution = (scope / "convolution").variable("weight", {width, options.width}, ParameterRole::convolution);
  if (options.bias) convolution_bias = (scope / "convolution").variable("bias", {width}, ParameterRole::bias);
  output = Linear(scope / "output", width, width, {.bias = options.bias, .residual = true});
}

MixerState ShortConvolution::new_state(int64_t B) const {
  Checker checker(name());
  check_made(checker, input.weight);
  check_extent(checker, "", "B", B);
  checker.done();
  return {{Array(dtype(), {B, output.weight.shape()[0], options.width - 1})}};
}

Value ShortConvolution::operator()(Tape& tape, const Value& x, const MixerInputs& inputs) const {
  Checker checker(name());
  if (check_made(checker, input.weight) && check_rows(checker, "x", x, input.weight.shape()[1], dtype()) &&
      inputs.state)
    check_state(checker, tape, inputs, new_state(x.shape()[0]));
  checker.done();
  const Tape::NameScope scope(tape, short_name());
  const int64_t C = x.shape()[2];
  const Value parts = input(tape, x);
  const auto part = [&](int64_t n) { return slice(tape, parts, 2, n * C, (n + 1) * C); };
  View<3> kept;
  if (inputs.state) kept = inputs.state->parts[0];
  const Value mixed = causal_convolution(tape, multiply(tape, part(0), part(2)), convolution, convolution_bias, false,
                                         inputs.cu_seqlens, kept);
  return output(tape, multiply(tape, part(1), mixed));
}

}  // namespace attn::nn
