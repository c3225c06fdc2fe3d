// The layers without attention, and the block that joins both.
#include <cmath>

#include "attn/nn.h"

namespace attn::nn {

Linear::Linear(const Scope& scope, int64_t in, int64_t out, const LinearOptions& options)
    : weight(scope.weight("weight", {out, in}, options.residual)) {
  if (options.bias) bias = scope.constant("bias", out, 0);
}

Embedding::Embedding(const Scope& scope, int64_t tokens, int64_t width)
    : table(scope.weight("weight", {tokens, width})) {}

Value Embedding::operator()(Tape& tape, std::vector<int64_t> ids, std::vector<int64_t> shape) const {
  return embedding(tape, std::move(ids), table, std::move(shape));
}

Norm::Norm(const Scope& scope, int64_t width, const NormOptions& options_)
    : options(options_), weight(scope.constant("weight", width, 1)) {
  if (options.bias && !options.rms) bias = scope.constant("bias", width, 0);
}

Value Norm::operator()(Tape& tape, const Value& x) const {
  return options.rms ? rms_norm(tape, x, weight, options.epsilon) : layer_norm(tape, x, weight, bias, options.epsilon);
}

FeedForward::FeedForward(const Scope& scope, int64_t width, const FeedForwardOptions& options_) : options(options_) {
  const int64_t hidden = options.hidden ? options.hidden : 4 * width;
  up = Linear(scope / "up", width, options.gated ? 2 * hidden : hidden, {.bias = options.bias});
  down = Linear(scope / "down", hidden, width, {.bias = options.bias, .residual = true});
}

Value FeedForward::operator()(Tape& tape, const Value& x) const {
  const Tape::Scope scope(tape, "feed_forward");
  const Value hidden = up(tape, x);
  return down(tape, options.gated ? activate_gated(tape, options.activation, hidden)
                                  : activate(tape, options.activation, hidden));
}

Block::Block(const Scope& scope, int64_t width, const BlockOptions& options_)
    : options(options_),
      norm_attention(scope / "norm_attention", width, options.norm),
      norm_feed_forward(scope / "norm_feed_forward", width, options.norm),
      attention(scope / "attention", width, options.attention),
      feed_forward(scope / "feed_forward", width, options.feed_forward) {}

Value Block::operator()(Tape& tape, const Value& x, const AttentionInputs& inputs) const {
  const auto branch = [&](const Value& out) { return dropout(tape, out, options.dropout); };
  if (options.norm_first) {
    const Value seen = add(tape, x, branch(attention(tape, norm_attention(tape, x), inputs)));
    return add(tape, seen, branch(feed_forward(tape, norm_feed_forward(tape, seen))));
  }
  const Value seen = norm_attention(tape, add(tape, x, branch(attention(tape, x, inputs))));
  return norm_feed_forward(tape, add(tape, seen, branch(feed_forward(tape, seen))));
}

Array sinusoids(int64_t positions, int64_t width, DType dtype) {
  Array wide(DType::float64, {positions, width}), table(dtype, {positions, width});
  double* value = static_cast<double*>(wide.data());
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t c = 0; c < width; ++c) {
      const double frequency = std::pow(10000, -static_cast<double>(c / 2 * 2) / static_cast<double>(width));
      const double angle = static_cast<double>(p) * frequency;
      value[p * width + c] = c % 2 ? std::cos(angle) : std::sin(angle);
    }
  }
  ops::convert(wide.flat(), table.flat());
  return table;
}

}  // namespace attn::nn
