// models: a cache continues texts with the bits of the whole texts, together and apart.
#include "support/errors.h"
#include "support/layers.h"
#include "support/tiny_models.h"

namespace attn::test {
namespace {

using namespace models;

/// In chunks and alone, after a cache, where the tape asks for it.
TEST(ModelCache, TokensOfACacheHaveTheBitsOfTheirText) {
  std::vector<Config> configs = {tiny_config("selfhead"), tiny_config("gpt"), tiny_config("llama"), tiny_config("gpt")};
  configs.back().positions = PositionEncoding::relative;
  for (const Config& config : configs)
    for (const nn::Precision precision : {nn::Precision::float32, nn::Precision::bfloat16, nn::Precision::float64}) {
      Model model(config, precision, 3);
      stir(model.parameters(), 0.5);
      const Batch batch = random_batch(config, 1, 16, 5);
      Tape tape({.batch_invariant = true});
      const Values whole = numbers(model.forward(tape, batch).data());
      ModelCache cache = model.new_cache();
      Values parts;
      int64_t at = 0;
      for (const int64_t count : {11, 1, 3, 1}) {
        Batch some;
        some.sequences = 1;
        some.length = count;
        some.tokens = {batch.tokens.begin() + at, batch.tokens.begin() + at + count};
        const Values logits = numbers(model.forward(tape, some, {.cache = &cache}).data());
        parts.insert(parts.end(), logits.begin(), logits.end());
        at += count;
      }
      EXPECT_EQ(parts, whole) << to_json(config) << static_cast<int>(precision);
    }
}

/// Texts of different lengths continue one cache in packed batches, cut as it comes.
TEST(ModelCache, SequencesOfACacheGrowApartWithTheBitsOfTheirTexts) {
  std::vector<Config> configs = {tiny_config("gpt"), tiny_config("llama"), tiny_config("gpt"), tiny_config("gpt")};
  configs[2].positions = PositionEncoding::relative;
  configs[3].positions = PositionEncoding::sinusoidal;
  for (const Config& config : configs)
    for (const nn::Precision precision : {nn::Precision::float32, nn::Precision::bfloat16, nn::Precision::float64}) {
      Model model(config, precision, 3);
      stir(model.parameters(), 0.5);
      const Batch texts = random_batch(config, 3, 16, 5);
      Tape tape({.batch_invariant = true});
      const Values whole = numbers(model.forward(tape, texts).data());
      ModelCache cache = model.new_cache(1);
      cache.add();
      const auto step = [&](const std::vector<int64_t>& sequences, const std::vector<int64_t>& counts) {
        Batch some{.sequences = static_cast<int64_t>(sequences.size()), .cu_seqlens = {0}};
        for (size_t n = 0; n < sequences.size(); ++n) {
          const auto first = texts.tokens.begin() + sequences[n] * 16 + cache.length(sequences[n]);
          some.tokens.insert(some.tokens.end(), first, first + counts[n]);
          some.cu_seqlens.push_back(some.length += counts[n]);
        }
        const std::vector<int64_t> before = {cache.length(0), cache.length(1),
                                             cache.sequences() > 2 ? cache.length(2) : 0};
        const Values rows = numbers(model.forward(tape, some, {.cache = &cache, .cache_sequences = sequences}).data());
        for (size_t n = 0; n < sequences.size(); ++n) {
          const auto expected = whole.begin() + (sequences[n] * 16 + before[static_cast<size_t>(sequences[n])]) * 13;
          const auto own = rows.begin() + some.cu_seqlens[n] * 13;
          EXPECT_TRUE(std::equal(own, own + counts[n] * 13, expected))
              << to_json(config) << static_cast<int>(precision) << ": " << sequences[n] << " at " << before[0];
        }
      };
      step({0}, {5});
      step({1, 0}, {9, 1});
      step({0, 1}, {1, 1});
      cache.add();
      step({2, 0}, {3, 1});
      cache.truncate(1, 4);
      step({0, 1, 2}, {2, 7, 1});
      EXPECT_EQ(cache.length(1), 11);
    }
}

TEST(ModelCache, AForkSharesWhatItBeginsWith) {
  const Config config = tiny_config("llama");
  Model model(config, nn::Precision::float32, 3);
  stir(model.parameters(), 0.5);
  Batch text = random_batch(config, 1, 16, 5);
  Tape tape({.batch_invariant = true});
  ModelCache cache = model.new_cache();
  Batch prompt = text;
  prompt.tokens.resize(static_cast<size_t>(prompt.length = 9));
  model.forward(tape, prompt, {.cache = &cache});
  cache.fork(0, 6);
  text.tokens[7] = (text.tokens[7] + 1) % 13;
  const Values whole = numbers(model.forward(tape, text).data());
  const Batch rest{
      .tokens = {text.tokens.begin() + 6, text.tokens.end()}, .sequences = 1, .length = 10, .cu_seqlens = {0, 10}};
  const int64_t second[] = {1};
  const Values rows = numbers(model.forward(tape, rest, {.cache = &cache, .cache_sequences = second}).data());
  EXPECT_TRUE(std::equal(rows.begin(), rows.end(), whole.begin() + 6 * 13));
  EXPECT_EQ(cache.length(0), 9);
  EXPECT_EQ(cache.length(1), 16);
  const int64_t only[] = {1};
  cache.select(only);
  EXPECT_EQ(cache.sequences(), 1);
  EXPECT_EQ(cache.length(), 16);
}

TEST(ModelCache, TheLastRowsOfPackedTexts) {
  const Config config = tiny_config("gpt");
  const Model model(config, nn::Precision::float64, 3);
  Batch packed = random_batch(config, 1, 9, 5);
  packed.sequences = 2;
  packed.cu_seqlens = {0, 4, 9};
  Tape tape;
  const Values all = numbers(model.forward(tape, packed).data());
  const nn::Value last = model.forward(tape, packed, {.last_only = true});
  EXPECT_EQ(last.shape(), (std::vector<int64_t>{1, 2, 13}));
  const Values rows = numbers(last.data());
  EXPECT_TRUE(std::equal(rows.begin(), rows.begin() + 13, all.begin() + 3 * 13));
  EXPECT_TRUE(std::equal(rows.begin() + 13, rows.end(), all.begin() + 8 * 13));
}

}  // namespace
}  // namespace attn::test
