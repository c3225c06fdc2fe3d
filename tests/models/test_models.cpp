// Models: configurations, the whole forward in float64, batches against single texts, caches, generation.
#include "attn/models.h"

#include <cmath>
#include <filesystem>
#include <set>

#include "attn/generate_text.h"
#include "support/errors.h"
#include "support/layers.h"
#include "support/tiny_models.h"

namespace attn::test {
namespace {

using namespace models;

// ------------------------------------------------------------------------------------------------------ configuration

TEST(Config, JsonIsReadBackAsItWasWritten) {
  for (const std::string& name : families()) {
    Config config = family(name), read;
    config.vocab_size = 99;
    config.dropout = 0.25;
    apply_json(read, to_json(config), "test");
    EXPECT_EQ(to_json(read), to_json(config));
  }
}

TEST(Config, EverythingWrongIsNamed) {
  Config config;
  const auto wrong = reasons_of([&] {
    apply_json(config, R"({"layers": "6", "heads": -1, "embed_dim": 1e3, "norm": "batch", "colour": 1, "causal": 0,
                           "dropout": 1.5, "context": 99999999999999999999})",
               "model.json");
  });
  ASSERT_EQ(wrong.size(), 8u);
  EXPECT_EQ(wrong[1], "model.json: unknown field 'colour'");
  EXPECT_EQ(wrong[6], "model.json: layers must be a whole number from 1 to 4096, not \"6\"");
  EXPECT_EQ(wrong[7], "model.json: norm must be one of layer, rms, not \"batch\"");
  EXPECT_EQ(reasons_of([&] { apply_json(config, R"({"bias": true, "bias": false})", "model.json"); }),
            std::vector<std::string>{"model.json: the key \"bias\" occurs twice in one object"});
  for (const char* text : {"", "[]", "{", "null", "{\"a\":}", "\xff\xfe"})
    EXPECT_EQ(reasons_of([&] { apply_json(config, text, "x"); }).size(), 1u) << text;
  EXPECT_EQ(reasons_of([&] { apply_json(config, std::string(100000, '['), "x"); }).size(), 1u);
}

TEST(Config, FieldsFromText) {
  Config config;
  set_field(config, "layers", "6");
  set_field(config, "bias", "false");
  set_field(config, "norm", "rms");
  set_field(config, "dropout", "0.5");
  EXPECT_EQ(config.layers, 6);
  EXPECT_FALSE(config.bias);
  EXPECT_EQ(config.norm, NormKind::rms);
  EXPECT_EQ(config.dropout, 0.5);
  EXPECT_EQ(reasons_of([&] { set_field(config, "layers", "six"); }).size(), 1u);
  EXPECT_EQ(reasons_of([&] { set_field(config, "norm", "\xff"); }).size(), 1u);
  EXPECT_EQ(reasons_of([&] { family("mamba"); }).front(),
            "unknown model 'mamba'; known are: selfhead, encoder, gpt, llama, seq2seq");
}

TEST(Config, FieldsTellWhatTheyTake) {
  for (const std::string& name : families()) {
    const Config config = family(name);
    Config copy = family("gpt");
    for (const FieldInfo& field : field_info(config)) {
      EXPECT_GT(field.description.size(), 4u) << field.name;
      set_field(copy, field.name, field.value);
      for (const std::string& choice : field.choices) set_field(copy, field.name, choice);
      set_field(copy, field.name, field.value);
      if (field.kind == "text" || !field.choices.empty()) continue;
      const std::string beyond = std::to_string(static_cast<int64_t>(field.highest) + 1);
      const std::string wrong = reasons_of([&] { set_field(copy, field.name, beyond); }).front();
      EXPECT_TRUE(wrong.starts_with(field.name + " must be a " + field.kind + " from ")) << wrong;
    }
    EXPECT_EQ(to_json(copy), to_json(config));
  }
}

TEST(Config, LabelsAreReadBackAndHostileOnesRefused) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "attn_labels";
  std::filesystem::create_directories(folder);
  const std::string path = folder / kLabelsFile;
  std::filesystem::remove(path);
  EXPECT_EQ(load_labels(folder, 3), (std::vector<std::string>{"0", "1", "2"}));
  const std::vector<std::string> names = {"fine film", "\xc3\xa9t\xc3\xa9", "-1"};
  io::write_file(path, labels_to_json(names));
  EXPECT_EQ(load_labels(folder, 3), names);
  EXPECT_EQ(reasons_of([&] { load_labels(folder, 2); }).front(),
            path + " must be a list of 2 texts, the names of the classes");
  for (const char* content : {"", "{}", "[1, 2]", "[\"a\", \"a\"]", "[\"a\", \"\"]", "[\"a\", \"\\u001b[2J\"]",
                              "[\"a\"]", "[\"a\", \"\xff\"]", "[[], []]"}) {
    io::write_file(path, content);
    const auto wrong = reasons_of([&] { load_labels(folder, 2); });
    ASSERT_FALSE(wrong.empty()) << content;
    EXPECT_TRUE(wrong.front().starts_with(path)) << wrong.front();
  }
  for (const std::string& name : {std::string(257, 'a'), std::string("a\tb"), std::string("\xc3")})
    EXPECT_EQ(reasons_of([&] { labels_to_json(std::span(&name, 1)); }).size(), 1u) << name;
  std::filesystem::remove_all(folder);
}

TEST(Config, WhatCannotBeBuiltIsRefused) {
  Config config;
  config.heads = 3;
  config.kv_heads = 2;
  config.causal = false;
  EXPECT_EQ(reasons_of([&] { check(config); }).size(), 4u);
  config = tiny_config("gpt");
  config.heads = 3;
  EXPECT_EQ(reasons_of([&] { check(config); }).front(), "heads 3 must divide embed_dim 16, or head_dim must be given");
  config.head_dim = 7;
  check(config);
  config.positions = PositionEncoding::rope;
  EXPECT_EQ(reasons_of([&] { check(config); }).front(), "the width of a head is 7, must be even with rope");
  config.output_projection = true;
  EXPECT_EQ(reasons_of([&] { check(config); }).size(), 2u);
  config = tiny_config("selfhead");
  config.value_dim = 12;
  config.tie_embeddings = true;
  EXPECT_EQ(reasons_of([&] { check(config); }).front(),
            "tied embeddings need value_dim equal to embed_dim, or output_projection");
  config.output_projection = true;
  check(config);
  config.head_dim = 8;
  EXPECT_EQ(reasons_of([&] { check(config); }).front(), "selfhead has key_dim and value_dim in place of head_dim");
}

// ------------------------------------------------------------------------------------------------------------ forward

TEST(Model, GradientsOfEveryFamily) {
  for (const std::string& name : families()) {
    Config config = tiny_config(name);
    config.dropout = 0.1;
    Model model(config, nn::Precision::float64, 3);
    stir(model.parameters());
    Batch batch = random_batch(config, 2, 6, 5);
    if (name == "encoder") batch.lengths = {6, 4};
    else batch.targets[3] = ops::kIgnoreIndex;
    expect_gradients(
        name, leaves_of(model.parameters()), [&](Tape& tape) { return model.loss(tape, batch); }, 4);
  }
}

TEST(Model, DropoutOfWeightsHasAProbabilityOfItsOwn) {
  const auto loss = [](double dropout, double attention_dropout) {
    Config config = tiny_config("gpt");
    config.dropout = dropout;
    config.attention_dropout = attention_dropout;
    const Model model(config, nn::Precision::float64, 3);
    autograd::Tape tape({.training = true, .seed = 5});
    return model.loss(tape, random_batch(config, 2, 6, 5)).item<double>();
  };
  const double both = loss(0.5, -1), none = loss(0, -1), of_weights = loss(0, 0.5), of_branches = loss(0.5, 0);
  EXPECT_EQ(both, loss(0.5, 0.5));
  EXPECT_EQ(std::set<double>({both, none, of_weights, of_branches}).size(), 4u);
  Config config = tiny_config("gpt");
  config.attention_dropout = -0.5;
  EXPECT_EQ(reasons_of([&] { check(config); }).front(), "attention_dropout is -0.500000, must be -1 or in [0, 1)");
}

/// A decoder that looks at an encoder, all of whose layers share a table of relative positions.
Config two_stacks() {
  Config config = tiny_config("gpt");
  config.encoder_layers = 2;
  config.positions = PositionEncoding::relative;
  config.shared_relative_bias = true;
  config.dropout = 0.2;
  return config;
}

TEST(Model, RecomputedStacksHaveTheSameGradients) {
  const Config config = two_stacks();
  std::vector<std::vector<Values>> gradients;
  for (const bool recomputed : {false, true}) {
    const Model model(config, nn::Precision::float32, 3);
    autograd::Tape tape({.record = true, .training = true, .seed = 5});
    tape.backward(model.loss(tape, random_batch(config, 2, 5, 1), {.recompute = recomputed}));
    gradients.emplace_back();
    for (const nn::Parameter& parameter : model.parameters().all())
      gradients.back().push_back(gradient_of(parameter.value));
  }
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_GT(max_abs(gradients[0].front()), 0);
}

TEST(Model, GradientsOfTwoStacks) {
  const Config config = two_stacks();
  Model model(config, nn::Precision::float64, 3);
  stir(model.parameters());
  const Batch batch = random_batch(config, 2, 5, 1);
  expect_gradients(
      "two stacks", leaves_of(model.parameters()), [&](Tape& tape) { return model.loss(tape, batch); }, 4);
}

TEST(Model, AShorterTextInABatchIsTheTextAlone) {
  for (const char* name : {"gpt", "llama", "encoder"}) {
    const Config config = tiny_config(name);
    const Model model(config, nn::Precision::float64, 3);
    Batch both = random_batch(config, 2, 8, 5), alone;
    both.lengths = {8, 5};
    alone.sequences = 1;
    alone.length = 5;
    alone.tokens.assign(both.tokens.begin() + 8, both.tokens.begin() + 13);
    Tape tape;
    const Values all = numbers(model.forward(tape, both).data()), one = numbers(model.forward(tape, alone).data());
    const size_t first = config.classes ? config.classes : 8 * 13;
    for (size_t n = 0; n < one.size(); ++n)
      EXPECT_LE(std::abs(all[first + n] - one[n]), weight_bound(max_abs(one), DType::float64)) << name;
  }
}

/// The same sequences, one after the other.
Batch packed(const Batch& padded) {
  Batch batch = padded;
  batch.tokens.clear();
  batch.lengths.clear();
  batch.cu_seqlens = {0};
  for (int64_t b = 0; b < padded.sequences; ++b) {
    const auto row = padded.tokens.begin() + b * padded.length;
    batch.tokens.insert(batch.tokens.end(), row, row + padded.lengths[static_cast<size_t>(b)]);
    batch.cu_seqlens.push_back(std::ssize(batch.tokens));
  }
  batch.length = batch.cu_seqlens.back();
  return batch;
}

void expect_equal(const Values& got, const Values& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t n = 0; n < got.size(); ++n)
    EXPECT_LE(std::abs(got[n] - expected[n]), weight_bound(max_abs(expected), DType::float64)) << what << " " << n;
}

TEST(Model, AClassifierOfPackedTextsHasTheLogitsOfPaddedOnes) {
  for (const ClassifierPooling pooling : {ClassifierPooling::mean, ClassifierPooling::first, ClassifierPooling::last}) {
    Config config = tiny_config("encoder");
    config.pooling = pooling;
    Model model(config, nn::Precision::float64, 3);
    Batch padded = random_batch(config, 3, 6, 5);
    padded.lengths = {6, 2, 4};
    const Batch together = packed(padded);
    Tape tape({.record = true}), other({.record = true});
    const std::string what(name_of(pooling));
    expect_equal(numbers(model.forward(tape, together).data()), numbers(model.forward(other, padded).data()), what);
    std::vector<Values> gradients[2];
    for (const bool is_packed : {false, true}) {
      model.parameters().clear_gradients();
      Tape step({.record = true});
      step.backward(model.loss(step, is_packed ? together : padded));
      for (const nn::Parameter& each : model.parameters().all())
        gradients[is_packed].push_back(each.value.gradient_is_empty() ? Values() : numbers(each.value.gradient()));
    }
    for (size_t n = 0; n < gradients[0].size(); ++n)
      expect_equal(gradients[1][n], gradients[0][n], what + ", gradient of " + model.parameters().all()[n].name);
  }
}

TEST(Model, OnlyRowsWithATargetHaveALoss) {
  const Config config = tiny_config("gpt");
  Model model(config, nn::Precision::float64, 3);
  Batch batch = random_batch(config, 2, 6, 5);
  for (const size_t ignored : {0, 3, 4, 9, 11}) batch.targets[ignored] = ops::kIgnoreIndex;
  Tape tape({.record = true}), whole({.record = true});
  const Value few = model.loss(tape, batch);
  const Value all = cross_entropy(whole, model.forward(whole, batch), batch.targets);
  expect_equal(numbers(few.data()), numbers(all.data()), "loss");
  std::vector<Values> gradients;
  tape.backward(few);
  for (const nn::Parameter& each : model.parameters().all()) gradients.push_back(numbers(each.value.gradient()));
  model.parameters().clear_gradients();
  whole.backward(all);
  for (size_t n = 0; n < gradients.size(); ++n)
    expect_equal(gradients[n], numbers(model.parameters().all()[n].value.gradient()), "gradient");
}

TEST(Model, NumbersAreLearnedByTheirSquaredError) {
  Config config = tiny_config("encoder");
  config.classes = 2;
  const Model model(config, nn::Precision::float64, 3);
  Batch batch = random_batch(config, 2, 5, 5);
  batch.targets.clear();
  batch.values = {0.5, -1, 2, 0.25};
  Tape tape;
  const Values said = numbers(model.forward(tape, batch).data());
  double sum = 0;
  for (size_t n = 0; n < 4; ++n) sum += (said[n] - batch.values[n]) * (said[n] - batch.values[n]) / 4;
  EXPECT_NEAR(model.loss(tape, batch).item<double>(), sum, weight_bound(sum, DType::float64));
  batch.values.pop_back();
  EXPECT_EQ(reasons_of([&] { model.loss(tape, batch); }).front(), "3 values are given for 2 sequences and 2 classes");
  batch.values.push_back(std::nan(""));
  EXPECT_EQ(reasons_of([&] { model.loss(tape, batch); }).front(), "values[3] is not finite");
  batch.values.back() = 1;
  batch.targets = {0, 1};
  EXPECT_EQ(reasons_of([&] { model.loss(tape, batch); }).front(),
            "values are for a classifier of texts, in place of targets and their weights");
}

TEST(Model, LaterTokensChangeNothingBefore) {
  for (const char* name : {"selfhead", "gpt", "llama"}) {
    const Config config = tiny_config(name);
    const Model model(config, nn::Precision::float32, 3);
    Batch batch = random_batch(config, 1, 9, 5);
    Tape tape;
    const Values before = numbers(model.forward(tape, batch).data());
    batch.tokens[7] = (batch.tokens[7] + 1) % 13;
    const Values after = numbers(model.forward(tape, batch).data());
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + 7 * 13, after.begin())) << name;
    EXPECT_FALSE(std::equal(before.begin() + 7 * 13, before.end(), after.begin() + 7 * 13)) << name;
  }
}

TEST(Model, FlopsCountProductsAndAttention) {
  Config config = tiny_config("gpt");
  const double blocks = 2 * 12 * 16 * 16, head = 13 * 16;                           // a token; the head is tied
  EXPECT_EQ(forward_flops(config, 8), 8 * 2 * (blocks + head + 2 * 2 * 4.5 * 16));  // causal: (8 + 1) / 2 keys each
  EXPECT_EQ(forward_flops(config, 3, 5, true), 2 * (3 * (blocks + 2 * 2 * 7 * 16) + head));  // 6, 7 and 8 keys
  config.window = 4;
  EXPECT_EQ(forward_flops(config, 6), 2 * (6 * (blocks + head) + 2 * 2 * (1 + 2 + 3 + 4 + 4 + 4) * 16));
  const Config encoder = tiny_config("encoder");
  EXPECT_EQ(forward_flops(encoder, 8), 2 * (8 * (blocks + 2 * 2 * 8 * 16) + 2 * 16));  // all keys; one row of classes
  EXPECT_EQ(cache_bytes_per_token(config, DType::float32), 2 * 2 * 16 * 4);
  EXPECT_EQ(cache_bytes_per_token(tiny_config("llama"), DType::bfloat16), 2 * 2 * 8 * 2);

  config.head_dim = 6;  // 4 heads: 24 columns in a model of 16
  config.window = 0;
  const Model wide(config, nn::Precision::float32);
  EXPECT_EQ(wide.parameters().find("blocks.1.attention.output.weight")->value.shape(), (std::vector<int64_t>{16, 24}));
  EXPECT_EQ(forward_flops(config, 8), 8 * 2 * (blocks + head + 2 * 4 * 8 * 16 + 2 * 2 * 4.5 * 24));
  EXPECT_EQ(cache_bytes_per_token(config, DType::float32), 2 * 2 * 24 * 4);

  Config single = tiny_config("selfhead");
  single.key_dim = 4;
  single.value_dim = 6;
  single.output_projection = true;
  EXPECT_EQ(forward_flops(single, 8), 8 * 2 * (16 * (4 + 4 + 6) + 6 * 16 + 13 * 16 + 4.5 * (4 + 6)));
}

TEST(Model, PositionsAndDistancesAreLearnedTogether) {
  Config config = tiny_config("gpt");
  config.positions = PositionEncoding::learned_relative;
  config.shared_relative_bias = true;
  Model model(config, nn::Precision::float32, 3);
  stir(model.parameters());
  const Batch batch = random_batch(config, 2, 6, 5);
  Tape tape;
  Values logits = numbers(model.forward(tape, batch).data());
  for (const char* table : {"positions.weight", "blocks.0.attention.distance_bias"}) {
    ops::scale(model.parameters().find(table)->master.flat(), 3, model.parameters().find(table)->master.flat());
    const Values others = numbers(model.forward(tape, batch).data());
    EXPECT_NE(logits, others) << table;
    logits = others;
  }
  EXPECT_EQ(model.parameters().find("blocks.1.attention.distance_bias"), nullptr);
  generate::GenerateOptions options;
  options.context = 17;
  EXPECT_EQ(reasons_of([&] { generate::generate(model, batch.tokens, options); }).front(),
            "context is 17, but the model has learned 16 positions");
  const double both = training_memory(config, nn::Precision::float32, 4, 16).total();
  config.positions = PositionEncoding::learned;
  EXPECT_GT(both, training_memory(config, nn::Precision::float32, 4, 16).total());
}

TEST(Model, SinusoidalTokensAreScaled) {
  Config config = tiny_config("gpt");
  config.positions = PositionEncoding::sinusoidal;
  const Model scaled(config, nn::Precision::float32, 3);
  config.embedding_scale = 4;  // the root of 16
  const Model same(config, nn::Precision::float32, 3);
  config.embedding_scale = 1;
  const Model plain(config, nn::Precision::float32, 3);
  const Batch batch = random_batch(config, 2, 6, 5);
  Tape tape;
  const Values logits = numbers(scaled.forward(tape, batch).data());
  EXPECT_EQ(logits, numbers(same.forward(tape, batch).data()));
  EXPECT_NE(logits, numbers(plain.forward(tape, batch).data()));
}

TEST(Model, BadBatchesAreErrors) {
  const Config config = tiny_config("gpt");
  const Model model(config, nn::Precision::float32);
  Tape tape;
  Batch batch = random_batch(config, 1, 17, 5);
  EXPECT_EQ(reasons_of([&] { model.forward(tape, batch); }).front(),
            "a sequence has 17 tokens, must have at most the context of 16");
  batch = random_batch(config, 1, 3, 5);
  batch.tokens[1] = 13;
  EXPECT_FALSE(reasons_of([&] { model.forward(tape, batch); }).empty());
  batch.tokens.clear();
  batch.lengths = {0, 4};
  EXPECT_EQ(reasons_of([&] { model.forward(tape, batch); }),
            (std::vector<std::string>{"0 tokens are given for 1 sequences of 3 tokens, both at least 1",
                                      "2 lengths are given for 1 sequences"}));
  batch = random_batch(config, 1, 3, 5);
  models::ModelCache none, two = model.new_cache(2);
  for (models::ModelCache* cache : {&none, &two})
    EXPECT_EQ(reasons_of([&] { model.forward(tape, batch, {.cache = cache}); }).size(), 1u);
  EXPECT_EQ(two.length(), 0);
  EXPECT_EQ(reasons_of([&] { model.new_cache(0); }).front(), "the number of sequences is 0, must be at least 1");
  batch.length = batch.sequences = int64_t{1} << 62;
  EXPECT_FALSE(reasons_of([&] { model.forward(tape, batch); }).empty());
}

TEST(Model, LoadListsAllThatIsMissing) {
  const Model from(tiny_config("gpt"), nn::Precision::float32), to_same(tiny_config("gpt"), nn::Precision::float32, 9);
  const std::string bytes = io::format_safetensors(from.tensors(), {});
  Model to(tiny_config("gpt"), nn::Precision::float32, 9);
  to.load(io::Safetensors::parse(bytes, "memory"));
  const Batch batch = random_batch(from.config(), 1, 6, 1);
  Tape tape;
  EXPECT_EQ(numbers(from.forward(tape, batch).data()), numbers(to.forward(tape, batch).data()));
  EXPECT_NE(numbers(from.forward(tape, batch).data()), numbers(to_same.forward(tape, batch).data()));
  Model other(tiny_config("llama"), nn::Precision::float32);
  EXPECT_GT(reasons_of([&] { other.load(io::Safetensors::parse(bytes, "memory")); }).size(), 3u);
}

// --------------------------------------------------------------------------------------------------------- generation

TEST(Generate, CachedAndUncachedWriteTheSameTokens) {
  std::vector<Config> configs = {tiny_config("selfhead"), tiny_config("gpt"), tiny_config("llama")};
  for (const PositionEncoding positions :
       {PositionEncoding::none, PositionEncoding::sinusoidal, PositionEncoding::relative, PositionEncoding::alibi,
        PositionEncoding::rope, PositionEncoding::learned_relative}) {
    configs.push_back(tiny_config("gpt"));
    configs.back().positions = positions;
    configs.back().head_dim = 6;
  }
  configs.push_back(tiny_config("selfhead"));
  configs.back().value_dim = 10;
  configs.back().output_projection = true;
  for (const Config& config : configs) {
    Model model(config, nn::Precision::float32, 3);
    stir(model.parameters(), 0.5);
    const std::vector<int64_t> prompt = {1, 2, 3};
    generate::GenerateOptions options;
    options.max_new_tokens = 40;  // beyond the context: the oldest half is forgotten twice
    for (double temperature : {0.0, 1.0}) {
      for (int64_t context : {0, 64}) {  // or shown whole
        if (context > 0 && learns_positions(config)) continue;
        options.sampling.temperature = temperature;
        options.context = context;
        options.cache = true;
        const std::vector<int64_t> cached = generate::generate(model, prompt, options).tokens;
        options.cache = false;
        EXPECT_EQ(cached, generate::generate(model, prompt, options).tokens) << to_json(config);
        EXPECT_EQ(cached.size(), 40u);
      }
    }
  }
}

/// A decoder beside an encoder that reads rows, as Whisper's.
Config of_rows() {
  Config config = tiny_config("gpt");
  config.model = "whisper";
  config.encoder_layers = 2;
  config.takes_embeddings = true;
  config.source_context = 20;
  return config;
}

TEST(Generate, AnswersToRows) {
  const Config config = of_rows();
  Model model(config, nn::Precision::float32, 3);
  stir(model.parameters(), 0.5);
  generate::GenerateOptions options;
  options.decoder_start_token_ids = {1};
  options.max_new_tokens = 12;
  options.sampling.temperature = 0;
  std::set<std::vector<int64_t>> answers;
  for (const uint64_t seed : {1, 2, 3}) {
    options.inputs_embeds = random_array(DType::float32, {1, 18, 16}, seed);  // more than the context of 16
    options.cache = true;
    const std::vector<int64_t> cached = generate::generate(model, {}, options).tokens;
    options.cache = false;
    EXPECT_EQ(cached, generate::generate(model, {}, options).tokens);
    answers.insert(cached);
  }
  EXPECT_GT(answers.size(), 1u);
  EXPECT_EQ(reasons_of([&] { generate::generate(model, options.decoder_start_token_ids, options); }).front(),
            "the model reads embeddings: inputs_embeds must be given and no prompt");
}

TEST(Model, WrongRowsAreErrors) {
  const Config config = of_rows();
  const Model model(config, nn::Precision::float32);
  const auto reason = [&](const attn::Array& rows, std::vector<int64_t> source = {}) {
    Batch batch = random_batch(config, 2, 5, 1);
    batch.source = std::move(source);
    batch.source_length = 7;
    batch.inputs_embeds = rows;
    Tape tape;
    return reasons_of([&] { model.forward(tape, batch); }).front();
  };
  EXPECT_EQ(reason({}), "inputs_embeds are not given, must be [2, 7, 16] of a floating type");
  EXPECT_TRUE(reason(attn::Array(DType::float32, {2, 7, 15})).ends_with("must be [2, 7, 16] of a floating type"));
  EXPECT_TRUE(reason(attn::Array(DType::int64, {2, 7, 16})).ends_with("of a floating type"));
  EXPECT_EQ(reason(attn::Array(DType::float32, {2, 7, 16}), std::vector<int64_t>(14, 1)),
            "the model reads inputs_embeds in place of tokens, but tokens are given too");
  Config other = tiny_config("gpt");
  const Model reads_tokens(other, nn::Precision::float32);
  Batch batch = random_batch(other, 2, 5, 1);
  batch.inputs_embeds = attn::Array(DType::float32, {2, 5, 16});
  Tape tape;
  EXPECT_EQ(reasons_of([&] { reads_tokens.forward(tape, batch); }).front(),
            "inputs_embeds are given, but the model reads tokens");
  other.takes_embeddings = true;
  EXPECT_FALSE(reasons_of([&] { check(other); }).empty());
}

TEST(Generate, ALongerContextIsSeen) {
  Config config = tiny_config("gpt");
  config.positions = PositionEncoding::relative;
  Model model(config, nn::Precision::float32, 3);
  stir(model.parameters(), 0.5);
  std::vector<int64_t> prompt(30, 1);
  const auto first_token = [&](int64_t oldest, int64_t context) {
    prompt[0] = oldest;
    generate::GenerateOptions options;
    options.max_new_tokens = 1;
    options.sampling.temperature = 100;  // close to uniform: any change of the logits shows sooner or later
    options.context = context;
    std::vector<int64_t> tokens;
    for (options.seed = 0; options.seed < 200; ++options.seed)
      tokens.push_back(generate::generate(model, prompt, options).tokens.front());
    return tokens;
  };
  EXPECT_EQ(first_token(1, 0), first_token(7, 0)) << "the oldest token has been forgotten";
  EXPECT_NE(first_token(1, 30), first_token(7, 30));
}

TEST(Generate, SamplingFollowsItsChain) {
  const std::vector<float> logits = {2, 1, 0, -1, 2.5f};
  const auto counts = [&](const generate::SamplingOptions& options, std::vector<int64_t> seen = {}) {
    Random random(1);
    std::vector<int64_t> result(5, 0);
    for (int n = 0; n < 4000; ++n) ++result[generate::sample(logits, seen, options, random)];
    return result;
  };
  EXPECT_EQ(counts({.temperature = 0})[4], 4000);
  EXPECT_EQ(counts({.temperature = 0, .repetition_penalty = 2}, {4})[0], 4000);
  Random random(1);  // below 0 a penalty multiplies
  EXPECT_EQ(generate::sample(std::vector<float>{-1, -1.5f}, std::vector<int64_t>{0},
                             {.temperature = 0, .repetition_penalty = 2}, random),
            1);
  const std::vector<int64_t> two = counts({.top_k = 2});
  EXPECT_EQ(two[0] + two[4], 4000);
  EXPECT_NEAR(static_cast<double>(two[4]) / 4000, 1 / (1 + std::exp(-0.5)), rate_bound(0.62, 4000));
  const std::vector<int64_t> nucleus = counts({.top_p = 0.8});  // shares 0.327, 0.120, 0.044, 0.016, 0.492
  EXPECT_EQ(nucleus[0] + nucleus[4], 4000);
  EXPECT_EQ(counts({.min_p = 0.3})[1], 0);
  EXPECT_GT(counts({.min_p = 0.2})[1], 0);
  const std::vector<int64_t> hot = counts({.temperature = 100});
  for (int64_t count : hot)
    EXPECT_NEAR(static_cast<double>(count) / 4000, 0.2, rate_bound(0.2, 4000) + rate_bound(0.2, 4000));
}

TEST(Generate, BadOptionsAndLogits) {
  Random random(1);
  const std::vector<float> logits = {1, NAN};
  EXPECT_EQ(reasons_of([&] { generate::sample(logits, {}, {}, random); }).front(), "the logit of token 1 is NaN");
  EXPECT_EQ(reasons_of([&] { generate::sample(logits, {}, {-1, -1, 0, 2, 0}, random); }).size(), 5u);
  const Model gpt(tiny_config("gpt"), nn::Precision::float32);
  EXPECT_EQ(reasons_of([&] { generate::generate(gpt, {}, {.context = -1}); }).size(), 2u);
  EXPECT_EQ(reasons_of([&] { generate::generate(gpt, std::vector<int64_t>{1}, {.context = 17}); }).front(),
            "context is 17, but the model has learned 16 positions");
  models::ModelCache cache = gpt.new_cache();
  Batch batch = random_batch(gpt.config(), 1, 3, 5);
  batch.lengths = {2};
  Tape tape;
  EXPECT_EQ(reasons_of([&] { gpt.forward(tape, batch, {.cache = &cache}); }).front(),
            "lengths do not apply to a call that continues a cache");
  const Model encoder(tiny_config("encoder"), nn::Precision::float32);
  EXPECT_EQ(reasons_of([&] { generate::generate(encoder, std::vector<int64_t>{1}, {}); }).front(),
            "only a causal model can continue a text");
}

TEST(Generate, StopTextsAreNotShown) {
  generate::StopFilter filter({"END", "\n\n"});
  EXPECT_EQ(filter.feed("one E"), "one ");
  EXPECT_EQ(filter.feed("N"), "");
  EXPECT_EQ(filter.feed("T\n"), "ENT");
  EXPECT_FALSE(filter.stopped());
  EXPECT_EQ(filter.feed("\nmore END"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.rest(), "");
  generate::StopFilter other({"END"});
  EXPECT_EQ(other.feed("EN"), "");
  EXPECT_EQ(other.rest(), "EN");
}

}  // namespace
}  // namespace attn::test
