// Models that answer one text with another: their data, what they say with and without a cache, where they look.
#include <algorithm>
#include <fstream>

#include "attn/generate.h"
#include "attn/train_pairs.h"
#include "support/folder.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using namespace train;
using models::Batch;
using models::Config;
using models::Model;

Config tiny() {
  Config config = models::family("seq2seq");
  config.vocab_size = 11;
  config.source_vocab_size = 7;
  config.context = 24;
  config.embed_dim = 16;
  config.encoder_layers = config.layers = 2;
  return config;
}

Batch random_pairs(const Config& config) {
  Batch batch;
  Random random(5);
  batch.sequences = 2;
  batch.length = 6;
  batch.source_length = 9;
  batch.lengths = {6, 4};
  batch.source_lengths = {5, 9};
  for (int64_t n = 0; n < 12; ++n) batch.tokens.push_back(random.below(config.vocab_size));
  for (int64_t n = 0; n < 12; ++n) batch.targets.push_back(random.below(config.vocab_size));
  for (int64_t n = 0; n < 18; ++n) batch.source.push_back(random.below(config.source_vocab_size));
  return batch;
}

// --------------------------------------------------------------------------------------------------------------- data

TEST(Pairs, TheDecoderIsShownWhatItHasToSayOneTokenLater) {
  const std::vector<Pair> rows = {{{1, 2, 3}, {4, 5}}, {{6}, {7, 8, 9}}};
  const PairData data(rows, rows, 10, 16, 2, 0);
  const Batch batch = data.validation(0);
  EXPECT_EQ(batch.length, 8);
  EXPECT_EQ(batch.lengths, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(batch.source_lengths, (std::vector<int64_t>{3, 1}));
  const auto row = [](const std::vector<int64_t>& all, int64_t begin, int64_t count) {
    return std::vector<int64_t>(all.begin() + begin, all.begin() + begin + count);
  };
  EXPECT_EQ(row(batch.source, 0, 3), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(row(batch.source, 8, 1), (std::vector<int64_t>{6}));
  EXPECT_EQ(row(batch.tokens, 0, 3), (std::vector<int64_t>{10, 4, 5}));
  EXPECT_EQ(row(batch.targets, 0, 4), (std::vector<int64_t>{4, 5, 10, ops::kIgnoreIndex}));
  EXPECT_EQ(row(batch.targets, 8, 5), (std::vector<int64_t>{7, 8, 9, 10, ops::kIgnoreIndex}));
}

TEST(Pairs, WhatIsTooLongIsCutAndHasNoEnd) {
  const std::vector<Pair> rows = {{std::vector<int64_t>(40, 1), {2, 3, 4, 5, 6, 7, 8, 9, 2, 3}}};
  const Batch batch = PairData(rows, rows, 10, 8, 1, 0).validation(0);
  EXPECT_EQ(batch.source_length, 8);
  EXPECT_EQ(batch.tokens, (std::vector<int64_t>{10, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(batch.targets, (std::vector<int64_t>{2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(Pairs, EveryEpochShowsEveryPairOnceAndLikeLengthsTogether) {
  std::vector<Pair> rows;
  for (int64_t n = 0; n < 90; ++n) rows.push_back({std::vector<int64_t>(static_cast<size_t>(n % 20 + 1), n), {n}});
  const PairData data(rows, rows, 100, 32, 8, 3);
  std::vector<int64_t> seen;
  int64_t padding = 0;
  for (uint64_t n = 0; n < static_cast<uint64_t>(data.batches_per_epoch()); ++n) {
    const Batch batch = data.training(n);
    EXPECT_EQ(batch.tokens, data.training(n).tokens);
    for (int64_t b = 0; b < batch.sequences; ++b) seen.push_back(batch.targets[b * batch.length]);
    const auto [least, most] = std::minmax_element(batch.source_lengths.begin(), batch.source_lengths.end());
    padding = std::max(padding, *most - *least);
  }
  std::sort(seen.begin(), seen.end());
  for (int64_t n = 0; n < 90; ++n) EXPECT_EQ(seen[n], n);
  EXPECT_LE(padding, 4);  // 90 lengths in 12 batches
}

TEST(Pairs, WrongOnesAreNamed) {
  const Folder folder;
  const auto said = [&](const std::string& content) -> std::string {
    std::ofstream(folder / "a.tsv") << content;
    const auto letters = text::characters_of("abc");
    try {
      std::string all;
      const std::vector<PairText> rows = read_pairs(folder / "a.tsv");
      for (const Pair& pair : encode_pairs(rows, *letters, *letters, "a.tsv"))
        all += std::to_string(pair.source.size()) + ":" + std::to_string(pair.target.size()) + " ";
      return all;
    } catch (const Error& error) {
      const std::string& reason = error.reasons().front();
      return reason.substr(reason.find("a.tsv"));
    }
  };
  EXPECT_EQ(said("ab\tc\nc\tabc\n"), "2:1 1:3 ");
  EXPECT_EQ(said("target\tsource\nab\tc\n"), "1:2 ");
  EXPECT_EQ(said("ab\n"), "a.tsv, line 1: must be source, a tab, and a target");
  EXPECT_EQ(said("a\tb\n\n\tb\n"), "a.tsv, line 3: source has no token");
  EXPECT_EQ(said("a\t\n"), "a.tsv, line 1: target has no token");
  EXPECT_EQ(
      said("a\tbx\n"),
      "a.tsv, line 1: target: the text has U+0078 (x) at byte 1, must have only the 3 characters of the vocabulary");
  EXPECT_THROW(PairData({}, {{{1}, {1}}}, 2, 8, 1, 0), Error);
  EXPECT_THROW(PairData({{{1}, {-1}}}, {{{1}, {1}}}, 2, 8, 1, 0), Error);
  EXPECT_THROW(PairData({{{1}, {1}}}, {{{1}, {1}}}, -2, 8, 1, 0), Error);
}

TEST(Pairs, EditDistanceIsTheFewestChanges) {
  const auto distance = [](std::vector<int64_t> a, std::vector<int64_t> b) {
    EXPECT_EQ(edit_distance(a, b), edit_distance(b, a));
    return edit_distance(a, b);
  };
  EXPECT_EQ(distance({}, {}), 0);
  EXPECT_EQ(distance({}, {1, 2}), 2);
  EXPECT_EQ(distance({1, 2, 3}, {1, 2, 3}), 0);
  EXPECT_EQ(distance({1, 2, 3}, {2, 3}), 1);
  EXPECT_EQ(distance({1, 2, 3, 4}, {1, 9, 3}), 2);
  EXPECT_EQ(distance({10, 8, 19, 19, 4, 13}, {18, 8, 19, 19, 8, 13, 6}), 3);  // kitten, sitting
}

// -------------------------------------------------------------------------------------------------------------- model

TEST(Seq2Seq, Gradients) {
  Config config = tiny();
  for (const bool own : {true, false}) {
    if (!own) config.source_vocab_size = 0;
    Model model(config, nn::Precision::float64, 3);
    stir(model.parameters());
    const Batch batch = random_pairs(tiny());
    expect_gradients(
        own ? "own vocabulary" : "shared", leaves_of(model.parameters()),
        [&](Tape& tape) { return model.loss(tape, batch); }, 4);
  }
}

TEST(Seq2Seq, TheSourceHasItsOwnVocabulary) {
  Config config = tiny();
  config.source_vocab_size = 40;  // more than the answers have
  const Model model(config, nn::Precision::float32, 3);
  Batch batch = random_pairs(tiny());
  batch.source[2] = 39;
  Tape tape;
  const Values with = numbers(model.forward(tape, batch).data());
  batch.source[2] = 38;
  EXPECT_NE(numbers(model.forward(tape, batch).data()), with);
}

TEST(Seq2Seq, PaddingOfASourceChangesNothing) {
  Model model(tiny(), nn::Precision::float64, 3);
  stir(model.parameters());
  Batch both = random_pairs(tiny()), alone = both;
  alone.sequences = 1;
  alone.lengths = alone.source_lengths = {};
  alone.tokens.resize(6);
  alone.source.resize(5);
  alone.source_length = 5;
  Tape tape;
  const Values all = numbers(model.forward(tape, both).data()), one = numbers(model.forward(tape, alone).data());
  EXPECT_TRUE(close_float64(one, Values(all.begin(), all.begin() + static_cast<int64_t>(one.size()))));
}

TEST(Seq2Seq, AnswersAreTheSameWithAndWithoutACache) {
  for (const auto positions :
       {models::PositionEncoding::learned, models::PositionEncoding::rope, models::PositionEncoding::relative}) {
    Config config = tiny();
    config.positions = positions;
    Model model(config, nn::Precision::float32, 3);
    stir(model.parameters());
    generate::GenerateOptions options;
    options.sampling.temperature = 0.7;
    options.decoder_start_token_ids = {10};
    options.max_new_tokens = 15;
    const std::vector<int64_t> source = {1, 6, 0, 2, 3};
    const generate::Generated cached = generate::generate(model, source, options);
    options.cache = false;
    EXPECT_EQ(generate::generate(model, source, options).tokens, cached.tokens);
    EXPECT_EQ(cached.tokens.size(), 15u);
    const std::vector<int64_t> other = {2, 2, 5};
    EXPECT_NE(generate::generate(model, other, options).tokens, cached.tokens);
  }
}

TEST(Seq2Seq, AnAnswerEndsAtItsEndAndAtTheContext) {
  Model model(tiny(), nn::Precision::float32, 3);
  stir(model.parameters());
  generate::GenerateOptions options;
  options.sampling.temperature = 0;
  options.decoder_start_token_ids = {10, 4};
  const std::vector<int64_t> source = {1, 6, 0};
  const std::vector<int64_t> whole = generate::generate(model, source, options).tokens;
  EXPECT_EQ(whole.size(), 23u);  // 24 rows of the context, of which two are the start; the last is not read again
  options.eos_token_ids = {whole[0]};
  EXPECT_TRUE(generate::generate(model, source, options).tokens.empty());
}

TEST(Seq2Seq, WrongCallsAreNamed) {
  const Model model(tiny(), nn::Precision::float32, 3);
  const auto reason = [&](const std::vector<int64_t>& source, generate::GenerateOptions options) -> std::string {
    try {
      generate::generate(model, source, options);
    } catch (const Error& error) {
      return error.reasons().front();
    }
    return "";
  };
  EXPECT_EQ(reason({1}, {}), "a model with an encoder begins its answer with start, which is not given");
  EXPECT_EQ(reason({7}, {.decoder_start_token_ids = {10}}), "prompt[0] is 7, must be in [0, 7)");
  EXPECT_EQ(reason({1}, {.decoder_start_token_ids = {11}}), "start[0] is 11, must be in [0, 11)");
  Batch batch = random_pairs(tiny());
  batch.source[3] = 7;
  Tape tape;
  EXPECT_THROW(model.forward(tape, batch), Error);
  Config config = tiny();
  config.encoder_layers = 0;
  EXPECT_THROW(check(config), Error);
}

/// softmax(q k^T scale) of one head, from the rows that a trace keeps.
double weight_of(const nn::AttentionTrace& trace, int64_t head, int64_t row, int64_t column, int64_t keys) {
  const Values q = numbers(trace.q.array.data()), k = numbers(trace.k.array.data());
  const int64_t D = trace.q.width, q_row = trace.q.array.data().width(), k_row = trace.k.array.data().width();
  const auto score = [&](int64_t key) {
    double sum = 0;
    for (int64_t d = 0; d < D; ++d)
      sum += q[row * q_row + trace.q.first + head * D + d] * k[key * k_row + trace.k.first + head * D + d];
    return sum / std::sqrt(static_cast<double>(D));
  };
  double total = 0;
  for (int64_t key = 0; key < keys; ++key) total += std::exp(score(key));
  return std::exp(score(column)) / total;
}

TEST(Seq2Seq, TracesOfAllThreeParts) {
  Model model(tiny(), nn::Precision::float64, 3);
  stir(model.parameters());
  Batch batch = random_pairs(tiny());
  std::vector<nn::AttentionTrace> own, cross, encoder;
  Tape tape;
  model.forward(tape, batch, {.traces = &own, .cross_traces = &cross, .encoder_traces = &encoder});
  ASSERT_EQ(own.size(), 2u);
  ASSERT_EQ(cross.size(), 2u);
  ASSERT_EQ(encoder.size(), 2u);
  EXPECT_EQ(own[0].weights().shape(), (std::vector<int64_t>{2, 4, 6, 6}));
  EXPECT_EQ(encoder[1].weights().shape(), (std::vector<int64_t>{2, 4, 9, 9}));
  const attn::Array weights = cross[1].weights();
  ASSERT_EQ(weights.shape(), (std::vector<int64_t>{2, 4, 6, 9}));
  const Values all = numbers(weights);
  Values wanted, seen;
  for (int64_t head = 0; head < 4; ++head)
    for (int64_t row = 0; row < 6; ++row)
      for (int64_t column = 0; column < 9; ++column) {
        seen.push_back(all[(head * 6 + row) * 9 + column]);
        wanted.push_back(column < 5 ? weight_of(cross[1], head, row, column, 5) : 0);
      }
  EXPECT_TRUE(close_float64(seen, wanted));
  Config plain = models::family("gpt");
  plain.vocab_size = 5;
  Batch text;
  text.sequences = text.length = 1;
  text.tokens = {1};
  EXPECT_THROW(Model(plain, nn::Precision::float32).forward(tape, text, {.cross_traces = &cross}), Error);
}

}  // namespace
}  // namespace attn::test
