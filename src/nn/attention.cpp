// Attention layers: projections around the operator. Q, K and V of a layer are in one array and are read in place.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "attn/autograd_operations.h"
#include "attn/autograd_ranks.h"
#include "nn/cached_attention.h"
#include "nn/check.h"

namespace attn::nn {
namespace {

using autograd::Heads;

/// Options that the inputs decide: lengths, masks; and which way causality looks where lengths differ. Float32 enters
/// attention as it enters the products around it.
AttentionOptions options_of(const Tape& tape, const AttentionInputs& inputs, bool causal, int64_t window,
                            double dropout) {
  AttentionOptions options;
  options.float32_precision = ops::matmul_precision();
  options.batch_invariant = tape.options().batch_invariant;
  options.cu_seqlens_q = options.cu_seqlens_k = inputs.cu_seqlens;
  options.causal = causal;
  if (window > 0) options.window = {window - 1, causal ? -1 : window - 1};
  options.alignment = Alignment::top_left;
  options.key_length = inputs.key_length;
  options.mask = inputs.mask;
  options.dropout = dropout;
  return options;
}

/// With `bias`, which gets its gradient, or with the bias of `options`, which is in `kept`.
Value attend(Tape& tape, const QueryKeyValue& heads, AttentionOptions options, const Value& bias, const Value& kept,
             const Value& sink, AttentionTrace* trace, const autograd::SharedSequence* sequence) {
  Array lse;
  const Value out =
      autograd::attention(tape, heads.q, heads.k, heads.v, options, bias, trace ? &lse : nullptr, sink, sequence);
  if (!trace) return out;
  if (bias) {
    const std::vector<int64_t>& shape = bias.shape();
    options.bias = {bias.data().data(), bias.dtype(), {shape[0], shape[1], shape[2], shape[3]}};
  }
  options.dropout = 0;
  *trace = {heads.q, heads.k, lse, options, bias ? bias : kept, sink};
  return out;
}

/// The positions of a rank's tokens, for each of B sequences.
std::vector<int64_t> positions_of(const autograd::SharedSequence& sequence, int64_t B) {
  std::vector<int64_t> all;
  for (int64_t b = 0; b < B; ++b) all.insert(all.end(), sequence.positions().begin(), sequence.positions().end());
  return all;
}

/// What a sequence that ranks share cannot have.
void check_shared(Checker& checker, bool relative, const Value& x, const AttentionInputs& inputs) {
  for (const auto& [what, given] : {std::pair{"encoder_states", inputs.encoder_states || inputs.key_value},
                                    {"relative positions", relative},
                                    {"key_length", !inputs.key_length.empty()},
                                    {"cu_seqlens", !inputs.cu_seqlens.empty()},
                                    {"mask", bool(inputs.mask)},
                                    {"bias", bool(inputs.bias)},
                                    {"a cache of this rank alone", inputs.cache.cache && !inputs.cache.ranks},
                                    {"trace", inputs.trace != nullptr}})
    checker.require(!given, [w = what] { return std::string(w) + " is given, but ranks share the sequence"; });
  if (x && x.shape().size() == 3)
    checker.require(x.shape()[1] == inputs.sequence->tokens(), [&] {
      return "x has " + std::to_string(x.shape()[1]) + " tokens, and this rank " +
             std::to_string(inputs.sequence->tokens()) + " of the sequence";
    });
}

}  // namespace

RecordedAttention AttentionTrace::recorded(std::string layer_name) const {
  if (!q.array || !k.array || !lse)
    throw Error("AttentionTrace", {"the trace is empty: give it to a call of an attention layer first"});
  const std::vector<int64_t>& size = lse.shape();
  const View<3> lse_view(lse.data(), lse.dtype(), {size[0], size[1], size[2]});
  return {std::move(layer_name), q.view(), k.view(), lse_view, options};
}

RecordedAttention AttentionTrace::with_all_keys() const {
  RecordedAttention call = recorded({});
  if (first != 0)
    throw Error("AttentionTrace", {"the trace continues a cache of " + std::to_string(first) +
                                   " tokens, whose keys it does not have: a TextRecorder keeps them"});
  return call;
}

Value AttentionTrace::statistics(Tape& tape, const autograd::StatisticsSelection& wanted) const {
  with_all_keys();
  // A bias without a gradient is in the options already, perhaps by distance.
  return autograd::attention_statistics(tape, q, k, lse, wanted, options, bias.wants_gradient() ? bias : Value(), sink);
}

Array AttentionTrace::weights() const {
  const RecordedAttention call = with_all_keys();
  const Shape<4> size = {call.q.size[0], call.q.size[1], call.q.size[2], call.k.size[2]};
  Array result(lse.dtype(), {size.begin(), size.end()});
  attention_weights(call.q, call.k, call.lse, View<4>(result.data(), lse.dtype(), size), 0, 0, options);
  return result;
}

// ------------------------------------------------------------------------------------------------------- single head

SelfAttention::SelfAttention(const Scope& scope, int64_t width, const SelfAttentionOptions& options_)
    : Layer("SelfAttention", scope), options(options_) {
  Checker checker(name());
  check_options(checker, "", width, options);
  checker.done();
  if (options.key_width == 0) options.key_width = width;
  if (options.value_width == 0) options.value_width = width;
  query = Linear(scope / "query", width, options.key_width, {.bias = options.bias});
  key = Linear(scope / "key", width, options.key_width, {.bias = options.bias});
  value = Linear(scope / "value", width, options.value_width, {.bias = options.bias});
  if (options.output_width)
    output = Linear(scope / "output", options.value_width, options.output_width, {.bias = options.bias});
}

Value SelfAttention::operator()(Tape& tape, const Value& x, const AttentionInputs& inputs) const {
  Checker checker(name());
  if (check_made(checker, query.weight)) {
    const int64_t width = query.weight.shape()[1];
    check_inputs(checker,
                 {.width = width,
                  .encoder_dim = width,
                  .heads = 1,
                  .kv_heads = 1,
                  .key_width = options.key_width,
                  .value_width = options.value_width,
                  .causal = options.causal,
                  .recording = tape.recording(),
                  .dtype = dtype()},
                 x, inputs);
  }
  if (inputs.sequence) check_shared(checker, false, x, inputs);
  checker.done();
  const Tape::NameScope scope(tape, "attention");
  const Value& source = inputs.encoder_states ? *inputs.encoder_states : x;
  const auto whole = [](const Value& array) { return Heads{array, 0, 1, array.data().width()}; };
  const QueryKeyValue heads = {whole(query(tape, x)), whole(key(tape, source)), whole(value(tape, source)), {}};
  const AttentionOptions attend_options = options_of(tape, inputs, options.causal, 0, options.dropout);
  Value seen = inputs.cache.cache
                   ? attend_cached(tape, heads, inputs.cache, attend_options, {}, {}, inputs.trace)
                   : attend(tape, heads, attend_options, inputs.bias, {}, {}, inputs.trace, inputs.sequence);
  if (inputs.gates) seen = scale_heads(tape, seen, inputs.gates);
  if (options.output_width) return output(tape, seen, inputs.residual);
  return inputs.residual ? add(tape, inputs.residual, seen) : seen;
}

// --------------------------------------------------------------------------------------------------------- many heads

std::vector<float> alibi_slopes(int64_t heads) {
  if (heads < 1) throw Error("alibi_slopes", {"heads is " + std::to_string(heads) + ", must be at least 1"});
  std::vector<float> slopes;
  for (int64_t h = 0; h < heads; ++h)
    slopes.push_back(static_cast<float>(std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(heads))));
  return slopes;
}

HeadShare share_of_heads(int64_t heads, int64_t kv_heads, int rank, int ranks) {
  if (ranks > heads)
    throw Error("share_of_heads", {"there are " + std::to_string(ranks) + " ranks for " + std::to_string(heads) +
                                   " heads, and each must have one"});
  const auto begin = [](int64_t n, int64_t place, int64_t places) { return n * place / places; };
  const int64_t group = heads / kv_heads;
  if (kv_heads >= ranks) {
    const IndexRange own = {begin(kv_heads, rank, ranks), begin(kv_heads, rank + 1, ranks)};
    return {.heads = {own.begin * group, own.end * group}, .kv_heads = own};
  }
  const int64_t kv = rank * kv_heads / ranks;
  const auto first_rank = [&](int64_t of) { return (of * ranks + kv_heads - 1) / kv_heads; };
  const int64_t place = rank - first_rank(kv), places = first_rank(kv + 1) - first_rank(kv);
  return {.heads = {kv * group + begin(group, place, places), kv * group + begin(group, place + 1, places)},
          .kv_heads = {kv, kv + 1},
          .repeated = true,
          .is_first = place == 0};
}

/// The linear layers, of this rank's heads, which it returns.
HeadShare MultiHeadAttention::make_projections(const Scope& scope, int64_t width) {
  const int64_t H = options_.heads, Hk = options_.kv_heads, D = options_.head_dim;
  HeadShare own = {.heads = {0, H}, .kv_heads = {0, Hk}};
  Slice of_queries = {.axis = 0}, of_keys = of_queries, of_all = of_queries, of_output = {.axis = 1};
  if (ranks_) {
    own = share_of_heads(H, Hk, ranks_->rank(), ranks_->size());
    const auto rows = [D](IndexRange heads, int64_t first) {
      return IndexRange{(first + heads.begin) * D, (first + heads.end) * D};
    };
    of_queries.ranges = of_output.ranges = {rows(own.heads, 0)};
    of_keys.ranges = {rows(own.kv_heads, 0), rows(own.kv_heads, Hk)};
    of_all.ranges = {rows(own.heads, 0), rows(own.kv_heads, H), rows(own.kv_heads, H + Hk)};
    of_keys.is_first = of_all.is_first = own.is_first;
    if (own.repeated) of_keys.repeated_from = 0, of_all.repeated_from = H * D;
  }
  if (options_.encoder_dim) {
    query = Linear(scope / "query", width, H * D, {.bias = options_.bias, .slice = of_queries});
    key_value = Linear(scope / "key_value", options_.encoder_dim, 2 * Hk * D,
                       {.bias = options_.bias, .parts = {{"key", Hk * D}, {"value", Hk * D}}, .slice = of_keys});
  } else {
    qkv = Linear(
        scope / "qkv", width, (H + 2 * Hk) * D,
        {.bias = options_.bias, .parts = {{"query", H * D}, {"key", Hk * D}, {"value", Hk * D}}, .slice = of_all});
  }
  if (options_.gate) gate = Linear(scope / "gate", width, H * D, {.bias = options_.bias, .slice = of_queries});
  output = Linear(scope / "output", H * D, width, {.bias = options_.output_bias, .residual = true, .slice = of_output});
  return own;
}

/// The other parameters. The options have the heads of all ranks.
void MultiHeadAttention::make_vectors(const Scope& scope, const HeadShare& own) {
  const int64_t H = options_.heads, Hk = options_.kv_heads, D = options_.head_dim;
  const auto of_heads = [&](int axis) {
    return Slice{.axis = axis, .ranges = ranks_ ? std::vector{own.heads} : std::vector<IndexRange>()};
  };
  if (options_.query_key_norm != QueryKeyNorm::none) {
    const bool rows = options_.query_key_norm == QueryKeyNorm::rows;
    Slice of_queries = {.repeated_from = ranks_ ? std::optional<int64_t>(0) : std::nullopt}, of_keys = of_queries;
    if (rows && ranks_) {
      of_queries = {.ranges = {{own.heads.begin * D, own.heads.end * D}}};
      of_keys = {.ranges = {{own.kv_heads.begin * D, own.kv_heads.end * D}}, .is_first = own.is_first};
      if (own.repeated) of_keys.repeated_from = 0;
      query_width_ = H * D;
      key_width_ = Hk * D;
      counts_keys_ = own.is_first;
    }
    query_norm_ = (scope / "norm_query").variable("weight", {rows ? H * D : D}, ParameterRole::scale, of_queries);
    key_norm_ = (scope / "norm_key").variable("weight", {rows ? Hk * D : D}, ParameterRole::scale, of_keys);
  }
  if (options_.sinks) sink_ = scope.variable("sink", {H}, ParameterRole::bias, of_heads(0));
  if (options_.position == AttentionPositions::relative && !options_.shares_distances)
    distance_bias_ = scope.variable("distance_bias", {options_.buckets, H}, ParameterRole::embedding, of_heads(1));
  if (options_.position == AttentionPositions::alibi) {
    const std::vector<float> all = options_.slopes.empty() ? alibi_slopes(H) : options_.slopes;
    slopes_.assign(all.begin() + own.heads.begin, all.begin() + own.heads.end);
  }
}

MultiHeadAttention::MultiHeadAttention(const Scope& scope, int64_t width, const MultiHeadAttentionOptions& options)
    : Layer("MultiHeadAttention", scope), options_(options), ranks_(scope.tensor_ranks()) {
  Checker checker(name());
  check_options(checker, "", width, options);
  checker.done();
  if (options_.kv_heads == 0) options_.kv_heads = options_.heads;
  if (options_.head_dim == 0) options_.head_dim = width / options_.heads;
  const HeadShare own = make_projections(scope, width);
  make_vectors(scope, own);
  options_.heads = own.heads.count();
  options_.kv_heads = own.kv_heads.count();
  first_head_ = own.heads.begin;
  const RopeScaling scaling = options_.rope_scaling.kind;
  const bool by_length = scaling == RopeScaling::dynamic || scaling == RopeScaling::longrope;
  if (options_.position == AttentionPositions::rope && !by_length) frequencies_ = frequencies_for(0);
  if (options_.position == AttentionPositions::rope) options_.rope.magnitude = rope_magnitude(options_.rope_scaling);
}

void MultiHeadAttention::share_distances(const MultiHeadAttention& other) {
  Checker checker(name());
  checker.require(options_.shares_distances && !distance_bias_ && other.distance_bias_,
                  "the layer takes no relative positions from another one, or that one has none");
  checker.done();
  distance_bias_ = other.distance_bias_;
}

void MultiHeadAttention::check_call(const Tape& tape, const Value& x, const AttentionInputs& inputs) const {
  Checker checker(name());
  if (check_made(checker, output.weight))
    check_inputs(checker,
                 {.width = output.weight.shape()[0],
                  .encoder_dim = options_.encoder_dim,
                  .needs_memory = options_.encoder_dim > 0,
                  .heads = options_.heads,
                  .kv_heads = options_.kv_heads,
                  .key_width = options_.head_dim,
                  .value_width = options_.head_dim,
                  .causal = options_.causal,
                  .relative = options_.position == AttentionPositions::relative,
                  .recording = tape.recording(),
                  .dtype = dtype()},
                 x, inputs);
  checker.require(options_.position != AttentionPositions::relative || distance_bias_,
                  "the layer has no relative positions yet: share_distances() gives it those of another layer");
  if (inputs.sequence) check_shared(checker, options_.position == AttentionPositions::relative, x, inputs);
  checker.done();
}

std::vector<double> MultiHeadAttention::frequencies_for(int64_t length) const {
  const int64_t width = options_.rope.rotary_dim ? options_.rope.rotary_dim : options_.head_dim;
  return rope_frequencies(options_.rope.theta, width, options_.rope_scaling, length);
}

/// The rows of qkv with the norms of queries and keys.
Value MultiHeadAttention::normalised(Tape& tape, const Value& qkv_rows) const {
  const int64_t H = options_.heads, Hk = options_.kv_heads, first_key = H * options_.head_dim;
  const bool rows = options_.query_key_norm == QueryKeyNorm::rows;
  if (!rows || !ranks_)
    return rms_norm_columns(tape, qkv_rows, {{0, rows ? 1 : H, query_norm_}, {first_key, rows ? 1 : Hk, key_norm_}},
                            options_.norm_epsilon);
  return rms_norm_over_ranks(tape, qkv_rows,
                             {{0, query_width_, true, query_norm_}, {first_key, key_width_, counts_keys_, key_norm_}},
                             options_.norm_epsilon, *ranks_);
}

/// Queries, keys and values of self-attention, normalised and rotated as far as the options say so.
QueryKeyValue MultiHeadAttention::placed(Tape& tape, Value qkv_rows, const AttentionInputs& inputs) const {
  const int64_t H = options_.heads, Hk = options_.kv_heads, D = options_.head_dim;
  const int64_t B = qkv_rows.shape()[0], L = qkv_rows.shape()[1];
  if (query_norm_) qkv_rows = normalised(tape, qkv_rows);
  const auto heads_of = [&](const Value& all) {
    return QueryKeyValue{{all, 0, H, D}, {all, H * D, Hk, D}, {all, (H + Hk) * D, Hk, D}, {}};
  };
  if (options_.position != AttentionPositions::rope) return heads_of(qkv_rows);
  const std::vector<int64_t> positions =
      inputs.sequence ? positions_of(*inputs.sequence, B) : inputs.cache.positions(starts_of(inputs.cu_seqlens, B, L));
  std::vector<int64_t> cached = positions;
  if (inputs.cache.cache)
    for (int64_t& each : cached) each = inputs.cache.cache->config().streaming.position(each);
  const int64_t length = inputs.sequence  ? inputs.sequence->placement().tokens()
                         : cached.empty() ? 0
                                          : *std::max_element(cached.begin(), cached.end()) + 1;
  const std::vector<double> frequencies = frequencies_.empty() ? frequencies_for(length) : frequencies_;
  QueryKeyValue heads = heads_of(autograd::rope(tape, qkv_rows, H + Hk, D, positions, options_.rope, frequencies));
  if (cached != positions)
    heads.sink_q = {autograd::rope(tape, qkv_rows, H, D, std::move(cached), options_.rope, frequencies), 0, H, D};
  return heads;
}

QueryKeyValue MultiHeadAttention::project(Tape& tape, const Value& x, const AttentionInputs& inputs) const {
  const int64_t H = options_.heads, Hk = options_.kv_heads, D = options_.head_dim;
  if (!options_.encoder_dim) return placed(tape, qkv(tape, x), inputs);
  const Value from_x = query(tape, x);
  const auto from_states = [&](const Value& states) {
    return key_value(tape, ranks_ ? shared_input(tape, states, *ranks_) : states);
  };
  const Value from_memory = inputs.key_value ? *inputs.key_value : from_states(*inputs.encoder_states);
  return {{from_x, 0, H, D}, {from_memory, 0, Hk, D}, {from_memory, Hk * D, Hk, D}, {}};
}

Value MultiHeadAttention::operator()(Tape& tape, const Value& x, const AttentionInputs& inputs) const {
  check_call(tape, x, inputs);
  const Tape::NameScope scope(tape, short_name());
  const Value in = ranks_ ? shared_input(tape, x, *ranks_) : x;
  const QueryKeyValue heads = project(tape, in, inputs);
  const int64_t L = x.shape()[1], keys = heads.k.array.shape()[1];
  AttentionOptions options = options_of(tape, inputs, options_.causal, options_.window, options_.dropout);
  options.alibi_slopes = slopes_;
  if (tape.training() && options.dropout > 0) options.shard.first_head = first_head_;
  options.softcap = options_.softcap;
  if (options_.attention_scale > 0) options.scale = options_.attention_scale;
  Value bias = inputs.bias;
  Distances distances;
  if (distance_bias_) {
    if (tape.recording() || bias) {  // a gradient, or a sum, needs every pair
      const Value pairs = pair_bias(tape, L, keys);
      bias = bias ? add(tape, bias, pairs) : pairs;
    } else {
      int64_t longest = L;  // at least as many tokens as a packed sequence has
      if (const KVCache* cache = inputs.cache.cache)
        for (const int64_t id : inputs.cache.sequences)
          longest = std::max(longest, cache->config().streaming.position(cache->length(id) + L - 1) + 1);
      distances.first = 1 - longest;
      distances.table = distance_bias(tape, distances.first, longest + keys - 1);
      options.bias = distances.view(0, L, keys);
    }
  }
  const bool continues = inputs.cache.cache && !inputs.sequence;
  Value seen = continues ? attend_cached(tape, heads, inputs.cache, options, distances, sink_, inputs.trace)
                         : attend(tape, heads, options, bias, distances.table, sink_, inputs.trace, inputs.sequence);
  if (inputs.cache.cache && inputs.sequence) append_shared(heads, inputs.cache);
  if (inputs.gates) seen = scale_heads(tape, seen, inputs.gates);
  if (options_.gate) seen = multiply(tape, seen, sigmoid(tape, gate(tape, in)));
  return output(tape, seen, inputs.residual);
}

int64_t relative_bucket(int64_t key_minus_query, bool bidirectional, int64_t buckets, int64_t max_distance) {
  Checker checker("relative_bucket");
  check_buckets(checker, "", bidirectional, buckets, max_distance);
  checker.done();
  int64_t first = 0, distance = -std::clamp(key_minus_query, -max_distance, max_distance);  // beyond: the last bucket
  if (bidirectional) {
    buckets /= 2;
    if (distance < 0) first = buckets;
    distance = std::abs(distance);
  } else {
    distance = std::max<int64_t>(distance, 0);
  }
  const int64_t exact = buckets / 2;  // one bucket a distance; from here on, logarithmic
  if (distance < exact) return first + distance;
  const double ratio = std::log(static_cast<double>(distance) / static_cast<double>(exact)) /
                       std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
  const int64_t bucket = exact + static_cast<int64_t>(ratio * static_cast<double>(buckets - exact));
  return first + std::min(bucket, buckets - 1);
}

std::vector<int64_t> MultiHeadAttention::buckets_from(int64_t first, int64_t count) const {
  std::vector<int64_t> all(static_cast<size_t>(count));
  for (int64_t c = 0; c < count; ++c)
    all[c] = relative_bucket(first + c, !options_.causal, options_.buckets, options_.max_distance);
  return all;
}

/// [1, H, 1, count] for the distances first .. of key - query, from the table [buckets, H]; of empty texts one.
Value MultiHeadAttention::distance_bias(Tape& tape, int64_t first, int64_t count) const {
  count = std::max<int64_t>(count, 1);
  return heads_first(tape, embedding(tape, buckets_from(first, count), distance_bias_, {1, count}));
}

/// [1, H, queries, keys]: looked up as [queries * keys, H], then seen with heads first.
Value MultiHeadAttention::pair_bias(Tape& tape, int64_t queries, int64_t keys) const {
  const std::vector<int64_t> bucket = buckets_from(1 - queries, std::max<int64_t>(queries + keys - 1, 0));
  std::vector<int64_t> ids(static_cast<size_t>(queries * keys));
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t j = 0; j < keys; ++j) ids[i * keys + j] = bucket[j - i + queries - 1];
  return heads_first(tape, embedding(tape, std::move(ids), distance_bias_, {queries, keys}));
}

}  // namespace attn::nn
