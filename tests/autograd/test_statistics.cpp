// Statistics of attention on the tape: gradients of layers against differences, and losses that train.
#include <gtest/gtest.h>

#include "attn/nn.h"
#include "support/errors.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using namespace nn;
using attn::Array;
using autograd::StatisticsSelection;

constexpr int64_t kB = 2, kL = 5, kC = 8;
const KeyBand kBands[] = {key_bands::first, key_bands::previous};
const int32_t kLabels[kL] = {1, 0, -1, 0, 1}, kTokens[kL] = {7, 9, 7, 7, 9};

/// All that there are.
StatisticsSelection columns() {
  StatisticsSelection all = {.entropy = true, .participation = true, .maximum = true, .distance = true};
  all.same_token = true;
  all.sets.bands = kBands;
  all.sets.labels = {kLabels, DType::int32, {1, kL}};
  all.sets.query_token_ids = all.sets.key_token_ids = {kTokens, DType::int32, {1, kL}};
  all.label_sets = 2;
  return all;
}

TEST(StatisticsTape, GradientsOfLayers) {
  const std::pair<const char*, MultiHeadAttentionOptions> variants[] = {
      {"plain", {.heads = 2}},
      {"grouped", {.heads = 4, .kv_heads = 2, .causal = true}},
      {"rope",
       {.heads = 2, .kv_heads = 1, .causal = true, .position = AttentionPositions::rope, .rope = {.theta = 100}}},
      {"relative", {.heads = 2, .position = AttentionPositions::relative, .buckets = 8, .max_distance = 6}},
      {"alibi", {.heads = 4, .causal = true, .position = AttentionPositions::alibi}},
      {"sink and softcap", {.heads = 2, .softcap = 2, .sinks = true}},
      {"dropout", {.heads = 2, .dropout = 0.3}},
  };
  for (const auto& [name, options] : variants)
    for (bool with_bias : {false, true}) {
      SCOPED_TRACE(name);
      nn::Parameters parameters({.precision = Precision::float64, .seed = 3});
      const MultiHeadAttention layer(Scope(parameters) / "attention", kC, options);
      stir(parameters);
      const Value x(random_array(DType::float64, {kB, kL, kC}, 11), true);
      const Value bias(random_array(DType::float64, {1, options.heads, kL, kL}, 31), true);
      auto leaves = leaves_of(parameters, x);
      AttentionTrace trace;
      AttentionInputs inputs;
      inputs.trace = &trace;
      if (with_bias) {
        inputs.bias = bias;
        leaves.emplace_back("bias", bias);
      }
      expect_gradients(
          name, leaves,
          [&](Tape& tape) {
            layer(tape, x, inputs);
            return trace.statistics(tape, columns());
          },
          8);
    }
}

/// The columns are those of the operator.
TEST(StatisticsTape, ColumnsInOrder) {
  nn::Parameters parameters({.precision = Precision::float64, .seed = 3});
  const MultiHeadAttention layer(Scope(parameters) / "attention", kC, {.heads = 2});
  const Value x(random_array(DType::float64, {kB, kL, kC}, 11));
  AttentionTrace trace;
  AttentionInputs inputs;
  inputs.trace = &trace;
  Tape tape;
  layer(tape, x, inputs);
  const Value all = trace.statistics(tape, columns());
  ASSERT_EQ(all.shape(), (std::vector<int64_t>{kB, 2, kL, 9}));
  StatisticsSelection two;
  two.distance = true;
  two.label_sets = 2;
  two.sets.labels = columns().sets.labels;
  const Values every = numbers(all.data()), some = numbers(trace.statistics(tape, two).data());
  for (int64_t row = 0; row < kB * 2 * kL; ++row) {
    EXPECT_EQ(some[3 * row], every[9 * row + 3]);
    EXPECT_EQ(some[3 * row + 1], every[9 * row + 7]);
    EXPECT_EQ(some[3 * row + 2], every[9 * row + 8]);
  }
}

TEST(StatisticsTape, Mean) {
  const Value x(random_array(DType::float64, {2, 3, 4, 2}, 5), true);
  const Values numbers_of_x = numbers(x.data());
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, {3, 1}, {0, 4}}) {
    double sum = 0, count = 0;
    for (int64_t n = 0; n < 48; ++n) {
      if (!lengths.empty() && n / 2 % 4 >= lengths[n / 24]) continue;
      sum += numbers_of_x[n];
      ++count;
    }
    Tape tape;
    EXPECT_TRUE(close_float64(numbers(mean(tape, x, lengths).data()), {sum / count}));
    expect_gradients(
        "mean", {{"x", x}}, [&](Tape& t) { return mean(t, x, lengths); }, 48);
  }
}

/// A loss by statistics alone, as another loss would have them beside it: rows come to look at fewer keys, and at the
/// first one.
TEST(StatisticsTape, ALossTrains) {
  for (const Precision precision : {Precision::float32, Precision::bfloat16}) {
    nn::Parameters parameters({.precision = precision, .seed = 3});
    const MultiHeadAttention layer(Scope(parameters) / "attention", kC, {.heads = 2});
    const Value x(random_array(layer.dtype(), {kB, kL, kC}, 11));
    StatisticsSelection wanted = {.entropy = true};
    wanted.sets.bands = std::span(kBands).first(1);
    const float weights[] = {1, -4};
    Array weight(DType::float32, {1, 2});
    std::copy_n(weights, 2, static_cast<float*>(weight.data()));
    Values losses;
    for (int step = 0; step < 8; ++step) {
      Tape tape({.record = true});
      AttentionTrace trace;
      AttentionInputs inputs;
      inputs.trace = &trace;
      layer(tape, x, inputs);
      const Value loss = mean(tape, linear(tape, trace.statistics(tape, wanted), Value(weight)));
      losses.push_back(numbers(loss.data())[0]);
      parameters.clear_gradients();
      tape.backward(loss);
      for (const Parameter& parameter : parameters.all()) {
        if (parameter.value.gradient_is_empty()) continue;
        Values moved = numbers(parameter.master), slope = gradient_of(parameter.value);
        for (size_t n = 0; n < moved.size(); ++n) moved[n] -= 0.25 * slope[n];
        ops::convert(View<2>(moved.data(), {1, static_cast<int64_t>(moved.size())}), parameter.master.flat());
      }
      parameters.refresh();
    }
    for (size_t n = 1; n < losses.size(); ++n) EXPECT_LT(losses[n], losses[n - 1]) << n;
  }
}

TEST(StatisticsTapeErrors, SayWhatIsWrong) {
  const auto expect = [](const char* reason, const std::function<void()>& run) {
    EXPECT_NE(error_of(run).find(reason), std::string::npos) << error_of(run);
  };
  Tape tape;
  expect("[AttentionTrace] the trace is empty", [&] { AttentionTrace().statistics(tape, columns()); });
  const Value x(random_array(DType::float32, {kB, kL, kC}, 11));
  const autograd::Heads heads = {x, 0, 2, 4};
  const Array lse(DType::float32, {kB, 2, kL});
  expect("no statistic is requested", [&] { attention_statistics(tape, heads, heads, lse, {}, {}); });
  expect("q is an empty value", [&] { attention_statistics(tape, {}, heads, lse, columns(), {}); });
  expect("lse must be an array [B, H, Lq]", [&] { attention_statistics(tape, heads, heads, {}, columns(), {}); });
  expect("the weights of row [0, 0, 0]", [&] { attention_statistics(tape, heads, heads, lse, columns(), {}); });
  expect("x is an empty value", [&] { mean(tape, {}); });
  expect("there are 3 lengths", [&] { mean(tape, x, {1, 2, 3}); });
  expect("a length is 6, must be from 0 to 5", [&] { mean(tape, x, {1, 6}); });
  expect("x has no element within lengths", [&] { mean(tape, x, {0, 0}); });
}

}  // namespace
}  // namespace attn::test
