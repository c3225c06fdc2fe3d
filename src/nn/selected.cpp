// Mixers by attention to selected blocks of keys: MoBA.
#include "attn/nn_selected.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "attn/attention_selection.h"
#include "attn/autograd_operations.h"
#include "nn/check.h"

namespace attn::nn {
namespace {

using autograd::Heads;

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

/// What the layers here have in common with other attention.
void check_heads(Checker& checker, int64_t width, int64_t heads, int64_t kv_heads, int64_t head_dim,
                 const ops::RopeOptions& rope) {
  MultiHeadAttentionOptions as{.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
  if (rope.theta != 0) as.position = AttentionPositions::rope;
  as.rope = rope;
  check_options(checker, "", width, as);
}

/// Sizes that 0 means.
template <class Options>
void complete(Options& o, int64_t width) {
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  if (o.head_dim == 0) o.head_dim = width / o.heads;
}

AttentionOptions causal_options(const Tape& tape) {
  AttentionOptions options;
  options.causal = true;
  options.alignment = Alignment::bottom_right;
  options.float32_precision = ops::matmul_precision();
  options.batch_invariant = tape.options().batch_invariant;
  return options;
}

/// y of each packed sequence on its own, one after the other; of x where nothing is packed.
template <class Layer>
Value by_sequence(Tape& tape, const Value& x, std::span<const int64_t> starts, const Layer& y) {
  if (starts.empty()) return y(x);
  std::vector<Value> parts;
  for (size_t n = 0; n + 1 < starts.size(); ++n)
    if (starts[n] < starts[n + 1]) parts.push_back(y(slice(tape, x, 1, starts[n], starts[n + 1])));
  return parts.empty() ? y(x) : concat(tape, parts, 1);
}

/// Rotates `heads` heads in the first columns of rows [B, L, ..], whose positions are first, first + step ..
Value rotated(Tape& tape, const Value& rows, int64_t heads, int64_t head_dim, int64_t first, int64_t step,
              const ops::RopeOptions& rope) {
  if (rope.theta == 0) return rows;
  const int64_t B = rows.shape()[0], L = rows.shape()[1];
  std::vector<int64_t> positions(static_cast<size_t>(B * L));
  for (int64_t row = 0; row < B * L; ++row) positions[row] = first + row % L * step;
  return autograd::rope(tape, rows, heads, head_dim, std::move(positions), rope);
}

/// Keys and values, where they are in an array.
struct KeysValues {
  Heads k, v;
};

/// Keys and values in these columns of rows. With `kept`, after those that it holds, [B, n, k and v]; it then holds the
/// last `most` of all.
KeysValues following(Tape& tape, const Value& rows, const Heads& k, const Heads& v, Array* kept, int64_t most) {
  if (!kept) return {k, v};
  const int64_t columns = k.heads * k.width;
  const auto part = [&](const Heads& of) { return slice(tape, rows, 2, of.first, of.first + columns); };
  const Value all = concat(tape, {Value(*kept), concat(tape, {part(k), part(v)}, 2)}, 1);
  const int64_t n = all.shape()[1];
  *kept = n > most ? slice(tape, all, 1, n - most, n).data() : all.data();
  return {{all, 0, k.heads, k.width}, {all, columns, k.heads, k.width}};
}

/// Causal attention to the listed blocks.
Value attend_to(Tape& tape, const Heads& q, const KeysValues& kv, BlockLists lists) {
  const auto owned = std::make_shared<const BlockLists>(std::move(lists));
  tape.record(q.array, [owned] {});  // an earlier step, which keeps the lists until that of attention has run
  AttentionOptions options = causal_options(tape);
  options.blocks = *owned;
  return attention(tape, q, kv.k, kv.v, options);
}

int64_t tokens_of(const MixerState& state) {
  return !state.parts.empty() && state.parts[0].shape().size() == 3 ? state.parts[0].shape()[1] : 0;
}

}  // namespace

MobaAttention::MobaAttention(const Scope& scope, int64_t width, const MobaOptions& given)
    : Mixer("MobaAttention", scope), options(given) {
  Checker checker(name());
  check_heads(checker, width, options.heads, options.kv_heads, options.head_dim, options.rope);
  check_extent(checker, "", "block", options.block);
  check_extent(checker, "", "count", options.count);
  checker.done();
  complete(options, width);
  const int64_t H = options.heads, Hk = options.kv_heads, D = options.head_dim;
  qkv = Linear(scope / "qkv", width, (H + 2 * Hk) * D, {.bias = options.bias});
  output = Linear(scope / "output", H * D, width, {.bias = options.bias, .residual = true});
}

MixerState MobaAttention::new_state(int64_t B) const {
  Checker checker(name());
  check_made(checker, qkv.weight);
  check_extent(checker, "", "B", B);
  checker.done();
  return {{Array(dtype(), {B, 0, 2 * options.kv_heads * options.head_dim})}};
}

Value MobaAttention::attend(Tape& tape, const Value& x, MixerState* state) const {
  const int64_t H = options.heads, Hk = options.kv_heads, D = options.head_dim;
  const Value rows = rotated(tape, qkv(tape, x), H + Hk, D, state ? tokens_of(*state) : 0, 1, options.rope);
  const Heads q{rows, 0, H, D};
  const KeysValues kv = following(tape, rows, {rows, H * D, Hk, D}, {rows, (H + Hk) * D, Hk, D},
                                  state ? &state->parts[0] : nullptr, kAll);
  return attend_to(
      tape, q, kv,
      select_blocks(q.view(), kv.k.view(), {.key_block = options.block, .count = options.count, .causal = true}));
}

Value MobaAttention::operator()(Tape& tape, const Value& x, const MixerInputs& inputs) const {
  Checker checker(name());
  if (check_made(checker, qkv.weight)) {
    check_inputs(checker, {.width = output.weight.shape()[0], .dtype = dtype()}, x, {.cu_seqlens = inputs.cu_seqlens});
    if (checker.ok() && inputs.state)
      check_state(checker, tape, inputs,
                  {{dtype(), {x.shape()[0], tokens_of(*inputs.state), 2 * options.kv_heads * options.head_dim}}});
  }
  checker.done();
  const Tape::ErrorScope scope(tape, name());
  const auto layer = [&](const Value& part) { return attend(tape, part, inputs.state); };
  return output(tape, by_sequence(tape, x, inputs.cu_seqlens, layer));
}

}  // namespace attn::nn
