// What models are fine-tuned for: packed and weighted sentences, numbers, words, masked tokens, pairs; and metrics.
#include <cmath>
#include <fstream>

#include "attn/train_metrics.h"
#include "attn/train_pairs.h"
#include "attn/train_similarity.h"
#include "support/folder.h"
#include "support/tolerance.h"
#include "support/training.h"

namespace attn::test {
namespace {

std::string written(const std::string& path, const std::string& content) {
  std::ofstream(path) << content;
  return path;
}

template <class Run>
std::string reason_of(const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.reasons().front();
  }
  return "no error";
}

models::Config encoder(int64_t classes) {
  models::Config config = models::family("encoder");
  config.vocab_size = 40, config.context = 16, config.layers = 1, config.embed_dim = 16, config.heads = 2;
  config.classes = classes;
  return config;
}

std::vector<Labelled> sentences(int64_t count) {
  std::vector<Labelled> rows;
  for (int64_t n = 0; n < count; ++n) {
    std::vector<int64_t> tokens;
    for (int64_t k = 0; k <= n % 7; ++k) tokens.push_back((5 * n + 3 * k) % 40);
    rows.push_back({std::move(tokens), n % 3});
  }
  return rows;
}

// ----------------------------------------------------------------------------------------------------------- sentences

/// The losses and gradients of a packed batch are those of the padded one with the same sentences.
TEST(Tasks, PackedBatchesTeachWhatPaddedOnesDo) {
  const std::vector<Labelled> rows = sentences(30);
  const LabelledDataset padded(rows, rows, 16, 8, 3), packed(rows, rows, 16, 8, 3, {.packed = true});
  models::Model model(encoder(3), nn::Precision::float64, 1);
  for (uint64_t n = 0; n < 8; ++n) {
    const models::Batch a = padded.training(n), b = packed.training(n);
    EXPECT_EQ(a.targets, b.targets);
    EXPECT_TRUE(b.lengths.empty());
    EXPECT_EQ(b.length, std::ssize(b.tokens));
    Tape first, second;
    EXPECT_TRUE(close_float64({model.loss(first, a).item<double>()}, {model.loss(second, b).item<double>()}));
  }
  EXPECT_TRUE(close_float64({validate(model, padded).loss, validate(model, padded).accuracy},
                            {validate(model, packed).loss, validate(model, packed).accuracy}));
}

TEST(Tasks, ClassWeightsWeighLosses) {
  const std::vector<Labelled> rows = sentences(9);
  const LabelledDataset plain(rows, rows, 16, 9, 3), weighted(rows, rows, 16, 9, 3, {.class_weights = {1, 0, 4}});
  const models::Model model(encoder(3), nn::Precision::float64, 1);
  const models::Batch batch = plain.validation(0);
  double sum = 0, weights = 0;
  for (int64_t n = 0; n < 9; ++n) {
    models::Batch one = batch;
    for (int64_t k = 0; k < 9; ++k)
      if (k != n) one.targets[static_cast<size_t>(k)] = ops::kIgnoreIndex;
    const double weight = std::array{1.0, 0.0, 4.0}[static_cast<size_t>(n % 3)];
    Tape tape;
    sum += weight * model.loss(tape, one).item<double>();
    weights += weight;
  }
  EXPECT_TRUE(close_float64({validate(model, weighted).loss}, {sum / weights}));
  EXPECT_EQ(reason_of([&] {
              LabelledDataset(rows, rows, 16, 9, 3, {.class_weights = {1, 1}});
            }),
            "training[2] has label 2, which has no class weight");
}

TEST(Tasks, NumbersAreLearned) {
  std::vector<Labelled> rows = sentences(24);
  for (Labelled& row : rows) row.value = 0.5 * static_cast<double>(row.tokens.size()) - 1;
  const LabelledDataset data(rows, rows, 16, 8, 3, {.packed = true});
  models::Config config = encoder(1);
  config.problem_type = models::ProblemType::regression;
  models::Model model(config, nn::Precision::float32, 1);
  Trainer trainer(model, data, {.steps = 150, .learning_rate = 1e-2, .warmup = 10}, "", {.metric = Metric::pearson});
  const double before = trainer.validate().loss;
  for (int64_t n = 0; n < 150; ++n) trainer.step();
  const Validation after = trainer.validate();
  EXPECT_LT(after.loss, 0.2 * before);
  EXPECT_EQ(after.metric, Metric::pearson);
  EXPECT_GT(trainer.best_score(), 0.8);
  rows[3].value = {};
  EXPECT_EQ(reason_of([&] { LabelledDataset(rows, rows, 16, 8, 3); }),
            "training[3] has a label of another kind than training[0]");
}

TEST(Tasks, PairsAndNumbersOfFiles) {
  const Folder folder;
  const auto tokenizer = attn::text::characters_of("abc ");
  const std::vector<LabelledText> pairs =
      read_labelled(written(folder / "a.tsv", "label\tsentence2\tid\tsentence1\n1\tb c\t0\ta\n0\tc\t1\tb\n"));
  EXPECT_EQ(pairs[0].text, "a");
  EXPECT_EQ(pairs[0].pair, "b c");
  EXPECT_EQ(pairs[1].label, "0");
  const std::vector<LabelledText> numbers =
      read_labelled(written(folder / "a.jsonl", "{\"text\": \"a\", \"score\": 1.5, \"source\": 7}\n"), true);
  EXPECT_EQ(encode_numbers(numbers, *tokenizer)[0].value, 1.5);
  const std::vector<LabelledText> wrong = {{"a", "1e999", 4}};
  EXPECT_EQ(reason_of([&] { encode_numbers(wrong, *tokenizer, {.source = "b.tsv"}); }),
            "b.tsv, line 4: the label must be a finite number, not \"1e999\"");
}

// -------------------------------------------------------------------------------------------------------------- words

TEST(Tasks, LabelledWordsOfFiles) {
  const Folder folder;
  const auto words = [](const std::vector<LabelledWords>& rows) {
    std::string all;
    for (const LabelledWords& row : rows) {
      for (size_t n = 0; n < row.words.size(); ++n) all += row.words[n] + "/" + row.labels[n] + " ";
      all += "| ";
    }
    return all;
  };
  EXPECT_EQ(words(read_labelled_words(
                written(folder / "a.txt", "-DOCSTART- -X- O O\n\nEU NNP B-ORG\nbe VB O\n\n\na DT O\n"))),
            "EU/B-ORG be/O | a/O | ");
  EXPECT_EQ(words(read_labelled_words(written(folder / "a.tsv", "New York\tB-LOC\nis\tO\n"))),
            "New York/B-LOC is/O | ");
  EXPECT_EQ(words(read_labelled_words(
                written(folder / "a.jsonl", "{\"tokens\": [\"a\", \"b\"], \"tags\": [\"X\", \"O\"]}\n"))),
            "a/X b/O | ");
  EXPECT_EQ(
      words(read_labelled_words(written(
          folder / "a.conllu", "# text\n1-2\tdel\t_\t_\t_\t_\t_\t_\t_\t_\n1\tde\t_\tADP\t_\t_\t0\troot\t_\t_\n"))),
      "de/ADP | ");
  const std::string path = folder / "b.txt";
  EXPECT_EQ(reason_of([&] { read_labelled_words(written(path, "a O\nb\n")); }),
            path + ", line 2: must be a word, a tab or a space, and its label");
  EXPECT_EQ(reason_of([&] { read_labelled_words(written(path, "\n\n")); }), path + " has no words");
  EXPECT_EQ(
      reason_of([&] { read_labelled_words(written(folder / "b.jsonl", "{\"tokens\": [\"a\"], \"tags\": []}\n")); }),
      std::string(folder / "b.jsonl") +
          ", line 1: must be an object {\"tokens\": [...], \"tags\": [...]}, two lists of as many texts");
}

TEST(Tasks, TheFirstTokenOfAWordHasItsLabel) {
  const std::vector<std::string> texts = {"lower newer wider low new wide"};
  const auto tokenizer = attn::text::train_tokenizer(texts, {.kind = "wordpiece", .vocab_size = 19, .min_count = 1});
  const std::vector<LabelledWords> rows = {{{"lower", "newest"}, {"B", "O"}, 1}};
  const std::vector<std::string> classes = classes_of(rows);
  EXPECT_EQ(classes, (std::vector<std::string>{"O", "B"}));
  const Labelled row = encode_labelled_words(rows, *tokenizer, classes).front();
  EXPECT_EQ(row.tokens, tokenizer->encode("lower newest").ids);
  const auto first = static_cast<size_t>(tokenizer->encode_ids("lower").size());
  ASSERT_GT(first, 1u) << "a word of several tokens";
  for (size_t n = 0; n < row.tokens.size(); ++n)
    EXPECT_EQ(row.token_labels[n], n == 1 ? 1 : n == 1 + first ? 0 : ops::kIgnoreIndex) << n;
  const Labelled cut = encode_labelled_words(rows, *tokenizer, classes, {.max_length = 4}).front();
  EXPECT_EQ(cut.tokens.size(), 4u);
  EXPECT_EQ(cut.tokens.back(), row.tokens.back()) << "the special token stays";
}

TEST(Tasks, ClassesOfWordsAreLearned) {
  std::vector<Labelled> rows = sentences(24);
  for (Labelled& row : rows)
    for (const int64_t token : row.tokens) row.token_labels.push_back(token % 5 ? token % 2 : ops::kIgnoreIndex);
  rows[0].token_labels[0] = 1;
  models::Config config = encoder(2);
  config.pooling = models::ClassifierPooling::each;
  for (const bool packed : {false, true}) {
    models::Model model(config, nn::Precision::float32, 1);
    const LabelledDataset data(rows, rows, 16, 8, 3, {.packed = packed});
    Trainer trainer(model, data, {.steps = 80, .learning_rate = 1e-2, .warmup = 10}, "");
    for (int64_t n = 0; n < 80; ++n) trainer.step();
    EXPECT_GT(trainer.validate().accuracy, 0.95) << packed;
  }
}

// ------------------------------------------------------------------------------------------------------------- masked

TEST(Tasks, MaskedTokensAreFifteenPercent) {
  std::vector<int64_t> tokens(20000);
  for (size_t n = 0; n < tokens.size(); ++n) tokens[n] = 10 + static_cast<int64_t>(n % 80);
  const MaskingOptions masking{.mask_id = 3, .vocab_size = 1000000, .before = {1}, .after = {2, 4}};
  const MaskedTextDataset data(tokens, masking, 67, 100, 5);
  const models::Batch batch = data.training(7);
  EXPECT_EQ(batch.tokens, data.training(7).tokens);
  EXPECT_NE(batch.tokens, data.training(8).tokens);
  double chosen = 0, masked = 0, kept = 0, drawn = 0;
  for (size_t n = 0; n < batch.tokens.size(); ++n) {
    const size_t place = n % 67;
    if (place == 0 || place > 64) {
      EXPECT_EQ(batch.targets[n], ops::kIgnoreIndex);
      EXPECT_EQ(batch.tokens[n], place == 0 ? 1 : place == 65 ? 2 : 4);
      continue;
    }
    if (batch.targets[n] == ops::kIgnoreIndex) {
      EXPECT_LT(batch.tokens[n], 90);
      continue;
    }
    ++chosen;
    (batch.tokens[n] == 3 ? masked : batch.tokens[n] == batch.targets[n] ? kept : drawn)++;
  }
  EXPECT_NEAR(chosen / 6400, 0.15, rate_bound(0.15, 6400));
  EXPECT_NEAR(masked / chosen, 0.8, rate_bound(0.8, static_cast<int64_t>(chosen)));
  EXPECT_NEAR(kept / chosen, 0.1, rate_bound(0.1, static_cast<int64_t>(chosen)));
  EXPECT_NEAR(drawn / chosen, 0.1, rate_bound(0.1, static_cast<int64_t>(chosen)));
  EXPECT_EQ(reason_of([&] { MaskedTextDataset(tokens, masking, 3, 1, 5); }),
            "context is 3, must be more than the 3 special tokens around a crop");
}

// ------------------------------------------------------------------------------------------------------------- answers

TEST(Tasks, AnAnswerMayBeginWithAnotherTokenThanItEndsWith) {
  const std::vector<Pair> pairs = {{{5, 6}, {7, 8}}};
  const PairData data(pairs, pairs, 1, 8, 1, 1, 0);
  const models::Batch batch = data.validation(0);
  EXPECT_EQ(std::vector(batch.tokens.begin(), batch.tokens.begin() + 3), (std::vector<int64_t>{0, 7, 8}));
  EXPECT_EQ(std::vector(batch.targets.begin(), batch.targets.begin() + 4),
            (std::vector<int64_t>{7, 8, 1, ops::kIgnoreIndex}));
}

// ---------------------------------------------------------------------------------------------------------- similarity

std::vector<SentencePair> pairs_of(int64_t count, bool negatives) {
  std::vector<SentencePair> pairs;
  for (int64_t n = 0; n < count; ++n) {
    SentencePair pair;
    pair.first.ids = {n % 40, (n + 1) % 40};
    pair.second.ids = {(n + 1) % 40, n % 40, n % 40};
    pair.score = n % 2 ? 0.9 : -0.2;
    if (negatives) pair.negative.ids = {(n + 7) % 40};
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

models::Config sentence_encoder() {
  models::Config config = encoder(0);
  config.head = false;
  return config;
}

/// Vectors, cosines and losses in plain loops.
TEST(Similarity, LossesAreThoseOfTheirFormulas) {
  models::Config config = sentence_encoder();
  const models::Model model(config, nn::Precision::float64, 1);
  const SentencePairs data(pairs_of(6, true), pairs_of(6, true), 16, 6, 1);
  const models::Batch batch = data.validation(0);
  ASSERT_EQ(batch.sequences, 18);
  for (const models::Pooling pooling : {models::Pooling::mean, models::Pooling::first}) {
    std::vector<std::vector<double>> vectors;
    for (int64_t b = 0; b < 18; ++b) {
      const auto n = static_cast<size_t>(b);
      models::Batch one;
      one.sequences = 1;
      one.tokens.assign(batch.tokens.begin() + batch.cu_seqlens[n], batch.tokens.begin() + batch.cu_seqlens[n + 1]);
      one.length = std::ssize(one.tokens);
      Tape tape;
      const std::vector<double> rows = model.hidden(tape, one).data().values();
      std::vector<double> vector(16, 0);
      for (int64_t r = 0; r < (pooling == models::Pooling::mean ? one.length : 1); ++r)
        for (size_t c = 0; c < 16; ++c) vector[c] += rows[static_cast<size_t>(r) * 16 + c];
      double squares = 0;
      for (const double x : vector) squares += x * x;
      for (double& x : vector) x /= std::sqrt(squares);
      vectors.push_back(vector);
    }
    const auto cosine = [&](size_t a, size_t b) {
      double sum = 0;
      for (size_t c = 0; c < 16; ++c) sum += vectors[a][c] * vectors[b][c];
      return sum;
    };
    double squared = 0, entropy = 0;
    for (size_t p = 0; p < 6; ++p) {
      squared += std::pow(cosine(p, 6 + p) - batch.values[p], 2) / 6;
      double total = 0;
      for (size_t other = 6; other < 18; ++other) total += std::exp(20 * cosine(p, other));
      entropy += (std::log(total) - 20 * cosine(p, 6 + p)) / 6;
    }
    const SimilarityOptions scores{.pooling = pooling}, ranked{.loss = SimilarityLoss::contrastive, .pooling = pooling};
    EXPECT_NEAR(validate_similarity(model, data, scores).loss, squared, 1e4 * kUnit64);
    EXPECT_NEAR(validate_similarity(model, data, ranked).loss, entropy, 20 * 1e4 * kUnit64);
  }
  EXPECT_EQ(reason_of([&] { validate_similarity(model, data, {.pooling = models::Pooling::max}); }),
            "a sentence encoder with pooling max cannot be trained, only with mean and cls");
}

TEST(Similarity, IsLearned) {
  for (const SimilarityLoss loss : {SimilarityLoss::cosine, SimilarityLoss::contrastive}) {
    models::Model model(sentence_encoder(), nn::Precision::float32, 1);
    const SentencePairs data(pairs_of(40, false), pairs_of(40, false), 16, 20, 1);
    const SimilarityOptions how{.loss = loss};
    Trainer trainer(model.parameters(), similarity_loss(model, data, how),
                    {.steps = 60, .learning_rate = 5e-3, .warmup = 5}, "",
                    [&] { return validate_similarity(model, data, how); });
    const Validation before = trainer.validate();
    for (int64_t n = 0; n < 60; ++n) trainer.step();
    const Validation after = trainer.validate();
    EXPECT_LT(after.loss, 0.5 * before.loss);
    EXPECT_GE(after.score, before.score);
    EXPECT_EQ(after.metric, loss == SimilarityLoss::cosine ? Metric::spearman : Metric::accuracy);
  }
}

TEST(Similarity, PairsOfFiles) {
  const Folder folder;
  const auto tokenizer = attn::text::characters_of("abc");
  const auto scored =
      encode_pair_texts(read_pair_texts(written(folder / "a.tsv", "a\tb\t0.5\nb\tc\t1\n")), true, *tokenizer);
  EXPECT_EQ(scored[0].score, 0.5);
  EXPECT_EQ(scored[1].second.ids, (std::vector<int64_t>{2}));
  const PairTexts plain = read_pair_texts(written(folder / "c.tsv", "a\tb\nb\tc\n"));
  EXPECT_TRUE(plain.scores.empty());
  const PairTexts ranked = read_pair_texts(written(folder / "a.csv", "anchor,negative,positive\na,b,c\n"));
  EXPECT_EQ(encode_pair_texts(ranked, false, *tokenizer)[0].negative.ids, (std::vector<int64_t>{1}));
  EXPECT_EQ(encode_pair_texts(ranked, false, *tokenizer)[0].second.ids, (std::vector<int64_t>{2}));
  const std::string path = folder / "b.tsv";
  EXPECT_EQ(reason_of([&] { encode_pair_texts(plain, true, *tokenizer, {.source = path}); }),
            path + " has no scores: a third column, or one that is named score");
  EXPECT_EQ(reason_of([&] { read_pair_texts(written(path, "a\tb\tx\n")); }),
            path + ", line 1: the label must be a finite number, not \"x\"");
  EXPECT_EQ(reason_of([&] { read_pair_texts(written(path, "a\tb\t1\na\tb\n")); }),
            path + ", line 2: must be text, a tab, and a text_pair");
}

// ------------------------------------------------------------------------------------------------------------- metrics

/// By hand; tests/parity/test_tasks.py has scikit-learn's and SciPy's for random ones.
TEST(Metrics, OfSmallLists) {
  const Predictions said = {.expected = {0, 0, 1, 1, 1}, .predicted = {0, 1, 1, 1, 0}};
  EXPECT_DOUBLE_EQ(metric_value(Metric::accuracy, said), 0.6);
  EXPECT_DOUBLE_EQ(metric_value(Metric::f1, said), 2.0 / 3);
  EXPECT_DOUBLE_EQ(metric_value(Metric::macro_f1, said), (0.5 + 2.0 / 3) / 2);
  EXPECT_NEAR(metric_value(Metric::matthews, said), (2.0 * 1 - 1.0 * 1) / std::sqrt(3.0 * 3 * 2 * 2), 16 * kUnit64);
  const Predictions numbers = {.expected_values = {1, 2, 3, 4}, .predicted_values = {1, 4, 9, 16}};
  EXPECT_DOUBLE_EQ(metric_value(Metric::spearman, numbers), 1);
  EXPECT_NEAR(metric_value(Metric::pearson, numbers), 25 / std::sqrt(5.0 * 129), 16 * kUnit64);
  EXPECT_EQ(metric_value(Metric::pearson, {.expected_values = {1, 2}, .predicted_values = {3, 3}}), 0);
  EXPECT_EQ(reason_of([] { metric_value(Metric::f1, {.expected = {2}, .predicted = {0}}); }),
            "f1 is for two classes; macro_f1 is for any number of them");
  EXPECT_EQ(reason_of([] { metric_value(Metric::spearman, {.expected = {1}, .predicted = {1}}); }),
            "spearman needs as many predicted as expected numbers, at least one, not 0 and 0");
}

TEST(Metrics, OfSpans) {
  const std::vector<std::string> labels = {"O", "B-X", "I-X", "B-Y", "I-Y"};
  // X X O Y | Y: the second text begins another span. Predicted: X alone, then O, and both Y.
  const Predictions said = {.expected = {1, 2, 0, 3, 4}, .predicted = {1, 0, 0, 3, 4}, .ends = {4, 5}};
  EXPECT_DOUBLE_EQ(metric_value(Metric::span_f1, said, labels), 2.0 / 3);
  const Predictions one_text = {.expected = {1, 2, 0, 3, 4}, .predicted = {1, 0, 0, 3, 4}, .ends = {5}};
  EXPECT_DOUBLE_EQ(metric_value(Metric::span_f1, one_text, labels), 0.5);
  const std::vector<std::string> others = {"O", "NOUN"};
  EXPECT_EQ(
      reason_of([&] { metric_value(Metric::span_f1, {.expected = {0}, .predicted = {1}}, others); }),
      "span_f1 needs the labels O and B-, I-, E- or S- with a type, not NOUN; accuracy and macro_f1 are for others");
}

}  // namespace
}  // namespace attn::test
