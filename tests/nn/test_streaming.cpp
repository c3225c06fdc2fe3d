// Attention layers on a streaming cache: each token against the layer on the tokens that are kept, at positions 0 .. n
// - 1.
#include <cmath>

#include "attn/nn.h"
#include "support/errors.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using namespace nn;

constexpr int64_t kB = 2, kTokens = 19, kC = 8;
constexpr Streaming kStreaming = {.sink_tokens = 2, .window = 5};

MultiHeadAttentionOptions options_for(AttentionPositions position) {
  MultiHeadAttentionOptions options = {.heads = 4, .kv_heads = 2, .head_dim = 6, .causal = true};
  options.query_key_norm = QueryKeyNorm::heads;
  options.position = position;
  options.rope.rotary_dim = 4;
  options.rope.theta = 20;
  options.buckets = 4;
  options.max_distance = 6;
  return options;
}

/// Rows `tokens` of every sequence of x.
Value rows_of(const Value& x, const std::vector<int64_t>& tokens) {
  const int64_t B = x.shape()[0], L = x.shape()[1], bytes = x.shape()[2] * size_of(x.dtype());
  const auto n = static_cast<int64_t>(tokens.size());
  const attn::Array rows(x.dtype(), {B, n, x.shape()[2]});
  for (int64_t b = 0; b < B; ++b)
    for (int64_t r = 0; r < n; ++r)
      std::copy_n(static_cast<const char*>(x.data().data()) + (b * L + tokens[static_cast<size_t>(r)]) * bytes, bytes,
                  static_cast<char*>(rows.data()) + (b * n + r) * bytes);
  return Value(rows);
}

std::vector<int64_t> range(int64_t first, int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  for (int64_t n = 0; n < count; ++n) all[static_cast<size_t>(n)] = first + n;
  return all;
}

/// The output of token t [B, C], of the layer on the tokens that are kept without a cache.
Values recomputed(const MultiHeadAttention& layer, const Value& x, int64_t t) {
  std::vector<int64_t> tokens = range(0, t + 1);
  if (t >= kStreaming.kept()) tokens.erase(tokens.begin() + kStreaming.sink_tokens, tokens.end() - kStreaming.window);
  Tape tape;
  const Value out = layer(tape, rows_of(x, tokens));
  return numbers(rows_of(out, {static_cast<int64_t>(tokens.size()) - 1}).data());
}

KVCache cache_for(const MultiHeadAttentionOptions& options, DType dtype, const Streaming& streaming) {
  return KVCache({.kv_heads = options.kv_heads,
                  .head_dim = options.head_dim,
                  .dtype = dtype,
                  .page_size = 4,
                  .streaming = streaming});
}

/// The outputs of all tokens [kTokens][B, C], in calls of so many tokens; the last number repeats.
std::vector<Values> streamed(const MultiHeadAttention& layer, KVCache& cache, const Value& x,
                             const std::vector<int64_t>& calls) {
  const std::vector<int64_t> sequences = {cache.add(), cache.add()};
  std::vector<Values> all;
  for (size_t n = 0; all.size() < kTokens; ++n) {
    const auto first = static_cast<int64_t>(all.size());
    const int64_t count = std::min(calls[std::min(n, calls.size() - 1)], kTokens - first);
    AttentionInputs inputs;
    inputs.cache = {&cache, sequences};
    Tape tape({.batch_invariant = true});
    const Value out = layer(tape, rows_of(x, range(first, count)), inputs);
    for (int64_t t = 0; t < count; ++t) all.push_back(numbers(rows_of(out, {t}).data()));
  }
  return all;
}

const AttentionPositions kPositions[] = {AttentionPositions::none, AttentionPositions::rope, AttentionPositions::alibi,
                                         AttentionPositions::relative};

TEST(StreamingLayers, ATokenIsComputedFromTheKeptTokens) {
  for (const AttentionPositions position : kPositions)
    for (const int64_t window : {0, 5}) {  // of the layer, in cache positions
      MultiHeadAttentionOptions options = options_for(position);
      options.window = window;
      nn::Parameters parameters({.initialization = Initialization::xavier, .precision = Precision::float64, .seed = 3});
      const MultiHeadAttention layer(Scope(parameters) / "attention", kC, options);
      stir(parameters, 1);
      const Value x(random_array(DType::float64, {kB, kTokens, kC}, 11));
      for (const std::vector<int64_t>& calls : std::vector<std::vector<int64_t>>{{1}, {3, 6, 1, 4, 1}, {kTokens}}) {
        KVCache cache = cache_for(options, DType::float64, kStreaming);
        const std::vector<Values> all = streamed(layer, cache, x, calls);
        for (int64_t t = 0; t < kTokens; ++t) {
          const Values expected = recomputed(layer, x, t);
          EXPECT_LE(max_abs_error(all[static_cast<size_t>(t)], expected),
                    weight_bound(max_abs(expected), DType::float64))
              << "position " << static_cast<int>(position) << ", window " << window << ", token " << t
              << " in calls of " << calls[0];
        }
      }
    }
}

/// The bfloat16 layer without a cache has an error, too; twice of it is allowed.
TEST(StreamingLayers, InEveryPrecision) {
  const MultiHeadAttentionOptions options = options_for(AttentionPositions::rope);
  const auto made = [&](nn::Parameters& parameters) {
    const MultiHeadAttention layer(Scope(parameters) / "attention", kC, options);
    stir(parameters, 1);
    return layer;
  };
  nn::Parameters exact({.initialization = Initialization::xavier, .precision = Precision::float64, .seed = 3});
  const MultiHeadAttention oracle = made(exact);
  for (const Precision precision : {Precision::float32, Precision::bfloat16, Precision::float16}) {
    nn::Parameters parameters({.initialization = Initialization::xavier, .precision = precision, .seed = 3});
    const MultiHeadAttention layer = made(parameters);
    const DType dtype = parameters.dtype();
    const Value x(random_array(dtype, {kB, kTokens, kC}, 11));
    attn::Array wide(DType::float64, x.shape());
    ops::convert(x.data().flat(), wide.flat());
    KVCache cache = cache_for(options, dtype, kStreaming);
    const std::vector<Values> all = streamed(layer, cache, x, {1});
    Values streaming_result, plain, expected;
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto add = [](Values& to, const Values& more) { to.insert(to.end(), more.begin(), more.end()); };
      add(streaming_result, all[static_cast<size_t>(t)]);
      add(plain, recomputed(layer, x, t));
      add(expected, recomputed(oracle, Value(wide), t));
    }
    EXPECT_LE(max_abs_error(streaming_result, expected), naive_factor(kTokens) * max_abs_error(plain, expected) +
                                                             rounding_bound(dtype, max_abs(expected), kRoundings))
        << name_of(dtype);
  }
}

TEST(StreamingLayers, WithoutEvictionTheBitsAreThoseOfTheOrdinaryCache) {
  for (const AttentionPositions position : kPositions) {
    const MultiHeadAttentionOptions options = options_for(position);
    nn::Parameters parameters({.initialization = Initialization::xavier, .seed = 3});
    const MultiHeadAttention layer(Scope(parameters) / "attention", kC, options);
    stir(parameters, 1);
    const Value x(random_array(DType::float32, {kB, kTokens, kC}, 11));
    KVCache keeps = cache_for(options, DType::float32, {});
    KVCache streams = cache_for(options, DType::float32, {.sink_tokens = 4, .window = kTokens - 4});
    EXPECT_EQ(streamed(layer, streams, x, {6, 1, 3, 1}), streamed(layer, keeps, x, {6, 1, 3, 1}))
        << static_cast<int>(position);
  }
}

/// Angles are those of cache positions however long the text is: rotations by text positions must not add up errors.
TEST(StreamingLayers, RotationsStayExactFarIntoAText) {
  const MultiHeadAttentionOptions options = options_for(AttentionPositions::rope);
  nn::Parameters parameters({.initialization = Initialization::xavier, .precision = Precision::float64, .seed = 3});
  const MultiHeadAttention layer(Scope(parameters) / "attention", kC, options);
  stir(parameters, 1);
  const Value x(random_array(DType::float64, {kB, kTokens, kC}, 11));
  KVCache cache = cache_for(options, DType::float64, kStreaming);
  const std::vector<int64_t> sequences = {cache.add(), cache.add()};
  AttentionInputs inputs;
  inputs.cache = {&cache, sequences};
  Value out;
  constexpr int64_t kFar = 100 * kTokens;
  for (int64_t t = 0; t < kFar; ++t) {
    Tape tape;
    out = layer(tape, rows_of(x, {t % kTokens}), inputs);
  }
  const Values expected = recomputed(layer, x, kTokens - 1);
  EXPECT_LE(max_abs_error(numbers(out.data()), expected),
            weight_bound(max_abs(expected), DType::float64) + rounding_bound(DType::float64, kFar, kRoundings))
      << "an angle of p radians is known to p roundings";
}

TEST(StreamingLayers, ATraceIsRefused) {
  const MultiHeadAttentionOptions options = options_for(AttentionPositions::none);
  nn::Parameters parameters({});
  const MultiHeadAttention layer(Scope(parameters) / "attention", kC, options);
  KVCache cache = cache_for(options, DType::float32, kStreaming);
  const std::vector<int64_t> sequences = {cache.add()};
  AttentionTrace trace;
  AttentionInputs inputs;
  inputs.cache = {&cache, sequences};
  inputs.trace = &trace;
  Tape tape;
  EXPECT_EQ(reasons_of([&] {
              layer(tape, Value(attn::Array(DType::float32, {1, 3, kC})), inputs);
            }),
            std::vector<std::string>{"a trace needs a cache that keeps all tokens, not a streaming one"});
  EXPECT_EQ(cache.length(sequences[0]), 0);
}

}  // namespace
}  // namespace attn::test
