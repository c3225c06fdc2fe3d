// Models on a streaming cache: positions inside the cache, memory, generation beyond the context.
#include <algorithm>
#include <set>

#include "attn/generate_text.h"
#include "support/errors.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using namespace models;

constexpr Streaming kStreaming = {.sink_tokens = 3, .window = 8};
constexpr int64_t kVocabulary = 13;

Config tiny(const std::string& name, PositionEncoding positions, int64_t layers = 2) {
  Config config = family(name);
  config.vocab_size = kVocabulary;
  config.context = 16;
  config.embed_dim = 16;
  config.layers = layers;
  config.heads = 4;
  config.positions = positions;
  return config;
}

std::vector<int64_t> random_tokens(int64_t count, uint64_t seed) {
  Random random(seed);
  std::vector<int64_t> tokens;
  for (int64_t n = 0; n < count; ++n) tokens.push_back(random.below(kVocabulary));
  return tokens;
}

Batch batch_of(std::span<const int64_t> tokens) {
  return {.tokens = {tokens.begin(), tokens.end()}, .sequences = 1, .length = static_cast<int64_t>(tokens.size())};
}

/// Hidden states of all tokens, in calls of `count` tokens.
Values streamed(const Model& model, std::span<const int64_t> tokens, size_t count, const Streaming& streaming) {
  ModelCache cache = model.new_cache(1, streaming);
  Values all;
  for (size_t at = 0; at < tokens.size(); at += count) {
    Tape tape({.batch_invariant = true});
    const Batch some = batch_of(tokens.subspan(at, std::min(count, tokens.size() - at)));
    const Values rows = numbers(model.hidden(tape, some, {.cache = &cache}).data());
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

const PositionEncoding kAll[] = {
    PositionEncoding::none,  PositionEncoding::learned, PositionEncoding::sinusoidal,      PositionEncoding::relative,
    PositionEncoding::alibi, PositionEncoding::rope,    PositionEncoding::learned_relative};

/// A model whose vocabulary has an entry for each token and position needs no positions: that of (token, p) is the sum.
TEST(StreamingModels, ALearnedPositionIsThatOfTheCache) {
  for (const PositionEncoding positions : {PositionEncoding::learned, PositionEncoding::sinusoidal}) {
    Model model(tiny("gpt", positions, 1), nn::Precision::float64, 3);
    stir(model.parameters(), 0.5);
    Config pairs = tiny("gpt", PositionEncoding::none, 1);
    pairs.vocab_size = kVocabulary * kStreaming.kept();
    Model reference(pairs, nn::Precision::float64, 3);
    const int64_t C = pairs.embed_dim;
    const Values sinusoids = numbers(nn::sinusoids(kStreaming.kept(), C, DType::float64));
    for (const nn::Parameter& parameter : reference.parameters().all()) {
      const auto* source = model.parameters().find(parameter.name);
      ASSERT_TRUE(source) << parameter.name;
      auto* to = static_cast<double*>(parameter.master.data());
      const auto* from = static_cast<const double*>(source->master.data());
      if (parameter.master.shape() == source->master.shape()) {
        std::copy_n(from, parameter.master.count(), to);
        continue;
      }
      const auto* learned = positions == PositionEncoding::learned
                                ? static_cast<const double*>(model.parameters().find("positions.weight")->master.data())
                                : sinusoids.data();
      const double scale = positions == PositionEncoding::learned ? 1 : 4;  // sqrt(C), embedding_scale's default
      for (int64_t token = 0; token < kVocabulary; ++token)
        for (int64_t p = 0; p < kStreaming.kept(); ++p)
          for (int64_t c = 0; c < C; ++c)
            to[(token * kStreaming.kept() + p) * C + c] = scale * from[token * C + c] + learned[p * C + c];
    }
    reference.parameters().refresh();
    const std::vector<int64_t> tokens = random_tokens(40, 7);
    for (const size_t count : {size_t{1}, size_t{7}, tokens.size()}) {
      const Values all = streamed(model, tokens, count, kStreaming);
      for (int64_t t = 0; t < 40; ++t) {
        std::vector<int64_t> ids;
        for (int64_t j = 0; j <= t; ++j)
          if (t < kStreaming.kept() || j < kStreaming.sink_tokens || j > t - kStreaming.window)
            ids.push_back(tokens[static_cast<size_t>(j)] * kStreaming.kept() + std::min(j, kStreaming.kept() - 1));
        Tape tape;
        const Values rows = numbers(reference.hidden(tape, batch_of(ids)).data());
        for (int64_t c = 0; c < C; ++c)
          EXPECT_NEAR(all[static_cast<size_t>(t * C + c)], rows[rows.size() - static_cast<size_t>(C - c)],
                      weight_bound(max_abs(rows), DType::float64))
              << "token " << t << " in calls of " << count;
      }
    }
  }
}

/// However a text is cut into calls, and while it fits bit for bit as with the ordinary cache.
TEST(StreamingModels, CallsOfAnyLengthHaveTheSameBits) {
  for (const PositionEncoding positions : kAll) {
    Model model(tiny("gpt", positions), nn::Precision::float32, 3);
    stir(model.parameters(), 0.5);
    const std::vector<int64_t> tokens = random_tokens(40, 8), few = random_tokens(11, 9);
    const Values whole = streamed(model, tokens, 40, kStreaming);
    EXPECT_EQ(streamed(model, tokens, 1, kStreaming), whole) << static_cast<int>(positions);
    EXPECT_EQ(streamed(model, tokens, 9, kStreaming), whole) << static_cast<int>(positions);
    for (const size_t count : {1, 4, 11})
      EXPECT_EQ(streamed(model, few, count, kStreaming), streamed(model, few, count, {}))
          << static_cast<int>(positions);
  }
}

TEST(StreamingModels, MemoryIsConstant) {
  const Model model(tiny("gpt", PositionEncoding::learned), nn::Precision::float32, 3);
  ModelCache cache = model.new_cache(1, kStreaming);
  int64_t largest = 0;
  const auto memory = autograd::Tape().memory();
  for (int64_t t = 0; t < 10000; ++t) {
    Tape tape({}, memory);
    model.hidden(tape, batch_of(std::vector<int64_t>{t % kVocabulary}), {.cache = &cache});
    largest = std::max(largest, cache.bytes());
  }
  EXPECT_EQ(cache.length(), 10000);
  const int64_t page = 64 * 16 * 2 * 4;  // tokens, width, keys and values, bytes
  EXPECT_LE(largest, 2 * 3 * page) << "layers, pages";
  cache.truncate(0);
  EXPECT_EQ(cache.bytes(), 0);
}

TEST(StreamingModels, GenerationHasNoLimit) {
  const std::vector<int64_t> prompt = {1, 2, 3};
  for (const PositionEncoding positions : kAll) {
    Model model(tiny("gpt", positions), nn::Precision::float32, 3);
    stir(model.parameters(), 0.5);
    generate::GenerateOptions options;
    options.sampling.temperature = 0.7;
    options.max_new_tokens = 200;  // the context is 16
    options.streaming = kStreaming;
    const generate::Generated text = generate::generate(model, prompt, options);
    EXPECT_EQ(text.tokens.size(), 200u);
    EXPECT_EQ(text.forgotten, 0);
    EXPECT_GT(std::set<int64_t>(text.tokens.begin(), text.tokens.end()).size(), 1u);
    const std::vector<int64_t> longer(text.tokens.begin(), text.tokens.begin() + 60);
    options.max_new_tokens = 3;
    EXPECT_EQ(generate::generate(model, longer, options).tokens.size(), 3u) << "of a prompt beyond the context";
    options.max_new_tokens = 8;  // nothing is evicted
    const std::vector<int64_t> same = generate::generate(model, prompt, options).tokens;
    options.streaming = {};
    EXPECT_EQ(generate::generate(model, prompt, options).tokens, same);
  }
}

TEST(StreamingModels, BeamsAndEncodersHaveNoLimit) {
  Config config = tiny("seq2seq", PositionEncoding::learned);
  config.encoder_layers = 1;
  const std::vector<int64_t> prompt = {1, 2, 3};
  for (const Config& each : {tiny("gpt", PositionEncoding::learned), config}) {
    Model model(each, nn::Precision::float32, 3);
    stir(model.parameters(), 0.5);
    generate::GenerateOptions options;
    if (each.encoder_layers) options.decoder_start_token_ids = {1};
    options.sampling.temperature = 0;
    options.max_new_tokens = 50;
    for (const int64_t beams : {1, 3}) {
      options.beam.num_beams = beams;
      options.streaming = kStreaming;
      EXPECT_EQ(generate::generate(model, prompt, options).tokens.size(), 50u);
      options.streaming = {};
      EXPECT_EQ(generate::generate(model, prompt, options).tokens.size() < 50, beams > 1 || each.encoder_layers > 0);
    }
  }
}

TEST(StreamingModels, WrongOptionsAreErrors) {
  using Reasons = std::vector<std::string>;
  const Model model(tiny("gpt", PositionEncoding::learned), nn::Precision::float32);
  const std::string context =
      "sink tokens and window are 17 tokens, must be at most the context of 16, whose positions "
      "are learned";
  EXPECT_EQ(reasons_of([&] { model.new_cache(1, {4, 13}); }), Reasons{context});
  EXPECT_EQ(reasons_of([&] {
              model.new_cache(1, {4, 0});
            }),
            Reasons{"window is 0, must be in [1, 2^40] with sink_tokens = 4"});
  EXPECT_EQ(reasons_of([&] {
              Model(tiny("gpt", PositionEncoding::rope), nn::Precision::float32).new_cache(1, {4, 99});
            }),
            Reasons());
  const auto generate_with = [&](const std::function<void(generate::GenerateOptions&)>& change) {
    generate::GenerateOptions options = {.max_new_tokens = 1, .streaming = kStreaming};
    change(options);
    return reasons_of([&] { generate::generate(model, std::vector<int64_t>{1}, options); });
  };
  EXPECT_EQ(generate_with([](auto&) {}), Reasons());
  EXPECT_EQ(generate_with([](auto& o) { o.streaming = {4, 13}; }), Reasons{context});
  EXPECT_EQ(generate_with([](auto& o) { o.cache = false; }), Reasons{"streaming needs the cache"});
  EXPECT_EQ(generate_with([](auto& o) { o.context = 8; }),
            Reasons{"context is 8, must be 0 with streaming, whose window limits what the model sees"});
  TextRecorder recorder;
  EXPECT_EQ(generate_with([&](auto& o) { o.recorder = &recorder; }),
            Reasons{"streaming does not support a recorder of self-attention: keys that it needs are evicted"});
  const std::string traced =
      "traces and a recorder of self-attention need a cache that keeps all tokens, not a streaming one";
  ModelCache cache = model.new_cache(1, kStreaming);
  std::vector<nn::AttentionTrace> traces;
  const Batch batch = batch_of(std::vector<int64_t>(20, 1));
  Tape tape;
  EXPECT_EQ(reasons_of([&] { model.hidden(tape, batch, {.cache = &cache, .traces = &traces}); }), Reasons{traced});
  EXPECT_EQ(reasons_of([&] { model.hidden(tape, batch, {.cache = &cache, .recorder = &recorder}); }), Reasons{traced});
  model.hidden(tape, batch, {.cache = &cache});
  EXPECT_EQ(reasons_of([&] { cache.truncate(7); }), Reasons{"length is 7, must be 0 or 20: tokens have been evicted"});
}

}  // namespace
}  // namespace attn::test
