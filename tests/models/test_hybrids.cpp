// Models whose layers mix tokens by other means than attention: gradients in float64 against differences, generation
// against the whole text, packed and padded batches, what they cost, errors.
#include <cmath>

#include "attn/autograd_operations.h"
#include "attn/generate.h"
#include "attn/models.h"
#include "support/errors.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using namespace models;

constexpr int64_t kVocabulary = 13, kContext = 96;

Config hybrid(const char* mixer, const char* every = "") {
  Config config = family("llama");
  config.vocab_size = kVocabulary;
  config.context = kContext;
  config.embed_dim = 16;
  config.layers = 3;
  config.heads = 4;
  config.hidden_dim = 24;
  set_mixers(config, mixer, every);
  return config;
}

/// All mixers that have names, with attention and without, as Qwen3-Next, Mamba 2 and LFM2 arrange them.
std::vector<std::pair<std::string, Config>> hybrids() {
  std::vector<std::pair<std::string, Config>> all;
  for (const char* mixer : {"gated_delta", "kimi_delta", "delta", "gla", "retention", "mamba2", "elu", "performer",
                            "convolution:4", "lstm", "lstm:5", "moba:3", "nsa:3"})
    all.emplace_back(mixer, hybrid(mixer));
  all.emplace_back("gated_delta, every second full", hybrid("gated_delta", "2:full"));
  all.back().second.attention_gate = true;
  all.back().second.linear.value_heads = 8;
  all.back().second.linear.head_dim = 3;
  all.emplace_back("window:5, every third retention", hybrid("window:5", "3:retention"));
  all.emplace_back("moba:4, every second full", hybrid("moba:4", "2:full"));
  all.back().second.kv_heads = 2;
  all.back().second.rotary_dim = 2;
  all.back().second.moba.count = 2;
  all.emplace_back("nsa:4, every third full", hybrid("nsa:4", "3:full"));
  all.back().second.kv_heads = 2;
  all.back().second.nsa.count = 3;
  all.back().second.nsa.window = 5;
  all.emplace_back("Mamba 2 without feed-forward", hybrid("mamba2"));
  all.back().second.feed_forward = false;
  all.back().second.positions = PositionEncoding::none;
  return all;
}

Batch random_batch(int64_t sequences, int64_t length, uint64_t seed) {
  Batch batch{.sequences = sequences, .length = length};
  Random random(seed);
  for (int64_t n = 0; n < sequences * length; ++n) {
    batch.tokens.push_back(random.below(kVocabulary));
    batch.targets.push_back(random.below(kVocabulary));
  }
  return batch;
}

/// The tokens [first, end) of every sequence.
Batch part_of(const Batch& batch, int64_t first, int64_t end) {
  Batch part{.sequences = batch.sequences, .length = end - first};
  for (int64_t b = 0; b < batch.sequences; ++b)
    part.tokens.insert(part.tokens.end(), batch.tokens.begin() + b * batch.length + first,
                       batch.tokens.begin() + b * batch.length + end);
  return part;
}

Model stirred(const Config& config, nn::Precision precision = nn::Precision::float64) {
  Model model(config, precision, 3);
  stir(model.parameters());
  return model;
}

TEST(Hybrids, HaveTheGradientsOfDifferences) {
  for (const auto& [name, config] : hybrids()) {
    Model model = stirred(config);
    const Batch batch = random_batch(2, 5, 7);
    expect_gradients(
        name, leaves_of(model.parameters(), Value()), [&](Tape& tape) { return model.loss(tape, batch); }, 3);
  }
}

TEST(Hybrids, RecomputedBlocksHaveTheSameGradients) {
  Model model = stirred(hybrid("gated_delta", "2:full"));
  const Batch batch = random_batch(2, 5, 7);
  std::vector<Values> gradients[2];
  for (const bool recompute : {false, true}) {
    model.parameters().clear_gradients();
    Tape tape({.record = true, .training = true});
    tape.backward(model.loss(tape, batch, {.recompute = recompute}));
    for (const nn::Parameter& parameter : model.parameters().all())
      gradients[recompute].push_back(gradient_of(parameter.value));
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

/// A prompt over the border of a chunk, then token by token.
TEST(Hybrids, GenerateWhatTheWholeTextGives) {
  for (const auto& [name, config] : hybrids())
    for (const nn::Precision precision : {nn::Precision::float64, nn::Precision::float32}) {
      const Model model = stirred(config, precision);
      const Batch batch = random_batch(2, 72, 5);
      Tape tape;
      const Values whole = numbers(model.forward(tape, batch).data());
      ModelCache cache = model.new_cache(2);
      const double bound = rounding_bound(model.parameters().dtype(), max_abs(whole), 1000);
      for (int64_t first = 0, end = 67; first < 72; first = end, end = first + 1) {
        const Values logits = numbers(model.forward(tape, part_of(batch, first, end), {.cache = &cache}).data());
        const int64_t count = (end - first) * kVocabulary;
        for (int64_t n = 0; n < 2 * count; ++n)
          ASSERT_LE(std::abs(logits[n] - whole[(n / count * 72 + first) * kVocabulary + n % count]), bound)
              << name << " at " << first;
        EXPECT_EQ(cache.length(), end);
      }
    }
}

TEST(Hybrids, KeepPackedAndPaddedSequencesApart) {
  for (const auto& [name, config] : hybrids()) {
    const Model model = stirred(config);
    const Batch both = random_batch(2, 7, 5);
    Tape tape;
    const Values rows = numbers(model.hidden(tape, both).data());
    Batch packed = both;
    packed.length = 14;
    packed.cu_seqlens = {0, 7, 14};
    const double bound = rounding_bound(DType::float64, max_abs(rows), 100);
    EXPECT_LE(max_abs_error(numbers(model.hidden(tape, packed).data()), rows), bound) << name;
    Batch padded = both;
    padded.lengths = {7, 4};
    for (int64_t n = 7 + 4; n < 14; ++n) padded.tokens[n] = 0;
    const Values shorter = numbers(model.hidden(tape, padded).data());
    for (int64_t n = 0; n < (7 + 4) * config.embed_dim; ++n) ASSERT_LE(std::abs(shorter[n] - rows[n]), bound) << name;
  }
}

TEST(Hybrids, CachesSelectSequences) {
  const Model model = stirred(hybrid("gated_delta", "2:full"));
  const Batch batch = random_batch(3, 9, 5);
  Tape tape;
  ModelCache cache = model.new_cache(3);
  model.forward(tape, part_of(batch, 0, 8), {.cache = &cache});
  const int64_t chosen[] = {2, 0};
  cache.select(chosen);
  Batch next{.tokens = {batch.tokens[2 * 9 + 8], batch.tokens[8]}, .sequences = 2, .length = 1};
  const Values logits = numbers(model.forward(tape, next, {.cache = &cache}).data());
  const Values whole = numbers(model.forward(tape, batch).data());
  for (int64_t n = 0; n < 2; ++n)
    for (int64_t v = 0; v < kVocabulary; ++v)
      EXPECT_LE(std::abs(logits[n * kVocabulary + v] - whole[(chosen[n] * 9 + 8) * kVocabulary + v]),
                rounding_bound(DType::float64, max_abs(whole), 100));
}

TEST(Hybrids, TokensOfLinearAttentionHaveOtherBitsThanChunks) {
  const Model model = stirred(hybrid("gla"));
  ModelCache cache = model.new_cache();
  Tape tape({.batch_invariant = true});
  EXPECT_EQ(error_of([&] { model.forward(tape, random_batch(1, 5, 5), {.cache = &cache}); }),
            "[model] batch_invariant is not supported with a cache and linear attention: a token alone is computed in "
            "another order than in a chunk");
}

/// A state cannot forget single tokens; without any tokens it begins again.
TEST(Hybrids, StatesGoBackToTheBeginningOnly) {
  const Model model = stirred(hybrid("gated_delta", "2:full"));
  const Batch batch = random_batch(1, 5, 5);
  Tape tape;
  ModelCache cache = model.new_cache();
  const Values once = numbers(model.forward(tape, batch, {.cache = &cache}).data());
  EXPECT_EQ(error_of([&] { cache.truncate(3); }),
            "[ModelCache] length is 3, must be 0 or 5: the state of a mixer cannot go back to an earlier token");
  cache.truncate(5);
  EXPECT_EQ(cache.length(), 5);
  cache.truncate(0);
  EXPECT_EQ(numbers(model.forward(tape, batch, {.cache = &cache}).data()), once);
}

/// Greedy generation with the cache writes what the whole text's largest logits say.
TEST(Hybrids, WriteTheTokensOfTheWholeText) {
  const Model model = stirred(hybrid("gated_delta", "2:full"));
  std::vector<int64_t> text = {1, 2, 3, 4};
  generate::GenerateOptions options;
  options.max_new_tokens = 12;
  options.sampling.temperature = 0;
  const std::vector<int64_t> written = generate::generate(model, text, options).tokens;
  for (int n = 0; n < 12; ++n) {
    Tape tape;
    const Batch batch{.tokens = text, .sequences = 1, .length = std::ssize(text)};
    const Values logits = numbers(model.forward(tape, batch, {.last_only = true}).data());
    text.push_back(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  EXPECT_EQ(written, std::vector<int64_t>(text.begin() + 4, text.end()));
}

TEST(Hybrids, StatesDoNotGrow) {
  const Config config = hybrid("mamba2", "3:full");
  const Model model = stirred(config, nn::Precision::float32);
  ModelCache cache = model.new_cache();
  Tape tape;
  const int64_t states = state_bytes(config, nn::Precision::float32);
  // Of two layers: 4 heads of 64 x 8 numbers, and 3 tokens of 2 x 64 + 32 columns.
  EXPECT_EQ(states, 2 * 4 * (4 * 64 * 8 + 3 * (2 * 64 + 32)));
  EXPECT_EQ(cache.bytes(), states);
  EXPECT_EQ(cache_bytes_per_token(config, DType::float32), 2 * 16 * 4);  // of the one layer with attention
  EXPECT_EQ(cache_bytes_per_token(hybrid("mamba2"), DType::float32), 0);
  model.forward(tape, random_batch(1, 64, 5), {.cache = &cache});
  EXPECT_EQ(cache.bytes(), states + 64 * 2 * 16 * 4);  // one page of keys and values
}

TEST(Hybrids, FlopsCountTheState) {
  const Config config = hybrid("gated_delta");
  double products = 16 * kVocabulary;  // the head is tied
  for (const ParameterShape& parameter : parameter_shapes(config))
    if (parameter.decay && parameter.name.starts_with("blocks.")) products += static_cast<double>(parameter.count());
  EXPECT_EQ(forward_flops(config, 10), 2 * 10 * (products + 3 * 3 * 4 * 4 * 4));  // 3 layers of 4 heads of 4 x 4
}

/// Keys and values of layers that select blocks are counted by token, and their attention by the selected keys.
TEST(Hybrids, SelectedBlocksCost) {
  Config config = hybrid("moba:4", "3:full");
  config.kv_heads = 2;
  config.moba.count = 2;
  EXPECT_EQ(cache_bytes_per_token(config, DType::float32), 3 * 2 * 2 * 4 * 4);  // 3 layers, 2 heads of 4
  EXPECT_EQ(state_bytes(config, nn::Precision::float32), 0);
  const Model model = stirred(config, nn::Precision::float32);
  ModelCache cache = model.new_cache();
  Tape tape;
  model.forward(tape, random_batch(1, 64, 5), {.cache = &cache});
  EXPECT_EQ(cache.bytes(), 64 * 3 * 2 * 2 * 4 * 4);
  const Config full = [&] {
    Config other = config;
    other.mixers = "f";
    return other;
  }();
  // Two layers: of the tokens 5 to 9 one or two earlier blocks are scored, one is selected, 2 to 4 or 1 or 2 of their
  // own.
  const double seen = (4 + 2) + (4 + 3) + (4 + 4) + (4 + 1) + (4 + 2), scored = 3 * 1 + 2 * 2;
  EXPECT_EQ(forward_flops(full, 5, 5) - forward_flops(config, 5, 5),
            2 * 2 * 16 * (2 * (6 + 7 + 8 + 9 + 10) - 2 * seen - scored));
}

TEST(Hybrids, BranchesOfNativeSparseAttentionCost) {
  Config config = hybrid("nsa:4");
  config.layers = 1;
  config.kv_heads = 2;
  config.nsa.count = 2;
  config.nsa.window = 3;
  const int64_t token = 2 * 2 * 4;  // numbers of keys and values
  EXPECT_EQ(cache_bytes_per_token(config, DType::float32), (token + token / 4) * 4);
  EXPECT_EQ(state_bytes(config, nn::Precision::float32), (2 + 3) * token * 4);  // of window and open block, at most
  const Model model = stirred(config, nn::Precision::float32);
  ModelCache cache = model.new_cache();
  Tape tape;
  model.forward(tape, random_batch(1, 67, 5), {.cache = &cache});
  EXPECT_EQ(cache.bytes(), (67 + 16 + 2 + 3) * token * 4);

  double products = 16 * kVocabulary;  // the head is tied
  for (const ParameterShape& parameter : parameter_shapes(config))
    if (parameter.decay && parameter.name.starts_with("blocks.") &&
        parameter.name.find("compress") == std::string::npos)
      products += static_cast<double>(parameter.count());
  // The tokens 5 to 9 as above, windows of 3, and for each token 2 heads of keys and values with maps of 4 x 4.
  const double selected = (4 + 2) + (4 + 3) + (4 + 4) + (4 + 1) + (4 + 2), scored = 3 * 1 + 2 * 2;
  EXPECT_EQ(forward_flops(config, 5, 5),
            2 * (5 * products + 16 * (2 * selected + 2 * 5 * 3 + 3 * scored) + 5 * 2 * 2 * 4 * 4));
}

// ----------------------------------------------------------------------------------------------------- configurations

TEST(Hybrids, AreConfiguredByName) {
  Config config = hybrid("gated_delta", "4:full");
  EXPECT_EQ(config.mixers, "lllf");
  EXPECT_TRUE(config.linear.delta);
  EXPECT_EQ(hybrid("window:256").window, 256);
  EXPECT_EQ(hybrid("convolution:5", "2:window:7").mixers, "cw");
  EXPECT_EQ(hybrid("convolution:5", "2:window:7").short_convolution.width, 5);
  EXPECT_EQ(hybrid("lstm:7", "2:full").lstm.hidden_dim, 7);
  EXPECT_EQ(hybrid("moba:32", "2:full").mixers, "mf");
  EXPECT_EQ(hybrid("moba:32", "2:full").moba.block, 32);
  EXPECT_EQ(hybrid("moba:32", "3:nsa:8").mixers, "mmn");
  EXPECT_EQ(hybrid("moba:32", "3:nsa:8").nsa.block, 8);
  Config read;
  apply_json(read, to_json(config), "test");
  EXPECT_EQ(to_json(read), to_json(config));
  EXPECT_EQ(attention_layers(config).size(), size_t{0});  // three layers of the first three letters
  config.layers = 8;
  EXPECT_EQ(attention_layers(config)[1].name, "blocks.7.attention");
}

TEST(Hybrids, WrongNamesAreErrors) {
  const auto error = [](const char* mixer, const char* every = "") { return error_of([&] { hybrid(mixer, every); }); };
  EXPECT_EQ(error("windows"),
            "[mixer] unknown mixer 'windows'; known are: full, window, linear, gated_delta, kimi_delta, delta, gla, "
            "retention, mamba2, elu, performer, convolution, lstm, moba, nsa, own");
  EXPECT_EQ(error("window"), "[mixer] window needs its length, as window:256");
  EXPECT_EQ(error("window:x"), "[mixer] 'window:x' must end in a whole number of at least 1");
  EXPECT_EQ(error("gla:3"), "[mixer] gla takes no number, but 'gla:3' is given");
  EXPECT_EQ(error("full", "full"), "[mixer] 'full' must be N:MIXER with N from 1 to 4096, as 4:full");
  EXPECT_EQ(error("gla", "2:delta"),
            "[mixer] the mixers are two kinds of linear attention, and a model has the options of one");
}

TEST(Hybrids, WhatCannotBeBuiltIsRefused) {
  const auto reasons = [](Config config) { return reasons_of([&] { check(config); }).front(); };
  Config config = hybrid("gla");
  config.causal = false;
  config.classes = 2;
  EXPECT_EQ(reasons(config), "mixers other than w and f are causal: the model must be causal, without an encoder");
  EXPECT_EQ(reasons(hybrid("own")),
            "mixers has the letter o, the program's own mixer: the program must set Config::own_mixer");
  config = hybrid("gla", "2:full");
  config.shared_relative_bias = true;
  EXPECT_EQ(reasons(config), "shared_relative_bias is for models whose layers all have attention");
  config = hybrid("moba:8");
  config.positions = PositionEncoding::alibi;
  EXPECT_EQ(reasons(config),
            "layers m and n take no distances: positions is alibi, must be rope, learned, sinusoidal or none");
  config = hybrid("moba:8");
  config.rope_scaling = RopeScaling::yarn;
  EXPECT_EQ(reasons(config), "layers m and n take rope as it is: rope_scaling is yarn, must be none");
  config = hybrid("gla");
  config.feed_forward = false;
  config.parallel = true;
  EXPECT_EQ(reasons(config), "parallel layers need a feed_forward");
  config = hybrid("gla");
  config.linear.value_heads = 3;
  EXPECT_EQ(error_of([&] { Model(config, nn::Precision::float32); }),
            "[blocks.0.mixer] value_heads is 3, must be a multiple of heads, 4");
  config = hybrid("gla");
  config.linear.heads = 3;
  EXPECT_EQ(error_of([&] { Model(config, nn::Precision::float32); }),
            "[blocks.0.mixer] heads is 3, must divide the width 16 where head_dim is not given");
}

TEST(Hybrids, RecordersNameLayersWithAttention) {
  const Model model = stirred(hybrid("gla", "3:full"));
  Tape tape;
  std::vector<nn::AttentionTrace> traces;
  model.forward(tape, random_batch(1, 5, 3), {.traces = &traces});
  ASSERT_EQ(traces.size(), size_t{3});
  EXPECT_FALSE(traces[0].lse);
  EXPECT_EQ(traces[2].weights().shape(), (std::vector<int64_t>{1, 4, 5, 5}));
}

// ------------------------------------------------------------------------------------------------------- own mixers

/// The sum of a learned factor times the token before: the smallest mixer with a state.
struct Shift : nn::Mixer {
  Shift(const nn::Scope& scope, int64_t width)
      : Mixer("Shift", scope), factor((scope / "factor").variable("weight", {width, 2}, nn::ParameterRole::linear)) {}
  Value operator()(Tape& tape, const Value& x, const nn::MixerInputs& inputs) const override {
    View<3> kept;
    if (inputs.state) kept = inputs.state->parts[0];
    return causal_convolution(tape, x, factor, {}, false, inputs.cu_seqlens, kept);
  }
  nn::MixerState new_state(int64_t B) const override { return {{attn::Array(dtype(), {B, factor.shape()[0], 1})}}; }
  Value factor;
};

TEST(Hybrids, TakeMixersOfAProgramsOwn) {
  Config config = hybrid("own", "3:full");
  config.own_mixer = [](const nn::Scope& scope, int64_t width) { return std::make_shared<Shift>(scope, width); };
  Model model = stirred(config);
  EXPECT_NE(model.parameters().find("blocks.1.mixer.factor.weight"), nullptr);
  const Batch batch = random_batch(1, 6, 7);
  expect_gradients(
      "own", leaves_of(model.parameters(), Value()), [&](Tape& tape) { return model.loss(tape, batch); }, 3);
  Tape tape;
  const Values whole = numbers(model.forward(tape, batch).data());
  ModelCache cache = model.new_cache();
  model.forward(tape, part_of(batch, 0, 5), {.cache = &cache});
  const Values last = numbers(model.forward(tape, part_of(batch, 5, 6), {.cache = &cache}).data());
  for (int64_t v = 0; v < kVocabulary; ++v)
    EXPECT_LE(std::abs(last[v] - whole[5 * kVocabulary + v]), rounding_bound(DType::float64, max_abs(whole), 100));
}

}  // namespace
}  // namespace attn::test
