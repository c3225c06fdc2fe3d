// Attention layers: projections around the operator. Q, K and V of a layer lie in one array and are read in place.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "attn/nn.h"

namespace attn::nn {
namespace {

using autograd::Heads;

/// Options that the inputs decide: lengths, masks; and which way causality looks where lengths differ.
AttentionOptions options_of(const AttentionInputs& inputs, bool causal, int64_t window, double dropout) {
  AttentionOptions options;
  options.causal = causal;
  if (window > 0) options.window = {window - 1, causal ? -1 : window - 1};
  options.alignment = Alignment::top_left;
  options.key_length = inputs.key_length;
  options.mask = inputs.mask;
  options.dropout = dropout;
  return options;
}

void keep_trace(AttentionTrace* trace, const Heads& q, const Heads& k, const Array& lse, AttentionOptions options,
                const Value& bias) {
  if (!trace) return;
  options.dropout = 0;
  trace->q = q;
  trace->k = k;
  trace->lse = lse;
  trace->bias = bias ? bias.data() : Array();
  if (bias) {
    const std::vector<int64_t>& shape = bias.shape();
    options.bias = {bias.data().data(), bias.dtype(), {shape[0], shape[1], shape[2], shape[3]}};
  }
  trace->options = options;
}

Value attend(Tape& tape, const Heads& q, const Heads& k, const Heads& v, const AttentionOptions& options,
             const Value& bias, AttentionTrace* trace) {
  Array lse;
  const Value out = autograd::attention(tape, q, k, v, options, bias, trace ? &lse : nullptr);
  keep_trace(trace, q, k, lse, options, bias);
  return out;
}

/// Keys and values of x [B, L, ..] join the cache, and x's queries see all that is cached.
Value attend_cached(Tape& tape, const Heads& q, const Heads& k, const Heads& v, const AttentionInputs& inputs,
                    AttentionOptions options) {
  if (tape.recording() || inputs.bias || inputs.mask || inputs.memory || inputs.trace)
    throw Error("attention layer", {"a cache serves inference alone, without mask, bias, second sequence or trace"});
  const int64_t B = q.array.shape()[0], L = q.array.shape()[1];
  const View<4> queries = q.view(), keys = k.view(), values = v.view();
  const auto sequence = [](View<4> all, int64_t b) {
    all.data = static_cast<char*>(all.data) + b * all.stride[0] * size_of(all.dtype);
    all.size[0] = 1;
    return all;
  };
  std::vector<int64_t> cu_query(static_cast<size_t>(B) + 1, 0);
  for (int64_t b = 0; b < B; ++b) {
    inputs.cache.cache->append(inputs.cache.sequences[b], sequence(keys, b), sequence(values, b));
    cu_query[b + 1] = cu_query[b] + L;
  }
  // [B, H, L, D] inside [B, L, C] is [1, H, B L, D] with the same strides.
  const auto packed = [&](View<4> x) {
    return View<4>(x.data, x.dtype, {1, x.size[1], B * L, x.size[3]}, {0, x.stride[1], x.stride[2], 1});
  };
  const Array out = tape.array(q.array.dtype(), {B, L, q.heads * v.width});
  const Heads out_heads{{}, 0, q.heads, v.width};
  options.alignment = Alignment::bottom_right;
  options.key_length = {};
  options.dropout = 0;
  inputs.cache.cache->attend(inputs.cache.sequences, cu_query, packed(queries), packed(out_heads.view_of(out)), {},
                             options);
  return tape.result("attention", out, {});
}

}  // namespace

std::vector<int64_t> CacheSlot::positions(int64_t B, int64_t L) const {
  std::vector<int64_t> all(static_cast<size_t>(B * L));
  for (int64_t b = 0; b < B; ++b)
    std::iota(all.begin() + b * L, all.begin() + (b + 1) * L, cache ? cache->length(sequences[b]) : 0);
  return all;
}

Array AttentionTrace::weights() const {
  const int64_t B = q.array.shape()[0], Lq = q.array.shape()[1], Lk = k.array.shape()[1];
  const DType type = q.array.dtype() == DType::float64 ? DType::float64 : DType::float32;
  Array result(type, {B, q.heads, Lq, Lk});
  attention_weights(q.view(), k.view(), View<3>(lse.data(), lse.dtype(), {B, q.heads, Lq}),
                    View<4>(result.data(), type, {B, q.heads, Lq, Lk}), 0, 0, options);
  return result;
}

// ------------------------------------------------------------------------------------------------------- single head

SelfAttention::SelfAttention(const Scope& scope, int64_t width, const SelfAttentionOptions& options_)
    : query(scope / "query", width, options_.key_width ? options_.key_width : width, {.bias = options_.bias}),
      key(scope / "key", width, options_.key_width ? options_.key_width : width, {.bias = options_.bias}),
      value(scope / "value", width, options_.value_width ? options_.value_width : width, {.bias = options_.bias}),
      options(options_) {}

Value SelfAttention::operator()(Tape& tape, const Value& x, const AttentionInputs& inputs) const {
  const Tape::Scope scope(tape, "attention");
  const Value& source = inputs.memory ? *inputs.memory : x;
  const auto whole = [](const Value& array) { return Heads{array, 0, 1, array.data().width()}; };
  const Heads q = whole(query(tape, x)), k = whole(key(tape, source)), v = whole(value(tape, source));
  const AttentionOptions attend_options = options_of(inputs, options.causal, 0, options.dropout);
  if (inputs.cache.cache) return attend_cached(tape, q, k, v, inputs, attend_options);
  return attend(tape, q, k, v, attend_options, inputs.bias, inputs.trace);
}

// --------------------------------------------------------------------------------------------------------- many heads

MultiHeadAttention::MultiHeadAttention(const Scope& scope, int64_t width, const MultiHeadAttentionOptions& options)
    : options_(options) {
  if (options_.kv_heads == 0) options_.kv_heads = options_.heads;
  if (options_.head_width == 0) options_.head_width = width / options_.heads;
  const int64_t H = options_.heads, Hk = options_.kv_heads, D = options_.head_width;
  if (options_.memory_width) {
    query = Linear(scope / "query", width, H * D, {.bias = options_.bias});
    key_value = Linear(scope / "key_value", options_.memory_width, 2 * Hk * D, {.bias = options_.bias});
  } else {
    qkv = Linear(scope / "qkv", width, (H + 2 * Hk) * D, {.bias = options_.bias});
  }
  output = Linear(scope / "output", H * D, width, {.bias = options_.output_bias, .residual = true});
  if (options_.position == Position::relative) distance_bias_ = scope.weight("distance_bias", {options_.buckets, H});
  if (options_.position == Position::alibi)
    for (int64_t h = 0; h < H; ++h)
      slopes_.push_back(static_cast<float>(std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(H))));
}

Value MultiHeadAttention::operator()(Tape& tape, const Value& x, const AttentionInputs& inputs) const {
  const Tape::Scope scope(tape, "attention");
  const int64_t H = options_.heads, Hk = options_.kv_heads, D = options_.head_width;
  const int64_t B = x.shape()[0], L = x.shape()[1];
  Heads q, k, v;
  if (options_.memory_width) {
    if (!inputs.memory) throw Error("attention layer", {"cross-attention needs a second sequence"});
    const Value from_x = query(tape, x), from_memory = key_value(tape, *inputs.memory);
    q = {from_x, 0, H, D};
    k = {from_memory, 0, Hk, D};
    v = {from_memory, Hk * D, Hk, D};
  } else {
    Value all = qkv(tape, x);
    if (options_.position == Position::rope)
      all = autograd::rope(tape, all, H + Hk, D, inputs.cache.positions(B, L), options_.rope);
    q = {all, 0, H, D};
    k = {all, H * D, Hk, D};
    v = {all, (H + Hk) * D, Hk, D};
  }
  AttentionOptions options = options_of(inputs, options_.causal, options_.window, options_.dropout);
  options.alibi_slopes = slopes_;
  Value bias = inputs.bias;
  if (distance_bias_) {
    const Value distances = relative_bias(tape, L, k.array.shape()[1]);
    bias = bias ? add(tape, bias, distances) : distances;
  }
  if (!inputs.cache.cache) return output(tape, attend(tape, q, k, v, options, bias, inputs.trace));
  if (distance_bias_) throw Error("attention layer", {"relative positions do not work with a cache"});
  return output(tape, attend_cached(tape, q, k, v, inputs, options));
}

int64_t relative_bucket(int64_t key_minus_query, bool bidirectional, int64_t buckets, int64_t max_distance) {
  int64_t first = 0, distance = -key_minus_query;
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

/// [1, H, queries, keys] from the table [buckets, H]: looked up as [queries * keys, H], then seen with heads first.
Value MultiHeadAttention::relative_bias(Tape& tape, int64_t queries, int64_t keys) const {
  std::vector<int64_t> ids(static_cast<size_t>(queries * keys));
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t j = 0; j < keys; ++j)
      ids[i * keys + j] = relative_bucket(j - i, !options_.causal, options_.buckets, options_.max_distance);
  return heads_first(tape, embedding(tape, std::move(ids), distance_bias_, {queries, keys}));
}

}  // namespace attn::nn
