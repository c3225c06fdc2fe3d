// Text in, text out: what generates texts, classifies them and fills their masks does what its steps do by hand.
#include <cmath>

#include "attn/core_names.h"
#include "attn/generate_text.h"
#include "attn/models_classify.h"
#include "attn/models_fill.h"
#include "support/errors.h"
#include "support/hub.h"

namespace attn::test {
namespace {

using namespace models;
using generate::GenerateOptions;
using generate::TextGenerator;

constexpr const char* kLetters = "abcdefghijklm";  // as many as kTwoLayers has tokens

Config small(const char* family_name) {
  Config config = family(family_name);
  config.vocab_size = 13;
  config.embed_dim = 16;
  config.layers = 2;
  config.heads = 2;
  config.context = 32;
  return config;
}

TEST(TextGenerator, WritesWhatGenerateMakesOfTheTokens) {
  const auto tokenizer = text::characters_of(kLetters);
  const Model model(small("gpt"), nn::Precision::float32, 3);
  const TextGenerator generator(model, *tokenizer);
  const std::vector<int64_t> prompt = tokenizer->encode_ids("abc");
  const auto tokens = generate::generate(model, prompt, {.sampling = {.temperature = 0}, .max_new_tokens = 12}).tokens;
  const std::string expected = tokenizer->decode(tokens);

  const auto written = generator.write("abc", {.max_new_tokens = 12, .temperature = 0});
  EXPECT_EQ(written.text, expected);
  EXPECT_EQ(written.prompt_ids, prompt);
  EXPECT_EQ(written.generated.tokens, tokens);
  EXPECT_EQ(generator.write(prompt, {.max_new_tokens = 12, .temperature = 0}).text, expected);

  std::string streamed;
  const auto stream = [&](std::string_view piece) {
    streamed += piece;
    return streamed.size() < 8;
  };
  generator.write("abc", {.max_new_tokens = 12, .temperature = 0, .return_full_text = true}, stream);
  EXPECT_EQ(streamed, "abc" + expected.substr(0, 5)) << "a stream that returns false ends the text";
}

TEST(TextGenerator, EndsBeforeAStopString) {
  const auto tokenizer = text::characters_of(kLetters);
  const Model model(small("gpt"), nn::Precision::float32, 5);
  const TextGenerator generator(model, *tokenizer);
  const std::string whole = generator.write("a", {.max_new_tokens = 20, .seed = 1}).text;
  ASSERT_EQ(whole.size(), 20u);
  const std::string stop = whole.substr(9, 3);
  const auto written = generator.write("a", {.max_new_tokens = 20, .stop_strings = {stop}, .seed = 1});
  EXPECT_EQ(written.text, whole.substr(0, whole.find(stop)));
  EXPECT_EQ(generator.write("a", {.max_new_tokens = 20, .stop_strings = {"nowhere"}, .seed = 1}).text, whole)
      << "what may begin a stop string is not lost";
}

TEST(TextGenerator, OptionsStandAboveWhatTheFolderSays) {
  const Folder folder;
  put_llama(folder).put("generation_config.json", R"({"do_sample": true, "temperature": 0.5, "num_beams": 3,
      "max_length": 7, "min_length": 5, "eos_token_id": 4, "stop_strings": ["a"]})");
  const auto opened = [&] {
    Loaded loaded = open(folder.path());
    loaded.tokenizer = text::characters_of(kLetters);
    return loaded;
  };
  const TextGenerator generator(opened());
  const GenerateOptions said = generator.options();
  EXPECT_EQ(said.sampling.temperature, 0.5);
  EXPECT_EQ(said.eos_token_ids, std::vector<int64_t>{4});
  EXPECT_EQ(said.max_length, 7);
  EXPECT_EQ(said.unsupported.size(), 1u);
  const GenerateOptions given =
      generator.options({.max_new_tokens = 3, .min_new_tokens = 2, .temperature = 2, .stop_strings = {"b"}});
  EXPECT_EQ(given.max_new_tokens, 3);
  EXPECT_EQ(given.max_length + given.min_length, 0) << "new tokens are counted in place of all";
  EXPECT_EQ(given.min_new_tokens, 2);
  EXPECT_EQ(given.sampling.temperature, 2);
  EXPECT_EQ(given.beam.num_beams, 1) << "beams do not draw";
  EXPECT_TRUE(given.unsupported.empty()) << "the caller's stop strings replace the folder's";
  EXPECT_EQ(generator.options({.do_sample = false}).sampling.temperature, 0);
  EXPECT_EQ(generator.options({.do_sample = false}).beam.num_beams, 3);
  EXPECT_EQ(generator.options({.num_beams = 2}).sampling.temperature, 0);
  EXPECT_EQ(error_of([&] { generator.options({.do_sample = false, .temperature = 1}); }).find("[generate] do_sample"),
            0u);
  Loaded silent = opened();
  silent.generation_config = {};
  EXPECT_EQ(TextGenerator(std::move(silent)).options().sampling.temperature, generate::kTemperature);
  EXPECT_EQ(error_of([&] { TextGenerator(open(folder.path())); }), "[generate] the model has no tokenizer");
  EXPECT_NE(error_of([&] { TextGenerator(folder.path()); }).find(folder.path()), std::string::npos);
}

TEST(TextGenerator, AnswersBeginAndEndWithTheLastToken) {
  const auto tokenizer = text::characters_of("abcdefghijkl"), source = text::characters_of("xyz");
  Config config = small("seq2seq");
  config.encoder_layers = config.layers = 1;
  config.source_vocab_size = 3;
  const Model model(config, nn::Precision::float32, 2);
  const TextGenerator generator(model, *tokenizer, source.get());
  EXPECT_EQ(generator.options().decoder_start_token_ids, std::vector<int64_t>{12});
  EXPECT_EQ(generator.options().eos_token_ids, std::vector<int64_t>{12});
  EXPECT_EQ(generator.options().sampling.temperature, 0);
  const auto written = generator.write("zyx", {.max_new_tokens = 4, .return_full_text = true});
  EXPECT_EQ(written.prompt_ids, (std::vector<int64_t>{2, 1, 0}));
  EXPECT_EQ(written.text, tokenizer->decode(written.generated.tokens)) << "without the prompt";
}

// ----------------------------------------------------------------------------------------------------------- classes

Loaded classifying(ProblemType problem) {
  Loaded loaded;
  Config config = small("encoder");
  config.classes = 3;
  config.problem_type = problem;
  loaded.model = std::make_unique<Model>(config, nn::Precision::float32, 4);
  loaded.tokenizer = text::characters_of(kLetters);
  loaded.labels = {"same", "other", "same"};
  return loaded;
}

TEST(Classifier, ScoresAreWhatTheProblemSaysOfLogits) {
  const std::vector<std::string> texts = {"abc", "defgh", "m"};
  for (const ProblemType problem : {ProblemType::single_label, ProblemType::multi_label, ProblemType::regression}) {
    Classifier classifier(classifying(problem));
    EXPECT_EQ(classifier.labels(), (std::vector<std::string>{"same (0)", "other", "same (2)"}));
    if (problem != ProblemType::regression) classifier.options.temperature = 2;
    classifier.options.batch_size = 2;
    const std::vector<Classification> found = classifier(texts);
    ASSERT_EQ(found.size(), texts.size());
    const std::vector<text::Encoding> first = {classifier.encode(texts[0]), classifier.encode(texts[1])};
    const auto logits = classifier.logits(first);
    for (size_t n = 0; n < first.size(); ++n) {
      std::vector<double> divided = logits[n];
      for (double& logit : divided) logit /= classifier.options.temperature;
      const std::vector<double> logarithms = log_softmax(divided);
      for (size_t c = 0; c < 3; ++c)
        EXPECT_EQ(found[n].scores[c], problem == ProblemType::single_label  ? std::exp(logarithms[c])
                                      : problem == ProblemType::multi_label ? 1 / (1 + std::exp(-divided[c]))
                                                                            : logits[n][c])
            << name_of(problem);
      EXPECT_EQ(*std::max_element(found[n].scores.begin(), found[n].scores.end()),
                found[n].scores[static_cast<size_t>(found[n].label)]);
    }
  }
}

TEST(Classifier, TruncatesTextsAndRefusesWhatItCannotDo) {
  Classifier classifier(classifying(ProblemType::single_label));
  classifier.options.max_length = 4;
  EXPECT_EQ(classifier.encode("abcd").ids.size(), 4u);
  EXPECT_FALSE(classifier.encode("abcd").truncated);
  EXPECT_EQ(classifier.encode("abcde").ids, classifier.encode("abcd").ids);
  EXPECT_TRUE(classifier.encode("abcde").truncated);
  const std::vector<std::string> texts = {"a"};
  classifier.options = {.max_length = -1, .temperature = 0, .batch_size = 0};
  EXPECT_EQ(reasons_of([&] { classifier(texts); }).size(), 3u);
  Classifier regression(classifying(ProblemType::regression));
  regression.options.temperature = 2;
  EXPECT_EQ(reasons_of([&] { regression(texts); }).size(), 1u);
  Loaded writer = classifying(ProblemType::single_label);
  writer.model = std::make_unique<Model>(small("gpt"), nn::Precision::float32);
  writer.tokenizer = nullptr;
  EXPECT_EQ(reasons_of([&] { Classifier(std::move(writer)); }).size(), 2u);
}

// ------------------------------------------------------------------------------------------------------------- masks

Loaded masked() {
  Config config;
  apply_json(config, R"({"model": "bert", "vocab_size": 13, "embed_dim": 8, "hidden_dim": 12, "layers": 1, "heads": 2,
      "context": 16})",
             "bert");
  Loaded loaded;
  loaded.model = std::make_unique<Model>(config, nn::Precision::float32, 6);
  loaded.tokenizer =
      text::load_wordpiece("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\ne\nf\ng\nh\n", false, "vocab.txt");
  return loaded;
}

TEST(MaskFiller, GivesTheMostProbableTokensOfEachMask) {
  const MaskFiller fill(masked());
  EXPECT_EQ(fill.mask(), "[MASK]");
  const std::vector<FilledMask> found = fill("a [MASK] b [MASK]", 13);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1].position - found[0].position, 2);
  const std::vector<int64_t> ids = fill.loaded().tokenizer->encode("a [MASK] b [MASK]").ids;
  Batch batch{.tokens = ids, .sequences = 1, .length = std::ssize(ids)};
  Tape tape;
  const attn::Array logits = fill.loaded().model->forward(tape, batch).data();
  for (const FilledMask& mask : found) {
    EXPECT_EQ(ids[static_cast<size_t>(mask.position)], 4);
    const float* row = logits.data<float>() + mask.position * 13;
    double sum = 0;
    for (int64_t id = 0; id < 13; ++id) sum += std::exp(double{row[id]} - *std::max_element(row, row + 13));
    ASSERT_EQ(mask.tokens.size(), 13u);
    for (size_t n = 0; n < 13; ++n) {
      const FilledToken& token = mask.tokens[n];
      EXPECT_EQ(token.probability, std::exp(double{row[token.id]} - *std::max_element(row, row + 13)) / sum);
      EXPECT_EQ(token.text, fill.loaded().tokenizer->label(token.id));
      EXPECT_LE(token.probability, mask.tokens[n > 0 ? n - 1 : 0].probability);
    }
  }
  EXPECT_EQ(fill("[MASK]", 2)[0].tokens.size(), 2u);
  EXPECT_EQ(error_of([&] { fill("a b"); }), "[fill] the text has no [MASK]");
  EXPECT_EQ(error_of([&] { fill("[MASK]", 0); }), "[fill] top_k is 0, must be at least 1");
  Loaded other = masked();
  other.tokenizer = text::characters_of(kLetters);
  EXPECT_EQ(error_of([&] { MaskFiller(std::move(other)); }),
            "[fill] the tokenizer has no mask token, [MASK] or <mask>");
}

}  // namespace
}  // namespace attn::test
