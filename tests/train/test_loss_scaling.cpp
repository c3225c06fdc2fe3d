// Losses: a loss callback of the trainer; loss scaling: the rule, overflow and underflow of float16, what no scale
// fixes, and learning in float16.
#include <cmath>
#include <numeric>

#include "attn/autograd_operations.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/training.h"

namespace attn::test {
namespace {

TrainerOptions constant_rate() {
  TrainerOptions options = short_run();
  options.warmup = 0;
  options.min_learning_rate = options.learning_rate;
  return options;
}

TEST(LossScaling, FollowsTheRuleOfGradScaler) {
  LossScaler scaler({.initial = 64, .growth = 4, .backoff = 0.25, .interval = 3});
  const auto scale_after = [&](bool finite) {
    scaler.update(finite);
    return scaler.scale();
  };
  for (double expected : {64, 64, 256, 256, 256, 1024}) EXPECT_EQ(scale_after(true), expected);
  EXPECT_EQ(scale_after(true), 1024);
  EXPECT_EQ(scaler.streak(), 1);
  for (double expected : {256, 64, 16, 4, 1}) {
    EXPECT_TRUE(scaler.can_back_off());
    EXPECT_EQ(scale_after(false), expected);
  }
  EXPECT_FALSE(scaler.can_back_off());
  EXPECT_EQ(scale_after(false), 1);
  for (double expected : {1, 1, 4, 4}) EXPECT_EQ(scale_after(true), expected);
  for (double expected : {1, 1}) EXPECT_EQ(scale_after(false), expected);  // whose last update went well
  for (double expected : {1, 1, 4}) EXPECT_EQ(scale_after(true), expected);
  LossScaler highest({.initial = 0x1p127, .interval = 1});
  highest.update(true);
  EXPECT_EQ(highest.scale(), 0x1p127);
}

TEST(LossScaling, BadOptionsAreAllNamed) {
  const auto reasons = [](const LossScaling& options) {
    try {
      LossScaler scaler(options);
    } catch (const Error& error) {
      return error.reasons().size();
    }
    return size_t{0};
  };
  EXPECT_EQ(reasons({}), 0u);
  for (double bad : {0.0, -1.0, 0.5, kNaN, kInf, 0x1p128}) EXPECT_EQ(reasons({.initial = bad}), 1u) << bad;
  for (double bad : {1.0, 0.5, kNaN, kInf}) EXPECT_EQ(reasons({.growth = bad}), 1u) << bad;
  for (double bad : {1.0, 0.0, 2.0, kNaN}) EXPECT_EQ(reasons({.backoff = bad}), 1u) << bad;
  EXPECT_EQ(reasons({.initial = kNaN, .growth = 1, .backoff = 1, .interval = 0}), 4u);
  LossScaler scaler;
  EXPECT_THROW(scaler.restore(0.5, 0), Error);
  EXPECT_THROW(scaler.restore(kNaN, 0), Error);
  EXPECT_THROW(scaler.restore(1, 2000), Error);
}

/// Powers of two change no bit, and nobody sees them: norms, clipping, accumulation and moments are of the gradients.
TEST(LossScaling, IsUndoneBeforeTheUpdate) {
  const TextDataset data = text();
  const auto train = [&](bool scaled, bool recompute) {
    models::Model model(tiny(), nn::Precision::float32, 1);
    TrainerOptions options = short_run();
    options.clip = 0.1;
    options.recompute = recompute;
    options.scaling = {.on = scaled, .initial = 1024, .interval = 2};
    Trainer trainer(model, data, options, "");
    std::vector<double> norms;
    for (int n = 0; n < 6; ++n) norms.push_back(trainer.step().gradient_norm);
    EXPECT_GT(norms.back(), options.clip);
    return std::pair(norms, parameters_of(model));
  };
  EXPECT_TRUE(train(true, false) == train(false, false));
  EXPECT_TRUE(train(true, true) == train(false, false));
}

TEST(LossScaling, AnOverflowIsLeftOutAndTheScaleShrinks) {
  const SameBatch data = same_batch();
  TrainerOptions options = constant_rate();
  options.scaling.initial = 0x1p24;
  models::Model model(tiny(0), nn::Precision::float16, 1);
  Trainer trainer(model, data, options, "");
  const std::string before = parameters_of(model);
  StepReport report = trainer.step();
  EXPECT_TRUE(report.skipped);
  double scale = 0x1p24;
  for (; report.skipped; report = trainer.step()) {
    EXPECT_EQ(report.loss_scale, scale);
    EXPECT_TRUE(parameters_of(model) == before);
    ASSERT_GE(scale /= 2, 1);
  }
  EXPECT_EQ(report.loss_scale, scale);
  // The first update that counts is the first update of AdamW, as if nothing had been left out.
  options.scaling.initial = scale;
  models::Model other(tiny(0), nn::Precision::float16, 1);
  EXPECT_FALSE(Trainer(other, data, options, "").step().skipped);
  EXPECT_TRUE(parameters_of(model) == parameters_of(other));
}

/// A last norm with so small a weight that its gradient in float16 is nothing.
TEST(LossScaling, SmallGradientsAreLostWithoutIt) {
  const SameBatch data = same_batch();
  models::Config config = tiny(0);
  config.tie_embeddings = false;
  const auto gradients = [&](nn::Precision precision, bool scaled) {
    models::Model model(config, precision, 1);
    const nn::Parameter* norm = model.parameters().find("norm.weight");
    for (int64_t n = 0; n < norm->master.count(); ++n) static_cast<float*>(norm->master.data())[n] = 1e-6f;
    model.parameters().refresh();
    TrainerOptions options = constant_rate();
    options.accumulation = 1;
    options.scaling.on = scaled;
    Trainer trainer(model, data, options, "");
    const double scale = trainer.step().loss_scale;
    Values values = gradient_of(model.parameters().find("blocks.0.attention.qkv.weight")->value);
    for (double& value : values) value /= scale;
    return values;
  };
  const Values exact = gradients(nn::Precision::float32, false), lost = gradients(nn::Precision::float16, false),
               kept = gradients(nn::Precision::float16, true), coarse = gradients(nn::Precision::bfloat16, false);
  EXPECT_GT(max_abs(exact), 0);
  EXPECT_EQ(max_abs(lost), 0);
  EXPECT_LE(max_abs_error(kept, exact),
            other_half_bound(max_abs_error(coarse, exact), DType::bfloat16, 36, max_abs(exact)));
}

TEST(LossScaling, AnOverflowAtTheSmallestScaleStopsTheTraining) {
  models::Config config = tiny(0);
  config.norm = models::NormKind::rms;
  config.tie_embeddings = false;
  models::Model model(config, nn::Precision::float32);
  for (const char* name : {"tokens.weight", "positions.weight"})  // as in AGradientAloneIsFoundToo
    ops::scale(model.parameters().find(name)->master.flat(), 1e-30, model.parameters().find(name)->master.flat());
  const attn::Array norm = model.parameters().find("norm.weight")->master;
  ops::scale(norm.flat(), 1e38, norm.flat());
  const SameBatch data = same_batch();
  TrainerOptions options = short_run();
  options.scaling.on = true;
  Trainer trainer(model, data, options, "");
  const std::string before = parameters_of(model);
  for (int n = 0; n < 16; ++n) EXPECT_TRUE(trainer.step().skipped);
  try {
    trainer.step();
    FAIL() << "the step went through";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("is not finite at the smallest loss scale"), std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(parameters_of(model) == before);
  EXPECT_EQ(trainer.steps_done(), 16);
}

TEST(LossScaling, AForwardThatIsNotFiniteStopsAtOnce) {
  models::Model model(tiny(), nn::Precision::float16);
  const nn::Parameter* weight = model.parameters().find("blocks.1.feed_forward.up.weight");
  static_cast<float*>(weight->master.data())[5] = 1e5f;  // more than float16 holds
  model.parameters().refresh();
  const TextDataset data = text();
  Trainer trainer(model, data, short_run(), "");
  EXPECT_THROW(trainer.step(), Error);
  EXPECT_EQ(trainer.steps_done(), 0);
}

TEST(LossScaling, Float16LearnsWhatFloat32Learns) {
  const TextDataset data = text();
  const auto losses = [&](nn::Precision precision) {
    Values all;
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      models::Model model(tiny(0), precision, seed);
      TrainerOptions options = short_run();
      options.learning_rate = 1e-2;
      options.steps = 60;
      Trainer trainer(model, data, options, "");
      while (trainer.steps_done() < options.steps) trainer.step();
      all.push_back(trainer.validate().loss);
    }
    return all;
  };
  const auto mean = [](const Values& all) { return std::accumulate(all.begin(), all.end(), 0.0) / 5; };
  const Values wide = losses(nn::Precision::float32), half = losses(nn::Precision::float16);
  EXPECT_LT(mean(wide), std::log(11) - seeds_bound(wide)) << "nothing was learned";
  EXPECT_LE(std::abs(mean(half) - mean(wide)), seeds_bound(wide)) << mean(half) << ", float32 " << mean(wide);
}

/// A layer that is not a models::Model.
TEST(OwnLoss, LayersContinueBitwise) {
  const auto trained = [](int64_t stop) {
    const Folder folder;
    nn::Parameters parameters({.seed = 3}), again({.seed = 4});
    const auto loss_of = [](nn::Parameters& of) {
      return [layer = nn::Linear(nn::Scope(of) / "layer", 3, 3)](Tape& tape, uint64_t number) {
        const Value x(random_array(DType::float32, {4, 3}, 100 + number));
        return BatchLoss(mean_squared_error(tape, layer(tape, dropout(tape, x, 0.1)), x), 4);
      };
    };
    Trainer first(parameters, loss_of(parameters), short_run(), folder.path());
    if (first.run({.stop = [&] { return first.steps_done() == stop; }}))
      return io::format_safetensors(parameters.tensors(), {});
    Trainer second(again, loss_of(again), short_run(), folder.path());
    second.resume(nullptr);
    EXPECT_EQ(second.step().tokens, 2 * 4);
    EXPECT_TRUE(second.run());
    return io::format_safetensors(again.tensors(), {});
  };
  EXPECT_EQ(trained(7), trained(-1));
}

TEST(OwnLoss, AModelsLossAsACallbackGivesTheSameBits) {
  const TextDataset data = text();
  models::Model model(tiny(), nn::Precision::float32), other(tiny(), nn::Precision::float32);
  models::Batch batch;
  const auto loss = [&](Tape& tape, uint64_t number) {
    batch = data.training(number);
    return other.loss(tape, batch);
  };
  Trainer whole(model, data, short_run(), ""), own(other.parameters(), loss, short_run());
  for (int n = 0; n < 3; ++n) EXPECT_EQ(whole.step().loss, own.step().loss);
  EXPECT_EQ(parameters_of(model), parameters_of(other));
  EXPECT_EQ(error_of([&] { own.validate(); }), "[train] there is no validation");
  EXPECT_EQ(error_of([&] { Trainer(other.parameters(), {}); }), "[train] there is no loss");
}

}  // namespace
}  // namespace attn::test
