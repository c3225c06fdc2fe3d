// The mixer by an LSTM.
#include "attn/nn_mixers.h"
#include "nn/check.h"

namespace attn::nn {

Lstm::Lstm(const Scope& scope, int64_t width, const LstmOptions& given) : Mixer("Lstm", scope), options(given) {
  Checker checker(name());
  check_extent(checker, "", "width of the model", width);
  check_option(checker, "", "hidden_dim", options.hidden_dim);
  checker.done();
  const int64_t H = options.hidden_dim ? options.hidden_dim : width;
  input = Linear(scope / "input", width, 4 * H, {.bias = false});
  input.bias = (scope / "input").variable("bias", {4 * H}, ParameterRole::gates);
  recurrent = (scope / "recurrent").variable("weight", {4 * H, H}, ParameterRole::recurrent);
  if (options.hidden_dim) output = Linear(scope / "output", H, width, {.bias = false, .residual = true});
}

MixerState Lstm::new_state(int64_t B) const {
  Checker checker(name());
  check_made(checker, recurrent);
  check_extent(checker, "", "B", B);
  checker.done();
  return {{Array(dtype() == DType::float64 ? DType::float64 : DType::float32, {B, 2 * recurrent.shape()[1]})}};
}

Value Lstm::operator()(Tape& tape, const Value& x, const MixerInputs& inputs) const {
  Checker checker(name());
  if (check_made(checker, recurrent) && check_rows(checker, "x", x, input.weight.shape()[1], dtype()) && inputs.state)
    check_state(checker, tape, inputs, new_state(x.shape()[0]));
  checker.done();
  const Tape::NameScope scope(tape, short_name());
  View<3> kept;
  if (inputs.state) {
    const Array& state = inputs.state->parts[0];
    const int64_t B = state.shape()[0], H = state.shape()[1] / 2;
    kept = View<3>(state.data(), state.dtype(), {2, B, H}, {H, 2 * H, 1});
  }
  const Value hidden = lstm(tape, input(tape, x), recurrent, inputs.cu_seqlens, kept);
  return options.hidden_dim ? output(tape, hidden) : hidden;
}

}  // namespace attn::nn
