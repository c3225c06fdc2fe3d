// Low-rank adapters and frozen parameters: against merged weights, differences, and what an optimizer leaves alone.
#include <cmath>

#include "attn/autograd_operations.h"
#include "attn/nn.h"
#include "attn/nn_adamw.h"
#include "support/errors.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using namespace nn;
using attn::Array;

constexpr int64_t kIn = 10, kRows = 6;

nn::Parameters::Options with_lora(std::vector<std::string> targets, Precision precision = Precision::float64) {
  return {.precision = precision,
          .seed = 3,
          .lora = {.rank = 3, .alpha = 6, .rank_stabilized = true, .targets = std::move(targets)}};
}

Linear projection(nn::Parameters& parameters) {
  return Linear(Scope(parameters) / "attention" / "qkv", kIn, 14, {.parts = {{"query", 6}, {"key", 4}, {"value", 4}}});
}

/// W + s B A by loops over numbers.
Values merged(const Linear& layer, const LoraOptions& lora) {
  Values weight = numbers(layer.weight.data());
  for (const Linear::Adapter& adapter : layer.adapters) {
    const Values a = numbers(adapter.a.data()), b = numbers(adapter.b.data());
    for (int64_t out = 0; out < adapter.b.shape()[0]; ++out)
      for (int64_t in = 0; in < kIn; ++in)
        for (int64_t r = 0; r < lora.rank; ++r)
          weight[(adapter.first + out) * kIn + in] += lora.alpha / std::sqrt(3.0) * b[out * 3 + r] * a[r * kIn + in];
  }
  return weight;
}

TEST(Lora, AnAdaptedLayerComputesTheMergedWeights) {
  const std::vector<std::vector<std::string>> all_targets = {
      {"query", "value"}, {"key"}, {"qkv"}, {"query", "key", "value"}};
  for (const auto& targets : all_targets)
    for (const bool with_residual : {false, true}) {
      nn::Parameters parameters(with_lora(targets));
      const Linear layer = projection(parameters);
      EXPECT_EQ(layer.adapters.size(), targets.size());
      stir(parameters);
      const Value x(random_array(DType::float64, {2, kRows, kIn}, 1));
      const Value residual = with_residual ? Value(random_array(DType::float64, {2, kRows, 14}, 2)) : Value();
      Tape tape;
      const Values actual = numbers(layer(tape, x, residual).data()), in = numbers(x.data());
      const Values weight = merged(layer, parameters.options().lora), bias = numbers(layer.bias.data());
      Values expected;
      for (int64_t row = 0; row < 2 * kRows; ++row)
        for (int64_t out = 0; out < 14; ++out) {
          double sum = bias[out] + (with_residual ? numbers(residual.data())[row * 14 + out] : 0);
          for (int64_t k = 0; k < kIn; ++k) sum += in[row * kIn + k] * weight[out * kIn + k];
          expected.push_back(sum);
        }
      EXPECT_TRUE(close_float64(actual, expected)) << targets.front();
    }
}

TEST(Lora, GradientsOfEveryPart) {
  for (const std::vector<std::string>& targets : {std::vector<std::string>{"key", "value"}, {"qkv"}}) {
    nn::Parameters parameters(with_lora(targets));
    const Linear layer = projection(parameters);
    stir(parameters);
    const Value x(random_array(DType::float64, {kRows, kIn}, 1), true);
    const Value residual(random_array(DType::float64, {kRows, 14}, 2), true);
    auto leaves = leaves_of(parameters, x);
    leaves.emplace_back("residual", residual);
    expect_gradients("lora", leaves, [&](Tape& tape) { return layer(tape, x, residual); });
  }
}

TEST(Lora, GradientsOfAFeedForwardAndDropout) {
  for (const bool gated : {false, true}) {
    nn::Parameters::Options options = with_lora({"up", "down"});
    options.lora.dropout = 0.3;
    nn::Parameters parameters(options);
    const FeedForward layer(Scope(parameters) / "feed_forward", kIn, {.hidden_dim = 12, .gated = gated});
    EXPECT_EQ(layer.up.adapters.front().first, gated ? 12 : 0);
    stir(parameters);
    const Value x(random_array(DType::float64, {kRows, kIn}, 1), true);
    expect_gradients("lora, feed-forward", leaves_of(parameters, x), [&](Tape& tape) { return layer(tape, x); });
  }
}

TEST(Lora, ANewAdapterChangesNothing) {
  for (const Precision precision : {Precision::float32, Precision::bfloat16}) {
    nn::Parameters plain({.precision = precision, .seed = 3}), adapted(with_lora({"query", "value"}, precision));
    const Linear before = projection(plain), after = projection(adapted);
    EXPECT_EQ(adapted.all().size(), plain.all().size() + 4);
    EXPECT_EQ(adapted.find("attention.qkv.lora.value.b")->master.shape(), (std::vector<int64_t>{4, 3}));
    Tape tape;
    const Value x(random_array(plain.dtype(), {kRows, kIn}, 1));
    EXPECT_EQ(numbers(before(tape, x).data()), numbers(after(tape, x).data()));
  }
}

// -------------------------------------------------------------------------------------------------------------- frozen

bool of_second(std::string_view name) { return name.starts_with("second"); }

struct TwoLayers {
  nn::Parameters parameters;
  Linear first, second;
  Norm norm;

  explicit TwoLayers(Precision precision)
      : parameters({.precision = precision, .seed = 3, .trains = of_second}),
        first(Scope(parameters) / "first", kIn, kIn),
        second(Scope(parameters) / "second", kIn, kIn),
        norm(Scope(parameters) / "norm", kIn) {}
  Value operator()(Tape& tape, const Value& x) const { return norm(tape, second(tape, first(tape, x))); }
};

TEST(Frozen, ParametersHaveNoGradientNoMasterAndNoMoments) {
  TwoLayers layers(Precision::bfloat16);
  EXPECT_EQ(layers.parameters.find("first.weight")->master.dtype(), DType::bfloat16);
  EXPECT_EQ(layers.parameters.find("second.weight")->master.dtype(), DType::float32);
  EXPECT_EQ(layers.parameters.trained_count(), kIn * kIn + kIn);
  AdamW optimizer(layers.parameters, {.learning_rate = 0.1});
  std::vector<std::string> names;
  for (const io::NamedTensor& tensor : optimizer.tensors()) names.push_back(tensor.name);
  EXPECT_EQ(names, (std::vector<std::string>{"adamw.m.second.weight", "adamw.v.second.weight", "adamw.m.second.bias",
                                             "adamw.v.second.bias"}));
  const Values before = numbers(layers.first.weight.data()), trained = numbers(layers.second.weight.data());
  Tape tape({.record = true});
  const Value y = layers(tape, Value(random_array(DType::bfloat16, {kRows, kIn}, 1)));
  tape.backward(sum(tape, multiply(tape, y, y)));
  for (const nn::Parameter& parameter : layers.parameters.all())
    EXPECT_EQ(parameter.value.gradient_is_empty(), !of_second(parameter.name)) << parameter.name;
  optimizer.step();
  EXPECT_EQ(numbers(layers.first.weight.data()), before);
  EXPECT_NE(numbers(layers.second.weight.data()), trained);
}

TEST(Frozen, TheOthersGetTheSameGradients) {
  TwoLayers some(Precision::float64);
  nn::Parameters parameters({.precision = Precision::float64, .seed = 3});
  const Linear first(Scope(parameters) / "first", kIn, kIn), second(Scope(parameters) / "second", kIn, kIn);
  const Norm norm(Scope(parameters) / "norm", kIn);
  const Value x(random_array(DType::float64, {kRows, kIn}, 1));
  const auto backward = [&](const auto& f) {
    Tape tape({.record = true});
    const Value y = f(tape);
    tape.backward(sum(tape, multiply(tape, y, y)));
  };
  backward([&](Tape& tape) { return some(tape, x); });
  backward([&](Tape& tape) { return norm(tape, second(tape, first(tape, x))); });
  EXPECT_EQ(gradient_of(some.second.weight), gradient_of(second.weight));
  EXPECT_EQ(gradient_of(some.second.bias), gradient_of(second.bias));
}

TEST(Frozen, ALearningRateOfItsOwn) {
  const auto step_of = [](const std::function<double(std::string_view)>& factor) {
    nn::Parameters parameters({.precision = Precision::float64, .seed = 3});
    const Linear first(Scope(parameters) / "first", kIn, kIn), second(Scope(parameters) / "second", kIn, kIn);
    AdamW optimizer(parameters, {.learning_rate = 0.1, .weight_decay = 0.01});
    optimizer.learning_rate_factor = factor;
    Values change = numbers(first.weight.data()), other = numbers(second.weight.data());
    Tape tape({.record = true});
    const Value y = second(tape, first(tape, Value(random_array(DType::float64, {kRows, kIn}, 1))));
    tape.backward(sum(tape, multiply(tape, y, y)));
    optimizer.step();
    for (size_t n = 0; n < change.size(); ++n) {
      change[n] = numbers(first.weight.data())[n] - change[n];
      other[n] = numbers(second.weight.data())[n] - other[n];
    }
    return std::pair(change, other);
  };
  const auto [plain, plain_other] = step_of({});
  const auto [change, other] = step_of([](std::string_view name) { return of_second(name) ? 1.0 : 0.25; });
  EXPECT_EQ(other, plain_other);
  for (size_t n = 0; n < change.size(); ++n) EXPECT_NEAR(change[n], 0.25 * plain[n], 1e-15) << n;
}

}  // namespace
}  // namespace attn::test
