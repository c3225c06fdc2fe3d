// Data-parallel training: the bits of one rank, its checkpoints, its bytes, and what is wrong on one rank.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "ranks.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/training.h"

namespace attn::test {
namespace {

constexpr int64_t kBatches = 12;  // an update: 1, 2, 3, 4 and 6 ranks share them
constexpr int kCounts[] = {2, 3, 4, 6};

/// Of the ranks, as many as can share the batches; on the others a job of one.
std::shared_ptr<cluster::RankGrid> first_of_a_divisor() {
  int n = world().size();
  while (kBatches % n != 0) --n;
  const std::shared_ptr<cluster::RankGrid> ranks = first_grid(n);
  return ranks ? ranks : std::make_shared<cluster::RankGrid>();
}

TrainerOptions shared(const cluster::RankGrid& ranks, int64_t steps = 3) {
  TrainerOptions options;
  options.steps = steps;
  options.warmup = 1;
  options.learning_rate = 0.01;
  options.accumulation = kBatches;
  options.eval_every = 0;
  options.ranks = &ranks;
  return options;
}

/// A parameter of several pieces, and gradients of several buckets.
models::Config wide() {
  models::Config config = tiny();
  config.vocab_size = 17'000;
  config.embed_dim = 64;
  return config;
}

TextDataset wide_text() { return TextDataset(some_tokens(600, 17'000), 12, 1, 5, 3); }

struct Trained {
  std::string parameters;
  std::vector<double> numbers;
};

Trained train_wide(const TrainerOptions& options, nn::Precision precision) {
  models::Model model(wide(), precision, 1);
  const TextDataset data = wide_text();
  Trainer trainer(model, data, options, "");
  Trained result;
  trainer.run({.step =
                   [&](const StepReport& report) {
                     result.numbers.insert(result.numbers.end(), {report.loss, report.gradient_norm, report.loss_scale,
                                                                  double(report.tokens)});
                   },
               .validation =
                   [&](int64_t, const Validation& validation, bool) {
                     result.numbers.insert(result.numbers.end(), {validation.loss, validation.accuracy});
                   }});
  result.parameters = parameters_of(model);
  return result;
}

TEST(ClusterTraining, HasTheBitsOfOneRank) {
  for (const nn::Precision precision : {nn::Precision::float32, nn::Precision::bfloat16, nn::Precision::float16}) {
    const Trained expected = train_wide(shared(one_rank_grid()), precision);
    for (const int n : kCounts) {
      if (n > world().size()) continue;
      const auto ranks = first_grid(n);
      if (!ranks) continue;
      const Trained got = train_wide(shared(*ranks), precision);
      EXPECT_TRUE(got.parameters == expected.parameters) << n << " ranks";
      EXPECT_EQ(got.numbers, expected.numbers) << n << " ranks";
    }
  }
}

/// Without ranks the gradients of the batches are added within products: another rounding.
TEST(ClusterTraining, IsNearTheTrainingOfAProcessAlone) {
  TrainerOptions alone = shared(one_rank_grid()), of_one = alone;
  alone.ranks = nullptr;
  models::Model a(tiny(), nn::Precision::float64, 1), b(tiny(), nn::Precision::float64, 1);
  const TextDataset data = text();
  Trainer(a, data, alone, "").run();
  Trainer(b, data, of_one, "").run();
  for (size_t n = 0; n < a.parameters().all().size(); ++n)
    EXPECT_TRUE(close_float64(numbers(a.parameters().all()[n].master), numbers(b.parameters().all()[n].master)))
        << a.parameters().all()[n].name;
}

/// A parameter that only some batches use: AdamW leaves it alone in an update in which none does.
TEST(ClusterTraining, PartsWithoutAGradientStay) {
  const auto train = [&](const cluster::RankGrid& ranks) {
    nn::Parameters parameters({.seed = 1});
    const Value always = nn::Scope(parameters).variable("always", {1, 4}),
                seldom = nn::Scope(parameters).variable("seldom", {1, 4});
    TrainerOptions options = shared(ranks, 2);
    const LossFunction loss = [&](Tape& tape, uint64_t number) -> BatchLoss {
      const Value x(random_array(DType::float32, {1, 4}, number));
      const Value y = linear(tape, x, always);  // [1, 1]
      return number < kBatches && number % 5 == 4 ? add(tape, y, linear(tape, x, seldom)) : y;
    };
    Trainer trainer(parameters, loss, options);
    trainer.step();
    const Values after_one = numbers(seldom.data());
    trainer.step();
    EXPECT_EQ(after_one, numbers(seldom.data())) << "without a gradient it has changed";
    return std::pair(numbers(always.data()), after_one);
  };
  const auto expected = train(one_rank_grid());
  for (const int n : kCounts) {
    if (n > world().size()) continue;
    const auto ranks = first_grid(n);
    if (ranks) {
      EXPECT_EQ(train(*ranks), expected) << n << " ranks";
    }
  }
}

/// An operation that returns x, and calls `during_backward` in the backward.
Value watched(Tape& tape, const Value& x, const std::function<void()>& during_backward) {
  const Value y = tape.result("watched", x.data(), {x});
  tape.record(y, [=, &tape] {
    during_backward();
    tape.add_gradient(x, y.gradient());
  });
  return y;
}

/// Parameters of 4 MiB each, as much as a bucket holds: y = (x late^T) big^T, and what happens between the two in the
/// backward.
struct TwoLayers {
  static constexpr int64_t kWidth = int64_t{1} << 20;
  nn::Parameters parameters = nn::Parameters({.seed = 1});
  Value late = nn::Scope(parameters).variable("late", {kWidth, 1});
  Value big = nn::Scope(parameters).variable("big", {1, kWidth});

  LossFunction loss(const std::function<void(Tape&)>& between, bool recomputed = false) {
    return [=, this](Tape& tape, uint64_t number) -> BatchLoss {
      const Value x(random_array(DType::float32, {1, 1}, number));
      const Value y = watched(tape, linear(tape, x, late), [=, &tape] { between(tape); });
      const auto last = [this](Tape& inner, const Value& in) { return linear(inner, in, big); };
      return recomputed ? recompute(tape, y, last) : last(tape, y);
    };
  }
  static TrainerOptions options(const cluster::RankGrid& ranks) {
    TrainerOptions options = shared(ranks, 2);
    options.accumulation = ranks.all().size();
    options.learning_rate = 1e-6;
    options.min_learning_rate = 0;
    return options;
  }
};

TEST(ClusterTraining, GradientsAreSentWhileTheBackwardRuns) {
  if (world().size() == 1) return;
  for (const bool overlap : {true, false})
    for (const bool recomputed : {false, true}) {
      std::vector<int> tags;
      Watching ranks(world(), tags);
      const cluster::RankGrid grid(ranks, {});
      TwoLayers layers;
      TrainerOptions options = TwoLayers::options(grid);
      options.overlap = overlap;
      Trainer trainer(layers.parameters, layers.loss([&](Tape&) { tags.push_back(-1); }, recomputed), options);
      trainer.step();  // after which the ranks know which gradients there are
      tags.clear();
      trainer.step();
      EXPECT_EQ(tags[0] == -1, !overlap);
      EXPECT_EQ(tags[1] == -1, overlap);
    }
}

/// The weights of two layers, whose gradient is complete after the backward of both, recomputed or not.
TEST(ClusterTraining, SharedWeightsAreSentOnce) {
  const auto train = [](const cluster::RankGrid& ranks, bool recomputed) {
    nn::Parameters parameters({.seed = 1});
    const Value weight = nn::Scope(parameters).variable("weight", {8, 8}),
                last = nn::Scope(parameters).variable("last", {1, 8});
    Trainer trainer(
        parameters,
        [&](Tape& tape, uint64_t number) -> BatchLoss {
          const Value x(random_array(DType::float32, {1, 8}, number));
          const auto layer = [&](Tape& inner, const Value& in) { return linear(inner, in, weight); };
          const auto applied = [&](const Value& in) {
            return recomputed ? recompute(tape, in, layer) : layer(tape, in);
          };
          return linear(tape, applied(applied(x)), last);
        },
        shared(ranks, 3));
    trainer.run();
    return std::pair(numbers(weight.data()), numbers(last.data()));
  };
  for (const bool recomputed : {false, true})
    EXPECT_EQ(train(*first_of_a_divisor(), recomputed), train(one_rank_grid(), false));
}

/// A rank sends the gradients that others own, once for each of its batches, and the values that it owns to all others.
TEST(ClusterTraining, SendsWhatTheFormulaSays) {
  const int n = std::min(world().size(), 4);
  const auto ranks = first_ranks(n);
  if (!ranks) return;
  Counting counting(*ranks);
  const cluster::RankGrid grid(counting, {});
  models::Model model(wide(), nn::Precision::float32, 1);
  const TextDataset data = wide_text();
  Trainer trainer(model, data, shared(grid), "");
  trainer.step();
  const std::vector<std::string> all = cluster::gather(*ranks, std::to_string(counting.bytes));
  double sum = 0;
  for (const std::string& bytes : all) sum += std::stod(bytes);
  const double parameters = 4.0 * double(model.parameters().count());
  EXPECT_DOUBLE_EQ(sum, double(n - 1) * parameters * (double(kBatches) / n + 1));
}

TEST(ClusterTraining, NamesTheSlowestRank) {
  if (world().size() == 1) return;
  models::Model model(tiny(), nn::Precision::float32, 1);
  const TextDataset data = text();
  const int last = world().size() - 1;
  TrainerOptions options = shared(world_grid());
  options.accumulation = world().size();
  models::Batch batch;
  const StepReport report = Trainer(
                                model.parameters(),
                                [&](Tape& tape, uint64_t number) -> BatchLoss {
                                  if (world().rank() == last) std::this_thread::sleep_for(std::chrono::seconds(1));
                                  batch = data.training(number);
                                  return model.loss(tape, batch);
                                },
                                options)
                                .step();
  EXPECT_EQ(report.slowest_rank, last);
  EXPECT_GT(report.slowness, 1);
}

// --------------------------------------------------------------------------------------------------------- checkpoints

/// A folder that all ranks of the job see.
std::string folder_of(cluster::Communicator& ranks, const Folder& own) {
  return cluster::gather(ranks, own.path()).front();
}

TEST(ClusterTraining, AnotherNumberOfRanksResumes) {
  Trained expected = train_wide(shared(one_rank_grid(), 4), nn::Precision::bfloat16);
  const TextDataset data = wide_text();
  for (const int before : {1, 2, 4}) {
    const Folder own;
    if (std::max(before, 1) > world().size()) continue;
    const std::string folder = folder_of(world(), own);
    const auto train = [&](int n, int64_t stop_at) {
      const auto ranks = first_grid(n);
      std::string parameters;
      if (ranks) {
        models::Model model(wide(), nn::Precision::bfloat16, 1);
        Trainer trainer(model, data, shared(*ranks, 4), folder);
        if (stop_at == 4) trainer.resume(nullptr);
        trainer.run({.stop = [&] { return trainer.steps_done() == stop_at && ranks->all().rank() == n - 1; }});
        EXPECT_EQ(trainer.steps_done(), stop_at);
        parameters = parameters_of(model);
      }
      cluster::synchronize(world(), "trained");
      return parameters;
    };
    train(before, 2);
    const int after = before == 4 ? 3 : std::min(world().size(), 2 * before);
    const std::string resumed = train(after, 4);
    if (world().rank() < after) {
      EXPECT_TRUE(resumed == expected.parameters) << before << " ranks, then " << after;
    }
  }
}

// -------------------------------------------------------------------------------------------------------------- errors

/// A step that has no handle of the parameter to whose gradient it adds.
TEST(ClusterTraining, GradientsThatGrowAfterTheyWereSent) {
  if (world().size() == 1) return;
  for (const bool overlap : {true, false}) {
    TwoLayers layers;
    TrainerOptions options = TwoLayers::options(world_grid());
    options.overlap = overlap;
    const auto between = [&](Tape& tape) {
      tape.add_gradient(layers.big, attn::Array(DType::float32, {1, TwoLayers::kWidth}));
    };
    Trainer trainer(layers.parameters, layers.loss(between), options);
    const std::string error = error_of([&] { trainer.run(); });
    if (!overlap) EXPECT_EQ(error, "");
    else EXPECT_NE(error.find("has added to the gradient of big after it was sent"), std::string::npos) << error;
  }
}

class ClusterTrainingErrors : public testing::Test {
 protected:
  const bool last_ = world().rank() == world().size() - 1;
  const std::string name_ = "rank " + std::to_string(world().size() - 1);
  const TextDataset data_ = text();
  models::Model model_ = models::Model(tiny(), nn::Precision::float32, 1);

  TrainerOptions options() const {
    TrainerOptions options = shared(world_grid());
    options.accumulation = world().size();
    return options;
  }
  std::string error_of_step(const TrainerOptions& options, const TextDataset& data) {
    return error_of([&] { Trainer(model_, data, options, "").step(); });
  }
  void expect(const std::string& error, const std::string& part) const {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  }
};

TEST_F(ClusterTrainingErrors, BatchesThatRanksCannotShare) {
  if (world().size() == 1) return;
  TrainerOptions wrong = options();
  wrong.accumulation = world().size() + 1;
  expect(error_of([&] { Trainer(model_, data_, wrong, ""); }),
         "must be a multiple of the ranks that share the batches, ");
}

TEST_F(ClusterTrainingErrors, WhatDiffersIsNamed) {
  if (world().size() == 1) return;
  TrainerOptions other = options();
  if (last_) other.seed = 7;
  expect(error_of_step(other, data_), name_ + " has the options {");
  other = options();
  if (last_) other.steps = 8;
  expect(error_of_step(other, data_), "\"steps\":8");
  expect(error_of_step(options(), last_ ? TextDataset(some_tokens(500, 11), 12, 3, 5, 4) : data_),
         name_ + " has the data ");
  if (attn::Array master = model_.parameters().all()[0].master; last_) master.fill_zero();
  expect(error_of_step(options(), data_), name_ + " has parameters with the sum ");
}

TEST_F(ClusterTrainingErrors, OneRankFails) {
  nn::Parameters parameters({.seed = 1});
  const Value weight = nn::Scope(parameters).variable("weight", {1, 2});
  const auto train = [&](const std::function<double(uint64_t)>& number_of) {
    return error_of([&] {
      Trainer(
          parameters,
          [&](Tape& tape, uint64_t number) -> BatchLoss {
            const double x = number_of(number);
            return linear(tape, Value(attn::Array({float(x), 1.F}, {1, 2})), weight);
          },
          options())
          .run();
    });
  };
  const auto bad = static_cast<uint64_t>(2 * world().size() - 1);  // the batch of the last rank in the second step
  expect(train([&](uint64_t number) -> double {
           if (number == bad) throw Error("loss", {"the disk is gone"});
           return 1;
         }),
         (world().size() > 1 ? name_ + ": " : "") + "the disk is gone");
  const std::string infinite = train([&](uint64_t number) { return number == bad ? HUGE_VAL : 1; });
  expect(infinite, "step 2: the loss is not finite");
  if (world().size() > 1) expect(infinite, name_ + ": step 2");
}

TEST_F(ClusterTrainingErrors, OnlyRankZeroCannotWrite) {
  const Folder own;
  const std::string folder = folder_of(world(), own);
  Trainer trainer(model_, data_, options(), folder);
  trainer.step();
  if (world().rank() == 0) std::filesystem::remove_all(folder);
  if (world().rank() == 0) std::ofstream(std::filesystem::path(folder)) << "a file";
  cluster::synchronize(world(), "the folder is gone");
  EXPECT_NE(error_of([&] { trainer.save(); }), "");
}

}  // namespace
}  // namespace attn::test
