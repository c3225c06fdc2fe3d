// The block: branches around residuals, with norms where the options put them.
#include "nn/check.h"

namespace attn::nn {
namespace {

void check_block(Checker& checker, int64_t width, const BlockOptions& options) {
  check_extent(checker, "", "width", width);
  check_dropout(checker, "", options.dropout);
  check_options(checker, "norm: ", width, options.norm);
  if (!options.mixer) check_options(checker, "attention: ", width, options.attention);
  if (options.cross.encoder_dim) check_options(checker, "cross: ", width, options.cross);
  if (options.has_feed_forward) check_options(checker, "feed_forward: ", width, options.feed_forward);
  checker.require(options.has_feed_forward || !options.parallel, "parallel branches need a feed-forward");
  checker.require(!options.parallel || (options.norm_placement == NormPlacement::pre && !options.cross.encoder_dim),
                  "parallel branches must have norm_placement pre, and no cross-attention beside them");
  checker.require(options.attention.encoder_dim == 0,
                  "attention.encoder_dim must be 0: the block's encoder states are for cross");
}

/// A mixer takes packed sequences and its state; what only attention reads must not be given.
void check_mixer_inputs(Checker& checker, const AttentionInputs& inputs) {
  for (const auto& [name, given] : {std::pair{"mask", bool(inputs.mask)},
                                    {"bias", bool(inputs.bias)},
                                    {"gates", bool(inputs.gates)},
                                    {"trace", inputs.trace != nullptr},
                                    {"sequence", inputs.sequence != nullptr},
                                    {"cache", inputs.cache.cache != nullptr}})
    checker.require(!given, [n = name] { return std::string(n) + " is for attention, and this block has a mixer"; });
}

Value normed(Tape& tape, const Norm& norm, const Value& x) { return norm.weight ? norm(tape, x) : x; }

}  // namespace

Block::Block(const Scope& scope, int64_t width, const BlockOptions& options_)
    : Layer("Block", scope), options(options_), width_(width) {
  Checker checker(name());  // of everything inside as well: a block is made as a whole or not at all
  check_block(checker, width, options);
  checker.done();
  const bool sandwich = options.norm_placement == NormPlacement::sandwich, has_cross = options.cross.encoder_dim > 0;
  const auto norm = [&](const char* part, bool wanted = true) {
    return wanted ? Norm(scope / part, width, options.norm) : Norm();
  };
  norm_attention = norm("norm_attention", options.norm_placement != NormPlacement::pre_except_first);
  norm_cross = norm("norm_cross", has_cross);
  norm_feed_forward = norm("norm_feed_forward", options.has_feed_forward);
  after_attention = norm("after_attention", sandwich);
  after_cross = norm("after_cross", sandwich && has_cross);
  after_feed_forward = norm("after_feed_forward", sandwich && options.has_feed_forward);
  if (options.mixer) mixer = options.mixer(scope / "mixer", width);
  else attention = MultiHeadAttention(scope / "attention", width, options.attention);
  if (has_cross) cross = MultiHeadAttention(scope / "cross", width, options.cross);
  if (options.has_feed_forward) feed_forward = FeedForward(scope / "feed_forward", width, options.feed_forward);
}

Value Block::branch(Tape& tape, const Value& x, const Norm& norm, const Norm& after,
                    const std::function<Value(const Value&, const Value&)>& f) const {
  const bool drops = tape.training() && options.dropout > 0;
  const auto joined = [&](const Value& in, const Norm& last) {
    if (!drops && !last.weight) return f(in, x);
    return add(tape, x, dropout(tape, normed(tape, last, f(in, {})), options.dropout));
  };
  switch (options.norm_placement) {
    case NormPlacement::post: return normed(tape, norm, joined(x, {}));
    case NormPlacement::branch: return joined(x, norm);
    default: return joined(normed(tape, norm, x), after);
  }
}

Value Block::mixed(Tape& tape, const Value& x, const AttentionInputs& inputs) const {
  if (!mixer) return attention(tape, x, inputs);
  const Value y = (*mixer)(tape, x, {.cu_seqlens = inputs.cu_seqlens, .state = inputs.state});
  return inputs.residual ? add(tape, inputs.residual, y) : y;
}

Value Block::operator()(Tape& tape, const Value& x, const AttentionInputs& inputs) const {
  Checker checker(name());
  if (check_made(checker, width_ > 0)) check_rows(checker, "x", x, width_, dtype());
  if (mixer) check_mixer_inputs(checker, inputs);
  checker.require(mixer || !inputs.state, "a state is for a mixer, and this block has attention");
  checker.done();
  AttentionInputs own = inputs, across = {};
  if (options.cross.encoder_dim) {
    across.encoder_states = std::exchange(own.encoder_states, nullptr);
    across.key_value = std::exchange(own.key_value, nullptr);
    across.key_length = inputs.encoder_length;
    across.trace = inputs.cross_trace;
    across.gates = inputs.cross_gates;
  }
  const auto mix = [&](const Value& in, const Value& residual) {
    own.residual = residual;
    return mixed(tape, in, own);
  };
  const auto attend_across = [&](const Value& in, const Value& residual) {
    across.residual = residual;
    return cross(tape, in, across);
  };
  const auto feed = [&](const Value& in, const Value& residual) { return feed_forward(tape, in, residual); };
  if (options.parallel) {
    const Value seen = branch(tape, x, norm_attention, after_attention, mix);
    const Value in = norm_feed_forward(tape, x);
    if (!tape.training() || options.dropout == 0) return feed(in, seen);
    return add(tape, seen, dropout(tape, feed(in, {}), options.dropout));
  }
  Value y = branch(tape, x, norm_attention, after_attention, mix);
  if (options.cross.encoder_dim) y = branch(tape, y, norm_cross, after_cross, attend_across);
  return options.has_feed_forward ? branch(tape, y, norm_feed_forward, after_feed_forward, feed) : y;
}

}  // namespace attn::nn
