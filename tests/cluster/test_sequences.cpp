// Training whose sequences are shared by ranks: near the training of one process, and what it cannot do.
#include <gtest/gtest.h>

#include <cmath>

#include "attn/models_ranks.h"
#include "ranks.h"
#include "support/errors.h"
#include "support/training.h"

namespace attn::test {
namespace {

constexpr int64_t kTokens = 40;
constexpr cluster::GridShape kShape = {.data = 1, .sequence = 0};  // all ranks share the sequences

const cluster::RankGrid& all_ranks() {
  static const cluster::RankGrid grid(world(), kShape);
  return grid;
}

models::Config config_of(const std::string& family) {
  models::Config config = models::family(family);
  config.vocab_size = 11;
  config.context = kTokens;
  config.embed_dim = 32;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.dropout = 0;
  return config;
}

TextDataset long_text() { return TextDataset(some_tokens(900, 11), kTokens, 2, 5, 2); }

TrainerOptions short_training(const cluster::RankGrid* ranks) {
  TrainerOptions options;
  options.steps = 3;
  options.warmup = 1;
  options.accumulation = 2;
  options.learning_rate = 0.1;
  options.epsilon = 1;  // then an update is nearly linear in the gradient, and its error is that of the gradient
  options.eval_every = 0;
  options.ranks = ranks;
  return options;
}

struct Trained {
  std::vector<Values> parameters;
  std::vector<double> losses;
  std::vector<double> tokens;
};

Trained train(const models::Config& config, const TrainerOptions& options) {
  models::Model model(config, nn::Precision::float64, 1);
  const TextDataset data = long_text();
  Trained result;
  Trainer(model, data, options, "")
      .run({.step =
                [&](const StepReport& report) {
                  result.losses.insert(result.losses.end(), {report.loss, report.gradient_norm});
                  result.tokens.push_back(double(report.tokens));
                },
            .validation =
                [&](int64_t, const Validation& found, bool) {
                  result.losses.insert(result.losses.end(), {found.loss, found.accuracy});
                }});
  for (const nn::Parameter& parameter : model.parameters().all())
    result.parameters.push_back(numbers(parameter.master));
  return result;
}

void expect_near_one_process(const std::string& what, const models::Config& config, bool recompute = false,
                             cluster::Schedule schedule = cluster::Schedule::ring) {
  TrainerOptions alone = short_training(nullptr);
  alone.recompute = recompute;
  const Trained expected = train(config, alone);
  for (int n = 1; n <= world().size(); ++n) {
    const auto ranks = first_grid(n, kShape);
    if (!ranks) continue;
    ranks->set_schedule(schedule);
    TrainerOptions options = short_training(ranks.get());
    options.recompute = recompute;
    const Trained got = train(config, options);
    EXPECT_TRUE(close_float64(got.losses, expected.losses)) << what << ", " << n << " ranks";
    EXPECT_EQ(got.tokens, expected.tokens) << what << ", " << n << " ranks";
    for (size_t p = 0; p < expected.parameters.size(); ++p)
      EXPECT_TRUE(close_float64(got.parameters[p], expected.parameters[p])) << what << ", " << n << " ranks, " << p;
  }
}

TEST(ClusterSequences, AreTrainedAsByOneProcess) {
  models::Config learned = config_of("gpt"), rotated = config_of("llama"), window = rotated, alibi = rotated,
                 sinusoidal = rotated, both_sides = learned, sinks = rotated;
  window.window = 9;
  alibi.positions = models::PositionEncoding::alibi;
  sinusoidal.positions = models::PositionEncoding::sinusoidal;
  both_sides.model = "bert";
  both_sides.causal = false;
  sinks.sinks = true;
  expect_near_one_process("learned positions", learned);
  expect_near_one_process("recomputed", learned, true);
  expect_near_one_process("rotary positions, grouped heads", rotated);
  expect_near_one_process("window", window);
  expect_near_one_process("ALiBi", alibi);
  expect_near_one_process("sinusoidal positions", sinusoidal);
  expect_near_one_process("no causal mask", both_sides);
  expect_near_one_process("sinks", sinks);
  expect_near_one_process("sinks, tokens for heads", sinks, false, cluster::Schedule::heads());
  expect_near_one_process("window, tokens for heads", window, false, cluster::Schedule::heads());
  expect_near_one_process("all keys at once", rotated, true, cluster::Schedule::gather);
}

TEST(ClusterSequences, ChooseASchedule) {
  cluster::RankGrid grid(world(), kShape);
  const cluster::Schedule chosen = models::choose_schedule(config_of("llama"), 4096, DType::float32, grid, true);
  for (const auto& other : cluster::gather(world(), std::vector<cluster::Schedule>{chosen}))
    EXPECT_EQ(other.front(), chosen);
  grid.set_schedule(chosen);
  EXPECT_EQ(grid.schedule(), chosen);
  EXPECT_NE(error_of([&] { grid.set_schedule(cluster::Schedule::heads(world().size() + 1)); }).find("must divide"),
            std::string::npos);
  EXPECT_EQ(grid.schedule(), chosen);
  if (world().size() == 1) return;
  models::Config linear = config_of("gpt");
  models::set_mixers(linear, "linear");
  const std::string error = error_of([&] { models::choose_schedule(linear, 4096, DType::float32, grid, true); });
  EXPECT_NE(error.find("attention alone"), std::string::npos) << error;
}

/// The keys of explain(), and gradients of keys: of two steps, those that go and those that come.
TEST(ClusterSequences, ExchangeBytesAreThoseOfThePlan) {
  models::Config config = config_of("llama");
  config.embed_dim = 128;
  config.heads = 8;
  config.kv_heads = 4;
  const int64_t tokens = 4096, D = 16;
  const cluster::ClusterShape shape = {.H = 8, .Hk = 4, .D = D, .Dv = D, .dtype = DType::bfloat16};
  const auto exchange_bytes = [&](const cluster::GridShape& ranks, const cluster::Schedule& schedule) {
    return models::exchange_bytes(config, tokens, DType::bfloat16, ranks, schedule);
  };
  for (const int ranks : {2, 4}) {
    const cluster::GridShape grid = {.data = 1, .sequence = ranks};
    const cluster::Placement placement = models::placement_for(config, tokens, ranks);
    const double gradients = 4.0 * 2 * 2 * D * 4 * (tokens / ranks);
    for (const cluster::Schedule& schedule : {cluster::Schedule::ring, cluster::Schedule::gather,
                                              cluster::Schedule::heads(2), cluster::Schedule::heads()}) {
      const double keys = static_cast<double>(cluster::explain(placement, shape, {}, true, schedule).buffer_bytes);
      const double steps = std::min(2, ranks / std::max(1, schedule.heads_group ? schedule.heads_group : ranks) - 1);
      EXPECT_EQ(exchange_bytes(grid, schedule), keys + steps * gradients) << ranks << " " << schedule.name();
    }
    EXPECT_EQ(exchange_bytes({.data = 1, .sequence = ranks, .tensor = 2}, cluster::Schedule::ring),
              exchange_bytes(grid, cluster::Schedule::ring) / 2);
  }
  EXPECT_EQ(exchange_bytes({.data = 4}, cluster::Schedule::gather), 0);
  EXPECT_NE(error_of([&] {
              exchange_bytes({.data = 1, .sequence = 4}, cluster::Schedule::heads(3));
            }).find("groups of 3 ranks, must divide the 4 ranks"),
            std::string::npos);
}

// -------------------------------------------------------------------------------------------------------------- errors

std::string error_of_training(const models::Config& config, const Dataset& data) {
  return error_of([&] {
    models::Model model(config, nn::Precision::float32, 1);
    Trainer(model, data, short_training(&all_ranks()), "").step();
  });
}

TEST(ClusterSequences, ModelsThatCannotShareThem) {
  if (world().size() == 1) return;
  const TextDataset data = long_text();
  models::Config relative = config_of("gpt"), linear = config_of("gpt");
  relative.positions = models::PositionEncoding::relative;
  models::set_mixers(linear, "linear");
  for (const models::Config& config : {relative, linear})
    EXPECT_NE(error_of_training(config, data).find("models that predict tokens with attention alone"),
              std::string::npos)
        << error_of_training(config, data);
}

TEST(ClusterSequences, RanksWithDifferentSchedules) {
  if (world().size() == 1) return;
  cluster::RankGrid grid(world(), kShape);
  if (world().rank() == 0) grid.set_schedule(cluster::Schedule::gather);
  models::Model model(config_of("gpt"), nn::Precision::float32, 1);
  const TextDataset data = long_text();
  const std::string error = error_of([&] { Trainer(model, data, short_training(&grid), "").step(); });
  EXPECT_NE(error.find("differ in the schedule"), std::string::npos) << error;
}

TEST(ClusterSequences, MoreRanksThanTokens) {
  if (world().size() == 1) return;
  models::Config config = config_of("gpt");
  const TextDataset data(some_tokens(200, 11), world().size() - 1, 2, 5, 2);
  const std::string error = error_of_training(config, data);
  EXPECT_NE(error.find("there are more ranks than chunks"), std::string::npos) << error;
}

/// A weight that is not finite on one rank: all end with the operation.
TEST(ClusterSequences, ALossThatIsNotFinite) {
  models::Model model(config_of("gpt"), nn::Precision::float32, 1);
  const TextDataset data = long_text();
  Trainer trainer(model, data, short_training(&all_ranks()), "");
  trainer.step();
  if (world().rank() == world().size() - 1) {
    const attn::Array weight = model.parameters().find("blocks.1.attention.output.weight")->value.data();
    weight.data<float>()[0] = NAN;
  }
  const std::string error = error_of([&] { trainer.step(); });
  EXPECT_NE(error.find("step 2: the loss is not finite; first: block 1: attention"), std::string::npos) << error;
}

TEST(ClusterSequences, WhatCallsCheck) {
  const auto placement = cluster::Placement::contiguous(8, world().size() + 1);
  EXPECT_NE(error_of([&] { autograd::SharedSequence(world(), placement); }).find("the placement is for "),
            std::string::npos);
  models::Batch padded;
  padded.tokens.assign(2 * kTokens, 1);
  padded.sequences = 2;
  padded.length = kTokens;
  const autograd::SharedSequence sequence(world(), cluster::Placement::zigzag(kTokens, world().size()));
  EXPECT_EQ(models::shard_of(padded, sequence).length, sequence.tokens());
  padded.lengths = {3, kTokens};
  EXPECT_NE(error_of([&] { models::shard_of(padded, sequence); }).find("packed or padded"), std::string::npos);
}

}  // namespace
}  // namespace attn::test
