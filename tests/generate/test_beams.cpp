// The search of beams: wide enough, it finds what trying every text finds; and the rules of what may come next.
#include <cmath>
#include <set>

#include "attn/generate.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using generate::EarlyStopping;
using generate::Generated;
using generate::GenerateOptions;
using models::Batch;
using models::Config;
using models::Model;
using Text = std::vector<int64_t>;

constexpr int64_t kVocabulary = 5;
constexpr int64_t kEnd = 4;

Config tiny(const std::string& name) {
  Config config = models::family(name);
  config.vocab_size = kVocabulary;
  config.context = 24;
  config.embed_dim = 16;
  config.layers = 2;
  config.heads = 4;
  if (name == "llama") config.kv_heads = 2;
  if (name == "seq2seq") config.encoder_layers = 2;
  return config;
}

Model made(const std::string& name) {
  Model model(tiny(name), nn::Precision::float64, 3);
  stir(model.parameters(), 1);  // texts that differ much
  return model;
}

const Text kPrompt = {1, 3, 2};

GenerateOptions options_for(const Model& model, int64_t beams, int64_t tokens) {
  GenerateOptions options;
  options.sampling.temperature = 0;
  options.beam.num_beams = beams;
  options.max_new_tokens = tokens;
  options.eos_token_ids = {kEnd};
  if (model.config().encoder_layers) options.decoder_start_token_ids = {0};
  return options;
}

/// Log probabilities [V] after a text, from one forward of all of it.
std::vector<double> behind(const Model& model, const Text& text) {
  Batch batch;
  batch.sequences = 1;
  batch.tokens = text;
  batch.length = static_cast<int64_t>(text.size());
  if (model.config().encoder_layers) batch.source = kPrompt;
  batch.source_length = static_cast<int64_t>(batch.source.size());
  Tape tape;
  std::vector<double> logits = numbers(model.forward(tape, batch, {.last_only = true}).data());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit);
  for (double& logit : logits) logit -= std::log(sum);
  return logits;
}

struct Best {
  double score = -std::numeric_limits<double>::infinity();
  Text tokens;
};

/// Tries every text of up to `left` tokens more: those that end, and those that are as long as they may be.
void try_all(const Model& model, const GenerateOptions& options, Text& text, size_t given, double sum, int64_t left,
             Best& best) {
  const std::vector<double> next = behind(model, text);
  for (int64_t token = 0; token < kVocabulary; ++token) {
    const double total = sum + next[token];
    text.push_back(token);
    if (token == kEnd || left == 1) {
      const auto length = static_cast<double>(text.size() - (model.config().encoder_layers ? 1 : given));
      const double score = total / std::pow(length, options.beam.length_penalty);
      const bool ends = token == kEnd;
      if (score > best.score) best = {score, {text.begin() + static_cast<int64_t>(given), text.end() - ends}};
    } else {
      try_all(model, options, text, given, total, left - 1, best);
    }
    text.pop_back();
  }
}

TEST(Beams, WideEnoughTheyFindTheBestOfAllTexts) {
  for (const char* name : {"gpt", "llama", "seq2seq"}) {
    const Model model = made(name);
    for (const double penalty : {0.0, 1.0, -1.0, 3.0}) {
      SCOPED_TRACE(std::string(name) + ", penalty " + std::to_string(penalty));
      GenerateOptions options = options_for(model, 700, 4);
      options.beam.length_penalty = penalty;
      Text text = options.decoder_start_token_ids.empty() ? kPrompt : options.decoder_start_token_ids;
      Best best;
      try_all(model, options, text, text.size(), 0, 4, best);
      const Generated found = generate::generate(model, kPrompt, options);
      EXPECT_EQ(found.tokens, best.tokens);
      EXPECT_NEAR(found.score, best.score, weight_bound(std::abs(best.score), DType::float32));  // logits are float32
      options.cache = false;
      EXPECT_EQ(generate::generate(model, kPrompt, options).tokens, best.tokens);
    }
  }
}

TEST(Beams, FewFindWhatTheyFindWithoutACache) {
  for (const char* name : {"gpt", "llama", "seq2seq"}) {
    const Model model = made(name);
    std::set<Text> different;
    for (const int64_t beams : {2, 3, 6})
      for (const auto stopping : {EarlyStopping::full, EarlyStopping::hopeless, EarlyStopping::certain}) {
        GenerateOptions options = options_for(model, beams, 12);
        options.beam.early_stopping = stopping;
        options.min_new_tokens = 5;
        const Generated cached = generate::generate(model, kPrompt, options);
        options.cache = false;
        EXPECT_EQ(generate::generate(model, kPrompt, options).tokens, cached.tokens);
        EXPECT_GE(cached.tokens.size(), 5u);
        different.insert(cached.tokens);
      }
    EXPECT_GE(different.size(), 1u);
  }
}

/// A score is a sum of logits, which shows their last bits.
TEST(Beams, TheSameBitsAreTheSameScore) {
  for (const char* name : {"gpt", "llama"}) {
    Model model(tiny(name), nn::Precision::float32, 3);
    stir(model.parameters(), 0.5);
    GenerateOptions options = options_for(model, 2, 20);
    options.suppress_tokens = {kEnd};  // so that texts grow long
    options.batch_invariant = true;
    const double score = generate::generate(model, kPrompt, options).score;
    options.cache = false;
    EXPECT_EQ(generate::generate(model, kPrompt, options).score, score) << name;
  }
}

TEST(Beams, AnEndThatIsForcedIsScored) {
  const Model model = made("gpt");
  GenerateOptions options = options_for(model, 3, 3);
  options.suppress_tokens = {kEnd};  // so that every text reaches its length
  const Generated plain = generate::generate(model, kPrompt, options);
  options.beam.forced_eos = true;
  const Generated forced = generate::generate(model, kPrompt, options);
  EXPECT_EQ(forced.tokens, plain.tokens);
  EXPECT_NEAR(forced.score, plain.score * 3 / 4, weight_bound(std::abs(plain.score), DType::float64));
}

TEST(Beams, OnTokenIsCalledAtTheEndAndCanStopASearch) {
  const Model model = made("gpt");
  GenerateOptions options = options_for(model, 3, 8);
  options.min_new_tokens = 8;
  Text heard;
  options.on_token = [&](int64_t token) {
    heard.push_back(token);
    return heard.size() < 3;
  };
  int steps = 0;
  options.beam.on_step = [&] { return ++steps < 5; };
  const Generated found = generate::generate(model, kPrompt, options);
  EXPECT_EQ(steps, 5);
  EXPECT_EQ(found.tokens.size(), 5u) << "the best so far";
  EXPECT_EQ(heard, Text(found.tokens.begin(), found.tokens.begin() + 3));
}

TEST(Beams, CachedTextsAreReordered) {
  for (const char* name : {"gpt", "seq2seq"}) {
    const Model model = made(name);
    const auto batch_of = [&](const std::vector<Text>& texts, bool first) {
      Batch batch;
      batch.sequences = static_cast<int64_t>(texts.size());
      batch.length = static_cast<int64_t>(texts[0].size());
      for (const Text& text : texts) batch.tokens.insert(batch.tokens.end(), text.begin(), text.end());
      if (model.config().encoder_layers && first) {
        batch.source = {1, 3, 2, 0, 4, 4};  // another text for each
        batch.source_lengths = {3, 2};
        batch.source_length = 3;
      }
      return batch;
    };
    models::ModelCache cache = model.new_cache(2);
    Tape tape;
    model.forward(tape, batch_of({{0, 1, 2}, {2, 2, 0}}, true), {.cache = &cache});
    cache.select(Text{1, 0, 1});
    const Values found = numbers(model.forward(tape, batch_of({{3}, {1}, {0}}, false), {.cache = &cache}).data());
    const Values others = numbers(model.forward(tape, batch_of({{0, 1, 2, 1}, {2, 2, 0, 3}}, true)).data());
    for (int64_t id = 0; id < kVocabulary; ++id) {
      EXPECT_NEAR(found[id], others[7 * kVocabulary + id], weight_bound(max_abs(others), DType::float64)) << name;
      EXPECT_NEAR(found[kVocabulary + id], others[3 * kVocabulary + id], weight_bound(max_abs(others), DType::float64));
    }
    EXPECT_THROW(cache.select(Text{3}), Error);
  }
}

TEST(Rules, OfWhatMayComeNext) {
  const Model model = made("gpt");
  GenerateOptions options = options_for(model, 1, 16);
  const Text plain = generate::generate(model, kPrompt, options).tokens;
  ASSERT_FALSE(plain.empty());
  options.begin_suppress_tokens = {plain[0]};
  EXPECT_NE(generate::generate(model, kPrompt, options).tokens[0], plain[0]);
  for (const int64_t beams : {1, 4}) {
    options = options_for(model, beams, 7);  // longer ones run out of pairs
    options.no_repeat_ngram_size = 2;
    options.min_length = 10;
    Text text = kPrompt;
    const Text more = generate::generate(model, kPrompt, options).tokens;
    text.insert(text.end(), more.begin(), more.end());
    EXPECT_GE(text.size(), 10u);
    std::set<std::pair<int64_t, int64_t>> pairs;
    for (size_t n = 0; n + 1 < text.size(); ++n) EXPECT_TRUE(pairs.insert({text[n], text[n + 1]}).second) << n;
  }
}

TEST(Rules, WrongOptionsAreNamed) {
  const Model model = made("gpt");
  const auto reason = [&](const std::function<void(GenerateOptions&)>& change) -> std::string {
    GenerateOptions options = options_for(model, 4, 3);
    change(options);
    try {
      generate::generate(model, kPrompt, options);
    } catch (const Error& error) {
      return error.reasons().front();
    }
    return "";
  };
  EXPECT_EQ(reason([](auto& o) { o.beam.num_beams = 0; }), "num_beams is 0, must be from 1 to 1024");
  EXPECT_EQ(reason([](auto& o) { o.beam.length_penalty = NAN; }), "length_penalty is nan, must be finite");
  EXPECT_EQ(reason([](auto& o) { o.sampling.temperature = 1; }),
            "temperature is 1.000000, must be 0 with beams, which search for the most probable text");
  EXPECT_EQ(reason([](auto& o) { o.no_repeat_ngram_size = -1; }), "no_repeat_ngram_size is -1, must not be negative");
  EXPECT_EQ(reason([](auto& o) { o.begin_suppress_tokens = {5}; }), "begin_suppress_tokens[0] is 5, must be in [0, 5)");
  EXPECT_EQ(reason([](auto& o) {
              o.beam.forced_eos = true;
              o.eos_token_ids = {};
            }),
            "forced_eos needs a token that ends a text");
  TextRecorder recorder;
  EXPECT_EQ(reason([&](auto& o) { o.recorder = &recorder; }), "beams do not support a recorder");
}

}  // namespace
}  // namespace attn::test
