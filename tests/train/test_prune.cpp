// Which heads matter: gradients against differences and against leaving a head out, the formulas of learned gates, and
// what is removed.
#include <cmath>
#include <numeric>

#include "attn/train_prune.h"
#include "support/errors.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using namespace train;
using attn::Array;
using models::Config;
using models::HeadLists;
using models::Model;

Config small(const std::string& family) {
  Config config = models::family(family);
  config.vocab_size = 11;
  config.context = 8;
  config.embed_dim = 12;
  config.layers = 2;
  config.heads = 3;
  config.dropout = 0;
  if (config.encoder_layers) config.encoder_layers = 1;
  return config;
}

/// Batches of three sequences of random tokens, some of whose targets take no part.
class Noise : public Dataset {
 public:
  explicit Noise(const Config& config, int64_t sequences = 3) : config_(config), sequences_(sequences) {}
  models::Batch training(uint64_t number) const override {
    Random random(17, number);
    const auto draw = [&](int64_t count, int64_t below) {
      std::vector<int64_t> ids(static_cast<size_t>(count));
      for (int64_t& id : ids) id = random.below(below);
      return ids;
    };
    models::Batch batch;
    batch.sequences = sequences_;
    batch.length = 6;
    batch.tokens = draw(sequences_ * 6, config_.vocab_size);
    batch.targets = draw(config_.classes ? sequences_ : sequences_ * 6, config_.classes ? 2 : config_.vocab_size);
    if (!config_.classes) std::fill_n(batch.targets.begin(), 2, ops::kIgnoreIndex);
    if (config_.encoder_layers) {
      batch.source_length = 5;
      batch.source = draw(sequences_ * 5, config_.vocab_size);
    }
    return batch;
  }
  models::Batch validation(int64_t number) const override { return training(static_cast<uint64_t>(1000 + number)); }
  int64_t validation_batches() const override { return 2; }
  int64_t batches_per_epoch() const override { return 4; }
  std::string describe() const override { return "noise"; }

 private:
  Config config_;
  int64_t sequences_;
};

Model exact(const Config& config) {
  Model model(config, nn::Precision::float64, 5);
  stir(model.parameters());
  return model;
}

/// Sequence b of a batch alone.
models::Batch one_of(const models::Batch& batch, int64_t b) {
  const auto part = [&](const std::vector<int64_t>& all) {
    const auto each = static_cast<int64_t>(all.size()) / batch.sequences;
    return std::vector<int64_t>(all.begin() + b * each, all.begin() + (b + 1) * each);
  };
  models::Batch one = batch;
  one.sequences = 1;
  one.tokens = part(batch.tokens);
  one.targets = part(batch.targets);
  one.source = part(batch.source);
  return one;
}

double loss_with(const Model& model, const models::Batch& batch, size_t layer, size_t head, double gate) {
  const HeadLists none(models::attention_layers(model.config()).size());
  const std::vector<Value> gates = models::gates_without(model.config(), none, DType::float64);
  static_cast<double*>(gates[layer].data().data())[head] = gate;
  Tape tape;
  return numbers(model.loss(tape, batch, {.gates = &gates}).data()).front();
}

TEST(HeadScores, GradientsAreTheMeanOfEachSamplesDifference) {
  for (const char* name : {"gpt", "encoder", "seq2seq"}) {
    SCOPED_TRACE(name);
    const Model model = exact(small(name));
    const Noise data(model.config());
    const HeadScores scores = gradient_scores(model, data, 2, false), unit = gradient_scores(model, data, 2);
    for (size_t n = 0; n < scores.size(); ++n) {
      double squares = 0;
      for (size_t h = 0; h < scores[n].size(); ++h) {
        double mean = 0;
        for (uint64_t number : {0, 1})
          for (int64_t b = 0; b < 3; ++b) {
            const models::Batch one = one_of(data.training(number), b);
            mean += std::abs(loss_with(model, one, n, h, 1 + kDifferenceStep) -
                             loss_with(model, one, n, h, 1 - kDifferenceStep)) /
                    (2 * kDifferenceStep) / 6;
          }
        EXPECT_LE(std::abs(scores[n][h] - mean), difference_bound(mean)) << "layer " << n << ", head " << h;
        squares += scores[n][h] * scores[n][h];
      }
      Values divided = scores[n];
      for (double& score : divided) score /= std::sqrt(squares);
      EXPECT_TRUE(close_float64(unit[n], divided));
    }
  }
}

/// Of one sample, with heads that give little: what leaving a head out costs is the gradient, up to the square of how
/// much that is.
TEST(HeadScores, LeavingAHeadOutIsTheGradientToFirstOrder) {
  const auto differences = [](double factor) {
    Model model = exact(small("gpt"));
    for (const nn::Parameter& parameter : model.parameters().all())
      if (parameter.name.ends_with("attention.output.weight"))
        ops::scale(parameter.master.flat(), factor, parameter.master.flat());
    const Noise data(model.config(), 1);
    const HeadScores gradient = gradient_scores(model, data, 1, false), left = leave_one_out_scores(model, data, 1);
    Values all;
    for (size_t n = 0; n < left.size(); ++n)
      for (size_t h = 0; h < left[n].size(); ++h) all.push_back(std::abs(std::abs(left[n][h]) - gradient[n][h]));
    return all;
  };
  const Values wide = differences(0x1p-6), narrow = differences(0x1p-8);  // 16 times less, if it is a square
  for (size_t n = 0; n < wide.size(); ++n) EXPECT_LT(8 * narrow[n], wide[n]) << "head " << n;
}

TEST(HeadScores, LeavingOutIsTheLossWithoutTheHead) {
  const Model model = exact(small("encoder"));
  const Noise data(model.config());
  const HeadScores scores = leave_one_out_scores(model, data, 1);
  Values expected;
  for (size_t n = 0; n < 2; ++n)
    for (size_t h = 0; h < 3; ++h)
      expected.push_back(loss_with(model, data.training(0), n, h, 0) - loss_with(model, data.training(0), n, h, 1));
  Values all = scores[0];
  all.insert(all.end(), scores[1].begin(), scores[1].end());
  EXPECT_TRUE(close_float64(all, expected));
}

TEST(HeadScores, RandomOnesFollowTheSeed) {
  const Config config = small("gpt");
  EXPECT_EQ(random_scores(config, 1), random_scores(config, 1));
  EXPECT_NE(random_scores(config, 1), random_scores(config, 2));
}

TEST(LearnedGates, FormulasAgainstPlainOnes) {
  const HardConcrete gate;
  Values ours, plain;
  bool closed = false, open = false;
  for (const double alpha : {-4.0, -1.0, 0.0, 0.5, 3.0}) {
    for (const double u : {0.01, 0.3, 0.5, 0.8, 0.999}) {
      const double logit = std::log(u) - std::log(1 - u);
      const double s = 1 / (1 + std::exp(-(logit + alpha) / 0.33));
      const double z = std::min(1.0, std::max(0.0, 1.2 * s - 0.1));
      closed = closed || z == 0;
      open = open || z == 1;
      ours.push_back(gate.sample(alpha, u));
      plain.push_back(z);
      const double slope =
          (gate.sample(alpha + kDifferenceStep, u) - gate.sample(alpha - kDifferenceStep, u)) / (2 * kDifferenceStep);
      EXPECT_LE(std::abs(gate.sample_slope(alpha, u) - slope), difference_bound(slope)) << alpha << " " << u;
    }
    // The gate is 0 up to the u at which the stretched variable is.
    const double ratio = std::exp(0.33 * std::log(0.1 / 1.1) - alpha), edge = ratio / (1 + ratio);
    ours.push_back(gate.open(alpha));
    plain.push_back(1 - edge);
    EXPECT_EQ(gate.sample(alpha, edge * 0.99), 0);
    EXPECT_GT(gate.sample(alpha, std::min(edge * 1.01, 0.999999)), 0);
    const double slope =
        (gate.open(alpha + kDifferenceStep) - gate.open(alpha - kDifferenceStep)) / (2 * kDifferenceStep);
    EXPECT_LE(std::abs(gate.open_slope(alpha) - slope), difference_bound(slope)) << alpha;
  }
  EXPECT_TRUE(closed && open);
  EXPECT_TRUE(close_float64(ours, plain));
}

/// A head whose columns of W_O are 0 changes nothing: the penalty alone moves its gate.
TEST(LearnedGates, AHeadWithoutEffectCloses) {
  const Model model = exact(small("gpt"));
  const Array weight = model.parameters().find("blocks.1.attention.output.weight")->master;
  for (int64_t r = 0; r < 12; ++r)
    for (int64_t c = 4; c < 8; ++c) static_cast<double*>(weight.data())[r * 12 + c] = 0;
  const Noise data(model.config());
  GateOptions options{.steps = 20, .learning_rate = 0.2, .penalty = 1e-4};
  const HeadScores alphas = learned_gates(model, data, options);
  const auto& last = alphas[1];
  EXPECT_LT(last[1], options.first);
  EXPECT_EQ(alphas, learned_gates(model, data, options));
  options.penalty = 0;
  EXPECT_EQ(learned_gates(model, data, options)[1][1], options.first) << "neither the loss nor a penalty moves it";
  options.penalty = 100;
  for (const auto& layer : learned_gates(model, data, options))
    for (const double alpha : layer) EXPECT_LT(alpha, options.first);
}

TEST(LearnedGates, WrongOptionsAreErrors) {
  const Model model = exact(small("gpt"));
  const Noise data(model.config());
  const auto reason = [&](const GateOptions& options) {
    return reasons_of([&] { learned_gates(model, data, options); }).at(0);
  };
  EXPECT_EQ(reason({.steps = 0}), "steps is 0, must be positive");
  EXPECT_EQ(reason({.learning_rate = kNaN}), "learning_rate is nan, must be positive and finite");
  EXPECT_EQ(reason({.penalty = -1}),
            "penalty is -1.000000 and first 2.000000, must be finite, and penalty not negative");
  EXPECT_NE(reason({.gate = {.low = 0}}).find("low 0.000000 and high 1.100000, must be positive, below 0 and above 1"),
            std::string::npos);
  EXPECT_EQ(reasons_of([&] { gradient_scores(model, data, 0); }).at(0), "batches is 0, must be positive");
  EXPECT_EQ(reasons_of([&] { leave_one_out_scores(model, data, -1); }).at(0), "batches is -1, must be positive");
}

TEST(PrunedTraining, TheLeastGoAndOneStays) {
  const HeadScores scores = {{3, 1, 2}, {0, 0, 0}, {-5}};
  EXPECT_EQ(least_heads(scores, 0), (HeadLists{{}, {}, {}}));
  EXPECT_EQ(least_heads(scores, 1), (HeadLists{{}, {1}, {}}))
      << "of equal scores the first, but for the one that stays";
  EXPECT_EQ(least_heads(scores, 3), (HeadLists{{1}, {1, 2}, {}}));
  EXPECT_EQ(least_heads(scores, 4), (HeadLists{{1, 2}, {1, 2}, {}}));
  for (int64_t count : {-1, 5})
    EXPECT_EQ(
        reasons_of([&] { least_heads(scores, count); }).at(0),
        "the number of heads to remove is " + std::to_string(count) + ", must be from 0 to 4: each layer keeps one");
  EXPECT_EQ(reasons_of([&] { least_heads({{1, kNaN}}, 1); }).at(0), "a score is not finite");
}

TEST(PrunedTraining, RoundsScoreWhatIsLeftAndRetrain) {
  const Model model = exact(small("seq2seq"));
  const Noise data(model.config());
  EXPECT_EQ(count_heads(model.config()), 15);
  EXPECT_EQ(removable_heads(model.config()), 10);
  for (const Scoring scoring : {Scoring::gradient, Scoring::leave_one_out, Scoring::gates, Scoring::random}) {
    PruneOptions options{.heads = 5, .rounds = 2, .scoring = scoring, .batches = 1, .gates = {.steps = 2}};
    std::vector<int64_t> heads;
    options.on_round = [&](int64_t, const HeadScores& scores, const HeadLists& removed) {
      for (const auto& layer : scores) heads.push_back(static_cast<int64_t>(layer.size()));
      for (const auto& layer : removed) heads.push_back(-static_cast<int64_t>(layer.size()));
    };
    const Model plain = prune(model, data, options);
    ASSERT_EQ(heads.size(), 20u);
    EXPECT_EQ(std::accumulate(heads.begin(), heads.begin() + 5, int64_t{0}), 15);
    EXPECT_EQ(std::accumulate(heads.begin() + 5, heads.begin() + 10, int64_t{0}), -2);
    EXPECT_EQ(std::accumulate(heads.begin() + 10, heads.begin() + 15, int64_t{0}), 13);
    EXPECT_EQ(count_heads(plain.config()), 10);
    options.retrain = 20;
    options.training.learning_rate = 1e-2;
    const Model trained = prune(model, data, options);
    EXPECT_EQ(count_heads(trained.config()), 10);
    EXPECT_LT(validate(trained, data).loss, validate(plain, data).loss) << "of noise at least how often tokens occur";
  }
}

TEST(PrunedTraining, WrongNumbersAreErrors) {
  const Model model = exact(small("gpt"));
  const Noise data(model.config());
  const auto reason = [&](const PruneOptions& options) {
    return reasons_of([&] { prune(model, data, options); }).at(0);
  };
  for (int64_t heads : {0, 5, -1})
    EXPECT_EQ(
        reason({.heads = heads, .rounds = 1}),
        "heads is " + std::to_string(heads) + ", must be from 1 to 4: of the model's 6 heads each layer keeps one");
  EXPECT_EQ(reason({.heads = 2, .rounds = 3}), "rounds is 3, must be from 1 to the number of heads to remove");
  EXPECT_EQ(reason({.heads = 2, .retrain = -1}), "retrain is -1, must not be negative");
  PruneOptions wrong{.heads = 2, .retrain = 5};
  wrong.training.clip = -1;
  wrong.on_round = [](int64_t, const HeadScores&, const HeadLists&) {
    ADD_FAILURE() << "scored before it was refused";
  };
  EXPECT_EQ(reason(wrong), "clip is -1.000000, must be at least 0");
  PruneOptions stopped{.heads = 2, .scoring = Scoring::random, .retrain = 3};
  stopped.events.stop = [] { return true; };
  EXPECT_EQ(reason(stopped), "stopped in round 1");
}

}  // namespace
}  // namespace attn::test
