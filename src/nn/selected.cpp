// Mixers by attention to selected blocks of keys: MoBA and native sparse attention.
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
  qkv = Linear(scope / "qkv", width, (H + 2 * Hk) * D,
               {.bias = options.bias, .parts = {{"query", H * D}, {"key", Hk * D}, {"value", Hk * D}}});
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
  const Tape::NameScope scope(tape, short_name());
  const auto layer = [&](const Value& part) { return attend(tape, part, inputs.state); };
  return output(tape, by_sequence(tape, x, inputs.cu_seqlens, layer));
}

// ------------------------------------------------------------------------------------------- native sparse attention

NativeSparseAttention::NativeSparseAttention(const Scope& scope, int64_t width, const NativeSparseOptions& given)
    : Mixer("NativeSparseAttention", scope), options(given) {
  Checker checker(name());
  check_heads(checker, width, options.heads, options.kv_heads, options.head_dim, options.rope);
  check_extent(checker, "", "block", options.block);
  check_extent(checker, "", "window", options.window);
  checker.require(options.count >= 2, [&] {
    return "count is " + std::to_string(options.count) + ", must be at least 2: a query's own block and the first one";
  });
  checker.done();
  complete(options, width);
  const int64_t H = options.heads, Hk = options.kv_heads, D = options.head_dim, block = options.block;
  qkv = Linear(scope / "qkv", width, (H + 6 * Hk) * D, {.bias = options.bias});
  compress_key = Linear(scope / "compress_key", block * D, D, {.bias = true});
  compress_value = Linear(scope / "compress_value", block * D, D, {.bias = true});
  gate = Linear(scope / "gate", width, 3 * H, {.bias = options.bias});
  output = Linear(scope / "output", H * D, width, {.bias = options.bias, .residual = true});
}

MixerState NativeSparseAttention::new_state(int64_t B) const {
  Checker checker(name());
  check_made(checker, qkv.weight);
  check_extent(checker, "", "B", B);
  checker.done();
  const Array none(dtype(), {B, 0, 2 * options.kv_heads * options.head_dim});
  return {{none, none, none, none}};
}

/// The keys and values [B, M, 2 Hk D] of the M blocks in raw [B, M block, 2 Hk D].
Value NativeSparseAttention::compressed(Tape& tape, const Value& raw, int64_t first_block) const {
  const int64_t Hk = options.kv_heads, D = options.head_dim, block = options.block;
  const int64_t B = raw.shape()[0], M = raw.shape()[1] / block;
  if (M == 0) return raw;
  const auto mapped = [&](int64_t first, const Linear& map) {
    const Value tokens = reshape(tape, slice(tape, raw, 2, first, first + Hk * D), {B, M, block, Hk, D});
    const Value heads = reshape(tape, transpose(tape, tokens, 2, 3), {B, M, Hk, block * D});
    return reshape(tape, map(tape, heads), {B, M, Hk * D});
  };
  const Value k = rotated(tape, mapped(0, compress_key), Hk, D, first_block * block, block, options.rope);
  return concat(tape, {k, mapped(Hk * D, compress_value)}, 2);
}

/// The compressed keys and values of all whole blocks, with those of the state, which is updated.
Value NativeSparseAttention::blocks_so_far(Tape& tape, const Value& rows, MixerState* state) const {
  const int64_t end = rows.shape()[2];
  Value raw = slice(tape, rows, 2, end - 2 * options.kv_heads * options.head_dim, end);
  if (state) raw = concat(tape, {Value(state->parts[3]), raw}, 1);
  const int64_t n = raw.shape()[1], whole = n / options.block * options.block;
  const Value closed = slice(tape, raw, 1, 0, whole);
  if (!state) return compressed(tape, closed, 0);
  Array& before = state->parts[2];
  const Value all = concat(tape, {Value(before), compressed(tape, closed, before.shape()[1])}, 1);
  before = all.data();
  state->parts[3] = slice(tape, raw, 1, whole, n).data();
  return all;
}

namespace {

/// True where block m ends at or before query i, [1, 1, L, M]; the first query is token `first`.
Array closed_blocks(int64_t first, int64_t L, int64_t M, int64_t block) {
  const Array mask(DType::boolean, {1, 1, L, M});
  bool* allowed = mask.data<bool>();
  for (int64_t i = 0; i < L; ++i) std::fill_n(allowed + i * M, std::min((first + i + 1) / block, M), true);
  return mask;
}

/// Attention to compressed blocks, its queries' importance of them, [B, Hk, L, blocks], and what both depend on.
struct BlockImportance {
  const NativeSparseOptions& o;
  int64_t first, B, L;
  Tensor<double, 4> scores = Tensor<double, 4>({B, o.kv_heads, L, (first + L - 1) / o.block + 1});

  /// Weights [B, H, L, M], summed over the query heads of a key/value head.
  void add(const Array& weights) {
    const int64_t M = weights.shape()[3], group = o.heads / o.kv_heads, blocks = scores.size()[3];
    parallel_for(B * o.kv_heads, [&](int64_t head) {
      for (int64_t row = 0; row < group * L; ++row)
        for (int64_t m = 0; m < M; ++m)
          scores[(head * L + row % L) * blocks + m] += weights.number((head * group * L + row) * M + m);
    });
  }

  /// The lists of the largest; a query's own block and the first one come before all others, and none comes after.
  BlockLists lists() {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const int64_t blocks = scores.size()[3], group = o.heads / o.kv_heads;
    for (int64_t row = 0; row < B * o.kv_heads * L; ++row) {
      double* of = &scores[row * blocks];
      const int64_t own = (first + row % L) / o.block;
      of[0] = of[own] = kInfinity;
      std::fill(of + own + 1, of + blocks, -kInfinity);
    }
    BlockLists chosen = select_keys(scores, o.count);
    chosen.key_block = o.block;
    Tensor<int64_t, 3> offsets({B, o.heads, L + 1});
    for (int64_t head = 0; head < B * o.heads; ++head)
      std::copy_n(&chosen.offsets[head / group * (L + 1)], L + 1, &offsets[head * (L + 1)]);
    chosen.offsets = std::move(offsets);
    return chosen;
  }
};

/// Attention of queries, the first of which is token importance.first, to M compressed keys.
Value attend_to_blocks(Tape& tape, const Heads& q, const KeysValues& kv, BlockImportance& importance) {
  const int64_t M = kv.k.array.shape()[1], block = importance.o.block;
  const Array mask = closed_blocks(importance.first, importance.L, M, block);
  tape.record(q.array, [mask] {});  // as in attend_to()
  AttentionOptions options = causal_options(tape);
  options.causal = false;
  options.mask = mask;
  Array lse;
  const Value out = attention(tape, q, kv.k, kv.v, options, {}, &lse);
  const Array weights(lse.dtype(), {importance.B, q.heads, importance.L, M});
  attention_weights(q.view(), kv.k.view(), lse.view<3>(), weights.view<4>(), 0, 0, options);
  importance.add(weights);
  return out;
}

}  // namespace

Value NativeSparseAttention::attend(Tape& tape, const Value& x, MixerState* state) const {
  const int64_t H = options.heads, Hk = options.kv_heads, D = options.head_dim, first = state ? tokens_of(*state) : 0;
  const int64_t B = x.shape()[0], L = x.shape()[1];
  const Value rows = rotated(tape, qkv(tape, x), H + 2 * Hk, D, first, 1, options.rope);
  const Heads q{rows, 0, H, D};
  const auto columns = [&](int64_t run) { return Heads{rows, (H + run * Hk) * D, Hk, D}; };
  const auto part = [&](int64_t n) { return state ? &state->parts[n] : nullptr; };
  const KeysValues tokens = following(tape, rows, columns(0), columns(2), part(0), kAll);
  const KeysValues recent = following(tape, rows, columns(1), columns(3), part(1), options.window - 1);
  const Value blocks = blocks_so_far(tape, rows, state);

  const Value gates = sigmoid(tape, gate(tape, x));
  const auto gated = [&](int64_t branch, const Value& out) {
    const Value factors = reshape(tape, slice(tape, gates, 2, branch * H, (branch + 1) * H), {B, L, H, 1});
    return multiply(tape, reshape(tape, out, {B, L, H, D}), factors);
  };
  BlockImportance importance{options, first, B, L};
  Value compressed_branch;
  if (blocks.shape()[1] > 0)
    compressed_branch = gated(0, attend_to_blocks(tape, q, {{blocks, 0, Hk, D}, {blocks, Hk * D, Hk, D}}, importance));
  AttentionOptions windowed = causal_options(tape);
  windowed.window.left = options.window - 1;
  Value y = add(tape, gated(1, attend_to(tape, q, tokens, importance.lists())),
                gated(2, attention(tape, q, recent.k, recent.v, windowed)));
  if (compressed_branch) y = add(tape, y, compressed_branch);
  return reshape(tape, y, {B, L, H * D});
}

Value NativeSparseAttention::operator()(Tape& tape, const Value& x, const MixerInputs& inputs) const {
  Checker checker(name());
  if (check_made(checker, qkv.weight)) {
    check_inputs(checker, {.width = output.weight.shape()[0], .dtype = dtype()}, x, {.cu_seqlens = inputs.cu_seqlens});
    if (checker.ok() && inputs.state) {
      const int64_t n = tokens_of(*inputs.state), b = options.block;
      std::vector<StatePart> wanted;
      for (const int64_t m : {n, std::min(n, options.window - 1), n / b, n % b})
        wanted.push_back({dtype(), {x.shape()[0], m, 2 * options.kv_heads * options.head_dim}});
      check_state(checker, tape, inputs, wanted);
    }
  }
  checker.done();
  const Tape::NameScope scope(tape, short_name());
  const auto layer = [&](const Value& part) { return attend(tape, part, inputs.state); };
  return output(tape, by_sequence(tape, x, inputs.cu_seqlens, layer));
}

}  // namespace attn::nn
