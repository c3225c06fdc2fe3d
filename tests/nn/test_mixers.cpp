// Mixers: linear attention, the short convolution and others, and the functions in front of the operator: gradients in
// float64 against differences, generation against the whole text, packed sequences, errors.
#include <cmath>

#include "attn/autograd_operations.h"
#include "attn/nn.h"
#include "attn/nn_adamw.h"
#include "support/arrays.h"
#include "support/errors.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using namespace nn;
using attn::Array;

constexpr int64_t kB = 2, kL = 6, kC = 8;

nn::Parameters::Options exact(Precision precision = Precision::float64) {
  return {.initialization = Initialization::xavier, .precision = precision, .seed = 3};
}
Value input(int64_t L = kL, DType dtype = DType::float64, int64_t width = kC) {
  return Value(random_array(dtype, {kB, L, width}, 11), true);
}

MixerMaker linear(const LinearMixerOptions& options) {
  return [=](const Scope& scope, int64_t width) { return std::make_shared<LinearMixer>(scope, width, options); };
}
MixerMaker convolution(const ShortConvolutionOptions& options) {
  return [=](const Scope& scope, int64_t width) { return std::make_shared<ShortConvolution>(scope, width, options); };
}

MixerMaker lstm(const LstmOptions& options) {
  return [=](const Scope& scope, int64_t width) { return std::make_shared<Lstm>(scope, width, options); };
}

/// A mixer of each kind that the papers have, and of linear attention one with every option.
std::vector<std::pair<std::string, MixerMaker>> mixers() {
  LinearMixerOptions katharopoulos{.heads = 2, .features = MixerFeatures::elu, .normalize = true};
  LinearMixerOptions performer{.heads = 2, .features = MixerFeatures::performer, .normalize = true};
  LinearMixerOptions kimi = gated_delta_net(2, 3);
  kimi.decay = MixerDecay::row;
  kimi.gate = MixerGate::sigmoid;
  LinearMixerOptions gla{.heads = 2, .value_dim = 5, .decay = MixerDecay::row, .gate = MixerGate::silu};
  LinearMixerOptions all = gated_delta_net(2, 3, 4);
  all.convolution_bias = all.normalize = all.skip = all.gate_first = all.bias = true;
  all.features = MixerFeatures::elu;  // normalize divides by sums that should not come near 0
  all.norm = MixerNorm::groups;
  return {{"linear attention", linear(katharopoulos)},
          {"Performer", linear(performer)},
          {"retention", linear(retention(2, 4))},
          {"GLA", linear(gla)},
          {"gated delta net", linear(gated_delta_net(2, 3, 4))},
          {"Kimi delta attention", linear(kimi)},
          {"Mamba 2", linear(mamba2(4, 3, 5, 2))},
          {"every option", linear(all)},
          {"short convolution", convolution({})},
          {"short convolution with biases", convolution({.width = 4, .bias = true})},
          {"LSTM", lstm({})},
          {"LSTM with a projection", lstm({.hidden_dim = 5})}};
}

TEST(Mixers, HaveTheGradientsOfDifferences) {
  for (const auto& [name, make] : mixers()) {
    nn::Parameters parameters(exact());
    const std::shared_ptr<const Mixer> made = make(Scope(parameters) / "mixer", kC);
    const Mixer& layer = *made;
    stir(parameters);
    const Value x = input();
    expect_gradients(name, leaves_of(parameters, x), [&](Tape& tape) { return layer(tape, x); });
  }
}

TEST(Mixers, GenerateWhatTheWholeTextGives) {
  for (const auto& [name, make] : mixers()) {
    for (DType dtype : {DType::float64, DType::float32}) {
      nn::Parameters parameters(exact(dtype == DType::float64 ? Precision::float64 : Precision::float32));
      const std::shared_ptr<const Mixer> made = make(Scope(parameters) / "mixer", kC);
      const Mixer& layer = *made;
      stir(parameters);
      const Value x = input(80, dtype);
      autograd::Tape tape;
      const Values whole = numbers(layer(tape, x).data());
      MixerState state = layer.new_state(kB);
      Values parts(whole.size());
      for (int64_t begin = 0, end = 70; begin < 80; begin = end, end = begin + 1) {  // a prompt, then token by token
        const Value part = autograd::slice(tape, x, 1, begin, end);
        const Values y = numbers(layer(tape, part, {.state = &state}).data());
        const int64_t row = (end - begin) * kC;
        for (int64_t n = 0; n < static_cast<int64_t>(y.size()); ++n)
          parts[n / row * 80 * kC + begin * kC + n % row] = y[n];
      }
      const double roundings = 100;  // of a sum over 80 tokens
      EXPECT_LE(max_abs_error(parts, whole), rounding_bound(dtype, max_abs(whole), roundings)) << name;
    }
  }
}

TEST(Mixers, KeepPackedSequencesApart) {
  for (const auto& [name, make] : mixers()) {
    nn::Parameters parameters(exact(Precision::float32));
    const std::shared_ptr<const Mixer> made = make(Scope(parameters) / "mixer", kC);
    const Mixer& layer = *made;
    stir(parameters);
    const Value x = input(7, DType::float32);
    const int64_t starts[] = {0, 7, 14};
    autograd::Tape tape;
    const Value packed(x.data().reshaped({1, 2 * 7, kC}));
    EXPECT_EQ(numbers(layer(tape, packed, {.cu_seqlens = starts}).data()), numbers(layer(tape, x).data())) << name;
  }
}

/// A training step in which a gated delta net learns to recall: after k v, the question k has the answer v.
TEST(Mixers, LearnToRecall) {
  nn::Parameters parameters(exact(Precision::float32));
  const LinearMixer layer(Scope(parameters) / "mixer", 16, gated_delta_net(1, 16));
  const Linear head(Scope(parameters) / "head", 16, 16);
  AdamW optimizer(parameters, {.learning_rate = 0.01});
  Random random(5);
  double first = 0, last = 0;
  for (int step = 0; step < 600; ++step) {
    // Eight pairs of one-hot keys and values in one token, then a key alone, whose value is the target.
    const Array x(DType::float32, {16, 9, 16});
    std::vector<int64_t> targets(16 * 9, ops::kIgnoreIndex);
    for (int64_t b = 0; b < 16; ++b) {
      int64_t value[8];
      for (int64_t t = 0; t < 8; ++t) {
        value[t] = 8 + random.below(8);
        x.data<float>()[(b * 9 + t) * 16 + t] = x.data<float>()[(b * 9 + t) * 16 + value[t]] = 1;
      }
      const int64_t asked = random.below(8);
      x.data<float>()[(b * 9 + 8) * 16 + asked] = 1;
      targets[b * 9 + 8] = value[asked];
    }
    parameters.clear_gradients();
    autograd::Tape tape({.record = true, .training = true});
    const Value logits = autograd::reshape(tape, head(tape, layer(tape, Value(x))), {16 * 9, 16});
    const Value loss = autograd::cross_entropy(tape, logits, targets);
    tape.backward(loss);
    optimizer.step();
    last = loss.item<float>();
    if (step == 0) first = last;
  }
  EXPECT_LT(last, first / 2);
}

TEST(Mixers, LstmBeginsWithOpenForgetGates) {
  nn::Parameters parameters({.seed = 1});
  const Lstm layer(Scope(parameters) / "mixer", 3);
  EXPECT_EQ(numbers(layer.input.bias.data()), (Values{0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0}));
  const double limit = 1 / std::sqrt(3.0);
  const Values recurrent = numbers(layer.recurrent.data());
  EXPECT_LE(max_abs(recurrent), limit);
  EXPECT_GT(max_abs(recurrent), limit / 2);
}

TEST(Mixers, SayWhatIsWrong) {
  nn::Parameters parameters(exact());
  const auto error = [&](LinearMixerOptions options) {
    return error_of([&] { LinearMixer(Scope(parameters) / "mixer", kC, options); });
  };
  EXPECT_EQ(error({.heads = 3}), "[mixer] heads is 3, must divide the width 8 where head_dim is not given");
  EXPECT_EQ(error({.heads = 2, .value_heads = 3}), "[mixer] value_heads is 3, must be a multiple of heads, 2");
  EXPECT_EQ(error({.heads = 2, .head_dim = 2000}), "[mixer] head_dim is 2000, must be at most 1024");
  EXPECT_EQ(error({.convolution = 9}), "[mixer] convolution is 9, must be in [0, 8]");
  EXPECT_EQ(error({.beta = MixerBeta::step}), "[mixer] beta step is the step of a decay by token: decay must be token");
  EXPECT_EQ(error({.convolution_bias = true}), "[mixer] convolution_bias needs a convolution");
  EXPECT_EQ(error({.gate_first = true}), "[mixer] gate_first orders a gate and a norm: both must be given");
  EXPECT_EQ(error({.scale = -1}), "[mixer] scale is -1.000000, must be finite and at least 0");
  EXPECT_EQ(error_of([&] { ShortConvolution(Scope(parameters) / "mixer", kC, {.width = 0}); }),
            "[mixer] width is 0, must be in [1, 8]");
  EXPECT_EQ(
      error_of([&] { Lstm(Scope(parameters) / "mixer", kC, {.hidden_dim = -1}); }),
      error_of([&] { LinearMixer(Scope(parameters) / "mixer", kC, {.value_dim = -1}); }).replace(8, 9, "hidden_dim"));
  const LinearMixer layer(Scope(parameters) / "layer", kC, gated_delta_net(2, 3));
  MixerState state = layer.new_state(3);
  const Value x = input();
  autograd::Tape tape, recording({.record = true});
  EXPECT_EQ(
      error_of([&] { layer(tape, x, {.state = &state}); }),
      "[layer] the state's part 0 is float64 [3, 2, 3, 3], must be float64 [2, 2, 3, 3]: new_state() makes it; the "
      "state's part 1 is float64 [3, 18, 3], must be float64 [2, 18, 3]: new_state() makes it");
  state = layer.new_state(2);
  EXPECT_EQ(error_of([&] { layer(recording, x, {.state = &state}); }),
            "[layer] a state is for inference, and the tape records");
  EXPECT_EQ(error_of([&] { LinearMixer()(tape, x); }), error_of([&] { Norm()(tape, x); }).replace(1, 4, "LinearMixer"));
}

/// A mixer of a program's own that keeps no state.
struct Stateless : Mixer {
  explicit Stateless(const Scope& scope) : Mixer("Stateless", scope) {}
  Value operator()(Tape&, const Value& x, const MixerInputs&) const override { return x; }
};

TEST(Mixers, WithoutStateSayThatTheyCannotGenerate) {
  nn::Parameters parameters(exact());
  EXPECT_EQ(error_of([&] { Stateless(Scope(parameters) / "own").new_state(1); }),
            "[own] this mixer keeps no state, so that it cannot continue a text: its class does not override "
            "new_state()");
}

TEST(Mixers, StatesSelectSequences) {
  MixerState state{{random_array(DType::float64, {3, 2}, 1), random_array(DType::float32, {3, 1, 2}, 2)}};
  const MixerState before = state;
  const int64_t chosen[] = {2, 0, 2, 1}, outside[] = {3};
  state.select(chosen);
  for (size_t part = 0; part < 2; ++part)
    for (int64_t n = 0; n < 4; ++n)
      for (int64_t c = 0; c < 2; ++c)
        EXPECT_EQ(state.parts[part].number(2 * n + c), before.parts[part].number(2 * chosen[n] + c));
  EXPECT_EQ(state.bytes(), 4 * 2 * (8 + 4));
  EXPECT_EQ(error_of([&] { MixerState(before).select(outside); }), "[MixerState] the sequence is 3, must be in [0, 3)");
}

/// A block with a mixer and without a feed-forward is one branch, and refuses what only attention reads.
TEST(Mixers, StandInBlocks) {
  nn::Parameters parameters(exact());
  BlockOptions options{.mixer = linear(gated_delta_net(2, 3)), .has_feed_forward = false};
  const Block block(Scope(parameters) / "block", kC, options);
  stir(parameters);
  const Value x = input();
  expect_gradients("block", leaves_of(parameters, x), [&](Tape& tape) { return block(tape, x); });
  autograd::Tape tape;
  const Value alone = add(tape, x, (*block.mixer)(tape, block.norm_attention(tape, x)));
  EXPECT_EQ(numbers(block(tape, x).data()), numbers(alone.data()));
  AttentionTrace trace;
  EXPECT_EQ(error_of([&] { block(tape, x, {.trace = &trace}); }),
            "[block] trace is for attention, and this block has a mixer");
  MixerState state;
  const Block attends(Scope(parameters) / "other", kC, {.attention = {.heads = 2}});
  EXPECT_EQ(error_of([&] { attends(tape, x, {.state = &state}); }),
            "[other] a state is for a mixer, and this block has attention");
}

// ------------------------------------------------------------------------------------------------- in front of it

TEST(LinearFeatures, HaveTheGradientsOfDifferences) {
  const Value x = input();
  const Value rate(random_array(DType::float64, {2}, 5), true), offset(random_array(DType::float64, {kC}, 6), true);
  expect_gradients("decay_logarithm", {{"x", x}, {"rate", rate}, {"offset", offset}},
                   [&](Tape& tape) { return decay_logarithm(tape, x, rate, offset); });
  expect_gradients("elu_plus_one", {{"x", x}}, [&](Tape& tape) { return elu_plus_one(tape, x); });
  const Value projection(autograd::orthogonal_projection(6, 4, DType::float64, 1));
  expect_gradients("positive_features", {{"x", x}}, [&](Tape& tape) { return positive_features(tape, x, projection); });
}

/// The products of Performer's features are an unbiased estimate of exp(<q, k> / sqrt(D)).
TEST(LinearFeatures, EstimateTheExponential) {
  const int64_t D = 4, m = 4096;
  const Value x(random_array(DType::float64, {1, 2, D}, 8));
  const double* a = x.data().data<double>();
  double product = 0;
  for (int64_t d = 0; d < D; ++d) product += a[d] * a[D + d];
  autograd::Tape tape;
  double mean = 0, squares = 0;
  const int draws = 16;
  for (int draw = 0; draw < draws; ++draw) {
    const Value projection(autograd::orthogonal_projection(m, D, DType::float64, draw));
    const Values y = numbers(positive_features(tape, x, projection).data());
    double estimate = 0;
    for (int64_t i = 0; i < m; ++i) estimate += y[i] * y[m + i];
    mean += estimate / draws;
    squares += estimate * estimate / draws;
  }
  const double deviation = std::sqrt((squares - mean * mean) / (draws - 1));
  EXPECT_LE(std::abs(mean - std::exp(product / 2)), 4 * deviation);
}

TEST(LinearFeatures, ProjectionsHaveOrthogonalRows) {
  const Values rows = numbers(autograd::orthogonal_projection(10, 4, DType::float64, 1));
  for (int64_t a = 0; a < 10; ++a)
    for (int64_t b = a + 1; b < 10 && b / 4 == a / 4; ++b) {
      double product = 0, size = 0;
      for (int64_t d = 0; d < 4; ++d) {
        product += rows[a * 4 + d] * rows[b * 4 + d];
        size += std::abs(rows[a * 4 + d] * rows[b * 4 + d]);
      }
      EXPECT_LE(std::abs(product), rounding_bound(DType::float64, size, 16)) << a << ", " << b;
    }
}

}  // namespace
}  // namespace attn::test
