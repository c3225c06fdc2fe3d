// Layers: gradients in float64 against differences, recomputation, precision, caches, traces.
#include "attn/nn.h"

#include <cmath>
#include <limits>

#include "support/arrays.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using namespace nn;
using attn::Array;

constexpr int64_t kB = 2, kL = 5, kC = 8;

nn::Parameters::Options exact(Initialization scheme = Initialization::xavier) {
  return {.initialization = scheme, .precision = Precision::float64, .seed = 3};
}

Value input(int64_t width = kC, uint64_t seed = 11) {
  return Value(random_array(DType::float64, {kB, kL, width}, seed), true);
}

// ------------------------------------------------------------------------------------------------ gradients of layers

TEST(LayerGradients, Linear) {
  for (bool bias : {false, true}) {
    nn::Parameters parameters(exact());
    const Linear layer(Scope(parameters) / "linear", kC, 6, {.bias = bias});
    stir(parameters);
    const Value x = input();
    expect_gradients("linear", leaves_of(parameters, x), [&](Tape& tape) { return layer(tape, x); });
  }
}

TEST(LayerGradients, EmbeddingWithRepeatedTokens) {
  nn::Parameters parameters(exact());
  const Embedding layer(Scope(parameters) / "tokens", 7, kC);
  expect_gradients(
      "embedding", leaves_of(parameters),
      [&](Tape& tape) {
        return layer(tape, {1, 2, 1, 6, 0, 1}, {2, 3});
      },
      56);
}

TEST(LayerGradients, Norms) {
  for (bool rms : {false, true}) {
    for (bool bias : {false, true}) {
      nn::Parameters parameters(exact());
      const Norm layer(Scope(parameters) / "norm", kC, {.rms = rms, .bias = bias});
      stir(parameters);
      const Value x = input();
      expect_gradients(rms ? "rms_norm" : "layer_norm", leaves_of(parameters, x),
                       [&](Tape& tape) { return layer(tape, x); });
    }
  }
}

TEST(LayerGradients, Activations) {
  using enum ops::Activation;
  for (ops::Activation f : {gelu, gelu_tanh, silu, tanh}) {
    const Value x = input();
    const std::string name = "activation " + std::to_string(static_cast<int>(f));
    expect_gradients(name, {{"x", x}}, [&](Tape& tape) { return activate(tape, f, x); });
    expect_gradients(name + ", gated", {{"x", x}}, [&](Tape& tape) { return activate_gated(tape, f, x); });
  }
}

TEST(LayerGradients, Dropout) {
  const Value x = input();
  expect_gradients("dropout", {{"x", x}}, [&](Tape& tape) { return dropout(tape, x, 0.4); });
}

TEST(LayerGradients, FeedForward) {
  for (bool gated : {false, true}) {
    nn::Parameters parameters(exact());
    const FeedForward layer(Scope(parameters) / "feed_forward", kC,
                            {.hidden_dim = 12, .activation = ops::Activation::silu, .gated = gated});
    stir(parameters);
    const Value x = input();
    expect_gradients(
        "feed_forward", leaves_of(parameters, x), [&](Tape& tape) { return layer(tape, x); }, 6);
  }
}

TEST(LayerGradients, Pooling) {
  const Value x = input();
  expect_gradients(
      "mean_pool", {{"x", x}},
      [&](Tape& tape) {
        return mean_pool(tape, x, {5, 2});
      },
      80);
  expect_gradients(
      "mean_pool of packed rows", {{"x", x}},
      [&](Tape& tape) {
        return mean_pool(tape, x, {2, 1, 4}, {1, 4, 6});
      },
      80);
}

TEST(LayerGradients, CrossEntropyWithIgnoredTargets) {
  const Value x = input();
  expect_gradients(
      "cross_entropy", {{"x", x}},
      [&](Tape& tape) {
        return cross_entropy(tape, x, {1, ops::kIgnoreIndex, 7, 0, 0, 3, 2, ops::kIgnoreIndex, 1, 5});
      },
      80);
}

TEST(LayerGradients, CrossEntropyWithWeights) {
  const Value x = input();
  const std::vector<int64_t> targets = {1, ops::kIgnoreIndex, 7, 0, 0, 3, 2, ops::kIgnoreIndex, 1, 5};
  const std::vector<double> weights = {0.5, 7, 2, 1, 0, 1.5, 0.25, 0, 3, 1};
  expect_gradients(
      "cross_entropy", {{"x", x}}, [&](Tape& tape) { return cross_entropy(tape, x, targets, weights); }, 80);
  Tape tape;
  EXPECT_EQ(numbers(cross_entropy(tape, x, targets, std::vector<double>(10, 1)).data()),
            numbers(cross_entropy(tape, x, targets).data()));
  EXPECT_THROW(cross_entropy(tape, x, targets, {1, 2}), Error);
  EXPECT_THROW(cross_entropy(tape, x, targets, std::vector<double>(10, -1)), Error);
}

TEST(LayerGradients, ValuesUsedTwice) {
  const Value x = input();
  expect_gradients("x + f(x) + g(x)", {{"x", x}}, [&](Tape& tape) {
    const Value sum = add(tape, x, activate(tape, ops::Activation::tanh, x));
    return add(tape, add(tape, sum, sum), activate(tape, ops::Activation::gelu, x));
  });
}

TEST(LayerGradients, SelfAttention) {
  for (bool causal : {false, true}) {
    nn::Parameters parameters(exact());
    const SelfAttention layer(Scope(parameters) / "attention", kC,
                              {.key_width = 3, .value_width = 5, .bias = true, .causal = causal, .dropout = 0.2});
    stir(parameters);
    const Value x = input();
    expect_gradients("self_attention", leaves_of(parameters, x), [&](Tape& tape) { return layer(tape, x); });
  }
  nn::Parameters parameters(exact());
  const SelfAttention projected(Scope(parameters) / "attention", kC,
                                {.value_width = 5, .output_width = 6, .bias = true, .causal = true});
  stir(parameters);
  const Value x = input();
  Tape infer;
  EXPECT_EQ(projected(infer, x).shape(), (std::vector<int64_t>{kB, kL, 6}));
  EXPECT_EQ(parameters.find("attention.output.weight")->value.shape(), (std::vector<int64_t>{6, 5}));
  expect_gradients("self_attention with W_O", leaves_of(parameters, x), [&](Tape& tape) { return projected(tape, x); });
}

struct Variant {
  const char* name;
  MultiHeadAttentionOptions options;
  bool lengths = false, mask = false, bias = false, memory = false;
  int64_t gates = 0;  // how many, of each sequence
};

TEST(LayerGradients, MultiHeadAttention) {
  const ops::RopeOptions halves{.theta = 100}, pairs{.theta = 100, .interleaved = true};
  const Variant variants[] = {
      {"plain", {.heads = 2}},
      {"causal, no bias", {.heads = 2, .bias = false, .output_bias = false, .causal = true}},
      {"grouped", {.heads = 4, .kv_heads = 2, .causal = true}},
      {"one key head", {.heads = 4, .kv_heads = 1}},
      {"wide heads", {.heads = 2, .head_dim = 6}},
      {"three heads of width 5", {.heads = 3, .head_dim = 5, .causal = true}},
      {"window", {.heads = 2, .causal = true, .window = 2}},
      {"window both ways", {.heads = 2, .window = 2}},
      {"dropout", {.heads = 2, .dropout = 0.3}},
      {"rope in halves",
       {.heads = 2, .kv_heads = 1, .causal = true, .position = AttentionPositions::rope, .rope = halves}},
      {"rope in pairs", {.heads = 2, .position = AttentionPositions::rope, .rope = pairs}},
      {"relative", {.heads = 2, .position = AttentionPositions::relative, .buckets = 8, .max_distance = 6}},
      {"relative, causal",
       {.heads = 2, .causal = true, .position = AttentionPositions::relative, .buckets = 4, .max_distance = 5}},
      {"alibi", {.heads = 4, .causal = true, .position = AttentionPositions::alibi}},
      {"padding", {.heads = 2}, true},
      {"mask and bias", {.heads = 2}, false, true, true},
      {"relative and bias",
       {.heads = 2, .position = AttentionPositions::relative, .buckets = 8, .max_distance = 6},
       false,
       false,
       true},
      {"cross", {.heads = 2, .kv_heads = 1, .encoder_dim = 6}, false, false, false, true},
      {"gates", {.heads = 2, .causal = true}, false, false, false, false, 2},
      {"gates of heads in groups", {.heads = 4, .kv_heads = 2}, true, false, false, false, 4},
      {"gates of groups", {.heads = 4, .kv_heads = 2, .encoder_dim = 6}, false, false, false, true, 2},
  };
  for (const Variant& variant : variants) {
    SCOPED_TRACE(variant.name);
    nn::Parameters parameters(exact());
    const MultiHeadAttention layer(Scope(parameters) / "attention", kC, variant.options);
    stir(parameters);
    const Value x = input(), memory(random_array(DType::float64, {kB, 7, 6}, 21), true);
    const Value bias(random_array(DType::float64, {1, 2, kL, kL}, 31), true);
    const std::vector<int64_t> lengths = {5, 3};
    std::vector<uint8_t> allowed(kL * kL, 1);
    for (size_t n = 0; n < allowed.size(); n += 3) allowed[n] = n % kL == 0;
    auto leaves = leaves_of(parameters, x);
    AttentionInputs inputs;
    if (variant.lengths) inputs.key_length = lengths;
    if (variant.mask) inputs.mask = ConstView<4>(allowed.data(), DType::boolean, {1, 1, kL, kL});
    if (variant.bias) {
      inputs.bias = bias;
      leaves.emplace_back("bias", bias);
    }
    if (variant.memory) {
      inputs.encoder_states = &memory;
      leaves.emplace_back("memory", memory);
    }
    if (variant.gates) {
      inputs.gates = Value(random_array(DType::float64, {kB, variant.gates}, 41), true);
      leaves.emplace_back("gates", inputs.gates);
    }
    expect_gradients(
        variant.name, leaves, [&](Tape& tape) { return layer(tape, x, inputs); }, 8);
  }
}

/// Gates of all sequences alike get the sum of the gradients that gates of each would get.
TEST(LayerGradients, GatesOfEachSequenceAndOfAll) {
  nn::Parameters parameters(exact());
  const MultiHeadAttention layer(Scope(parameters) / "attention", kC, {.heads = 4});
  stir(parameters);
  const auto gradient = [&](int64_t sequences) {
    Array ones(DType::float64, {sequences, 4});
    for (int64_t n = 0; n < ones.count(); ++n) static_cast<double*>(ones.data())[n] = 1;
    const Value gates(ones, true);
    Tape tape({.record = true});
    const Value y = layer(tape, input(), {.gates = gates});
    Tape plain;
    EXPECT_TRUE(numbers(y.data()) == numbers(layer(plain, input()).data())) << "a gate of 1 changes no bit";
    tape.add_gradient(y, random_array(DType::float64, y.shape(), 12));
    tape.backward();
    return gradient_of(gates);
  };
  const Values each = gradient(kB), all = gradient(1);
  Values sum(4, 0);
  for (size_t n = 0; n < each.size(); ++n) sum[n % 4] += each[n];
  EXPECT_TRUE(close_float64(all, sum));
}

BlockOptions block_options(bool norm_first) {
  BlockOptions options;
  options.attention = {.heads = 2, .causal = norm_first, .dropout = 0.1};
  options.feed_forward = {.hidden_dim = 12, .activation = ops::Activation::gelu};
  options.norm_placement = norm_first ? nn::NormPlacement::pre : nn::NormPlacement::post;
  options.dropout = 0.1;
  return options;
}

TEST(LayerGradients, Blocks) {
  for (bool norm_first : {false, true}) {
    nn::Parameters parameters(exact());
    const nn::Block layer(Scope(parameters) / "block", kC, block_options(norm_first));
    stir(parameters);
    const Value x = input();
    expect_gradients(
        "block", leaves_of(parameters, x), [&](Tape& tape) { return layer(tape, x); }, 5);
  }
}

// --------------------------------------------------------------------------------------------------- recompute, modes

/// Gradients of two blocks, with and without recomputation.
std::vector<Values> gradients_of_blocks(Precision precision, bool with_recompute) {
  nn::Parameters parameters({.initialization = Initialization::xavier, .precision = precision, .seed = 3});
  const nn::Block first(Scope(parameters) / "0", kC, block_options(true)),
      second(Scope(parameters) / "1", kC, block_options(true));
  const Value x(random_array(parameters.dtype(), {kB, kL, kC}, 11), true);
  Tape tape({.record = true, .training = true, .seed = 5});
  Value y = x;
  for (const nn::Block* block : {&first, &second}) {
    const auto run = [block](Tape& inner, const Value& in) { return (*block)(inner, in); };
    y = with_recompute ? recompute(tape, y, run) : run(tape, y);
  }
  y = dropout(tape, y, 0.5);  // draws after the blocks, as if nothing had been computed twice
  tape.add_gradient(y, random_array(parameters.dtype(), y.shape(), 12));
  tape.backward();
  std::vector<Values> all = {numbers(y.data()), gradient_of(x)};
  for (const Parameter& parameter : parameters.all()) all.push_back(gradient_of(parameter.value));
  return all;
}

TEST(Recompute, GradientsAreTheSameBits) {
  for (Precision precision : {Precision::float32, Precision::bfloat16, Precision::float16, Precision::float64})
    EXPECT_TRUE(gradients_of_blocks(precision, false) == gradients_of_blocks(precision, true));
}

/// Three bits more than bfloat16: an eighth of its error.
TEST(LayerGradients, Float16) {
  const std::vector<Values> exact_ones = gradients_of_blocks(Precision::float64, false),
                            coarse = gradients_of_blocks(Precision::bfloat16, false),
                            half = gradients_of_blocks(Precision::float16, false);
  for (size_t n = 0; n < half.size(); ++n) {
    const double error = max_abs_error(half[n], exact_ones[n]);
    EXPECT_GT(error, 0) << "result " << n;
    EXPECT_LE(error, other_half_bound(max_abs_error(coarse[n], exact_ones[n]), DType::float16,
                                      std::min<int64_t>(kB * kL, half[n].size()), max_abs(exact_ones[n])))
        << "result " << n;
  }
}

TEST(Modes, InferenceRecordsNothingAndGivesTheSameBits) {
  nn::Parameters parameters({.initialization = Initialization::xavier, .seed = 3});
  BlockOptions options = block_options(true);
  const nn::Block layer(Scope(parameters) / "block", kC, options);
  const Value x(random_array(DType::float32, {kB, kL, kC}, 11), true);
  Tape infer, record({.record = true});
  const Value inferred = layer(infer, x), recorded = layer(record, x);
  EXPECT_FALSE(inferred.wants_gradient());
  EXPECT_TRUE(recorded.wants_gradient());
  EXPECT_TRUE(numbers(inferred.data()) == numbers(recorded.data()));
}

TEST(Modes, DropoutActsInTrainingAlone) {
  const Value x(random_array(DType::float32, {kB, kL, kC}, 11));
  Tape infer, train({.training = true, .seed = 1});
  EXPECT_EQ(numbers(dropout(infer, x, 0.5).data()), numbers(x.data()));
  EXPECT_NE(numbers(dropout(train, x, 0.5).data()), numbers(x.data()));
}

TEST(Modes, GradientsAddUpUntilTheyAreCleared) {
  nn::Parameters parameters(exact());
  const Linear layer(Scope(parameters) / "linear", kC, kC);
  const Value x = input();
  const auto pass = [&] {
    Tape tape({.record = true});
    const Value y = layer(tape, x);
    tape.add_gradient(y, random_array(DType::float64, y.shape(), 5));
    tape.backward();
    return gradient_of(layer.weight);
  };
  Values once = pass(), twice = pass();
  for (double& value : once) value *= 2;
  EXPECT_TRUE(close_float64(twice, once));
  parameters.clear_gradients();
  for (double& value : once) value /= 2;
  EXPECT_TRUE(pass() == once);
}

TEST(Modes, FirstNonFiniteOperationIsNamed) {
  nn::Parameters parameters({.seed = 3});
  const nn::Block layer(Scope(parameters) / "block", kC, block_options(true));
  const Value x(random_array(DType::float32, {kB, kL, kC}, 11));
  static_cast<float*>(parameters.find("block.feed_forward.down.weight")->master.data())[3] = NAN;
  Tape tape({.check_finite = true});
  const Tape::NameScope scope(tape, "block 0");
  try {
    layer(tape, x);
    FAIL() << "nothing was found";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "[train] block 0: feed_forward: down: add_linear gives a value that is not finite");
  }
}

// ------------------------------------------------------------------------------------------- float32 in fewer bits

/// Brings back what was in use.
struct Restored {
  const std::string isa = active_isa();
  ~Restored() {
    ops::set_matmul_precision(Float32Precision::full);
    set_isa(isa);
  }
};

/// One precision for products and attention. Where there are no tiles it changes no bit.
TEST(Modes, ProductsAndAttentionFollowThePrecisionOfTheProcess) {
  const Restored restored;
  constexpr int64_t L = 256, C = 96;  // so large that both take tiles
  nn::Parameters parameters({.initialization = Initialization::xavier, .seed = 3});
  const MultiHeadAttention layer(Scope(parameters) / "attention", C, {.heads = 2});
  const Value x(random_array(DType::float32, {1, L, C}, 11));
  for (const std::string& isa : isas_under_test()) {
    set_isa(isa);
    const bool tiles = isa.rfind("amx", 0) == 0;
    std::vector<Values> qkv, out;
    for (const auto precision : {Float32Precision::full, Float32Precision::high, Float32Precision::fast}) {
      ops::set_matmul_precision(precision);
      Tape tape;
      AttentionTrace trace;
      out.push_back(numbers(layer(tape, x, {.trace = &trace}).data()));
      qkv.push_back(numbers(trace.q.array.data()));
      EXPECT_EQ(trace.options.float32_precision, precision);
      const View<4> q = trace.q.view(), k = trace.k.view();
      for (const auto other : {Float32Precision::full, Float32Precision::high, Float32Precision::fast}) {
        Array lse(DType::float32, {1, 2, L}), unused(DType::float32, {1, 2, L, C / 2});
        attn::attention(q, k, k, View<4>(unused.data(), DType::float32, {1, 2, L, C / 2}),
                        View<3>(lse.data(), DType::float32, {1, 2, L}), {.float32_precision = other});
        EXPECT_EQ(numbers(lse) == numbers(trace.lse), !tiles || other == precision) << isa;
      }
    }
    EXPECT_EQ(qkv[0] == qkv[1], !tiles) << isa;
    EXPECT_EQ(qkv[0] == qkv[2], !tiles) << isa;
    EXPECT_EQ(out[0] == out[1] && out[0] == out[2], !tiles) << isa;
    if (!tiles) continue;
    const Values input = numbers(x.data()), weight = numbers(layer.qkv.weight.data());
    for (size_t i = 0; i < qkv[0].size(); ++i) {
      const size_t row = i / (3 * C), column = i % (3 * C);
      double magnitude = 0;
      for (size_t k = 0; k < C; ++k) magnitude += std::abs(input[row * C + k] * weight[column * C + k]);
      for (const auto precision : {Float32Precision::high, Float32Precision::fast})
        ASSERT_LE(std::abs(qkv[static_cast<size_t>(precision)][i] - qkv[0][i]),
                  (lost_by(precision) + 2 * C * kUnit32) * magnitude);
    }
  }
}

// ------------------------------------------------------------------------------------------------------ packed weights

/// All products of a block, and none of them any more once weights have changed. Tables are not packed.
TEST(Parameters, PackedWeightsAreThoseThatWerePacked) {
  nn::Parameters parameters({.initialization = Initialization::xavier, .seed = 3});
  const Scope root(parameters);
  const Block block(root / "block", 32, {.attention = {.heads = 4}});
  const Embedding table(root / "table", 50, 32);
  const Value x(random_array(DType::float32, {1, 40, 32}, 11));
  const auto result = [&] {
    Tape tape;
    return numbers(block(tape, x).data());
  };
  const Values plain = result();
  parameters.pack();
  for (const nn::Parameter& parameter : parameters.all())
    EXPECT_EQ(static_cast<bool>(parameter.value.packed()),
              parameter.name.ends_with("weight") && parameter.value.shape().size() == 2 && parameter.name[0] == 'b')
        << parameter.name;
  const Values packed = result();
  for (size_t n = 0; n < plain.size(); ++n)
    EXPECT_NEAR(packed[n], plain[n], weight_bound(max_abs(plain), DType::float32));
  stir(parameters);
  EXPECT_FALSE(block.attention.qkv.weight.packed());
  const Values stirred = result();
  EXPECT_NE(stirred, plain);
  parameters.pack();
  EXPECT_NEAR(result()[0], stirred[0], weight_bound(max_abs(stirred), DType::float32));
}

// ------------------------------------------------------------------------------------------------- caches and weights

Value part(const Value& x, int64_t first, int64_t count) {
  const int64_t L = x.shape()[1], C = x.shape()[2];
  Array rows(x.dtype(), {x.shape()[0], count, C});
  for (int64_t b = 0; b < x.shape()[0]; ++b)
    std::copy_n(static_cast<const float*>(x.data().data()) + (b * L + first) * C, count * C,
                static_cast<float*>(rows.data()) + b * count * C);
  return Value(rows);
}

TEST(Cache, TokenByTokenIsTheWholeText) {
  for (AttentionPositions position :
       {AttentionPositions::none, AttentionPositions::rope, AttentionPositions::alibi, AttentionPositions::relative}) {
    nn::Parameters parameters({.initialization = Initialization::xavier, .seed = 3});
    const MultiHeadAttention layer(Scope(parameters) / "attention", kC,
                                   {.heads = 4,
                                    .kv_heads = 2,
                                    .head_dim = 6,  // 4 heads of width 6 in a model of width 8
                                    .causal = true,
                                    .window = 4,
                                    .dropout = 0.3,  // of training alone
                                    .position = position,
                                    .buckets = 4,
                                    .max_distance = 6});
    stir(parameters);
    const Value x(random_array(DType::float32, {kB, 9, kC}, 11));
    Tape tape;
    const Values whole = numbers(layer(tape, x).data());
    KVCache cache({.kv_heads = 2, .head_dim = 6, .page_size = 4});
    const std::vector<int64_t> sequences = {cache.add(), cache.add()};
    int64_t at = 0;
    for (int64_t count : {3, 1, 1, 4}) {
      AttentionInputs inputs;
      inputs.cache = {&cache, sequences};
      const Values some = numbers(layer(tape, part(x, at, count), inputs).data());
      for (int64_t b = 0; b < kB; ++b)
        for (int64_t n = 0; n < count * kC; ++n)
          EXPECT_NEAR(some[b * count * kC + n], whole[(b * 9 + at) * kC + n],
                      weight_bound(max_abs(whole), DType::float32))
              << "position " << static_cast<int>(position) << ", token " << at + n / kC;
      at += count;
    }
  }
}

TEST(Cache, RelativePositionsOfSequencesOfDifferentLengths) {
  nn::Parameters parameters({.initialization = Initialization::xavier, .seed = 3});
  const MultiHeadAttention layer(
      Scope(parameters) / "attention", kC,
      {.heads = 2, .causal = true, .position = AttentionPositions::relative, .buckets = 4, .max_distance = 6});
  stir(parameters);
  const Value x(random_array(DType::float32, {1, 9, kC}, 11)), y(random_array(DType::float32, {1, 9, kC}, 12));
  Tape tape;
  KVCache cache({.kv_heads = 2, .head_dim = 4});
  const std::vector<int64_t> both = {cache.add(), cache.add()};
  AttentionInputs first, second, together;
  first.cache = {&cache, std::span(both).first(1)};
  second.cache = {&cache, std::span(both).last(1)};
  together.cache = {&cache, both};
  layer(tape, part(x, 0, 7), first);
  layer(tape, part(y, 0, 2), second);
  Array next(DType::float32, {2, 2, kC});
  ops::convert(part(x, 7, 2).data().flat(), {next.data(), DType::float32, {1, 2 * kC}});
  ops::convert(part(y, 2, 2).data().flat(), {static_cast<float*>(next.data()) + 2 * kC, {1, 2 * kC}});
  const Values some = numbers(layer(tape, Value(next), together).data());
  const Values of_x = numbers(layer(tape, x).data()), of_y = numbers(layer(tape, y).data());
  for (int64_t n = 0; n < 2 * kC; ++n) {
    EXPECT_NEAR(some[n], of_x[7 * kC + n], weight_bound(max_abs(of_x), DType::float32));
    EXPECT_NEAR(some[2 * kC + n], of_y[2 * kC + n], weight_bound(max_abs(of_y), DType::float32));
  }
}

TEST(Trace, WeightsAreThoseOfTheOutput) {
  nn::Parameters parameters(exact());
  const SelfAttention layer(Scope(parameters) / "attention", kC, {.causal = true});
  const Value x = input();
  AttentionTrace trace;
  AttentionInputs inputs;
  inputs.trace = &trace;
  Tape tape;
  const Values out = numbers(layer(tape, x, inputs).data()), v = numbers(layer.value(tape, x).data());
  const Values weights = numbers(trace.weights());
  for (int64_t b = 0; b < kB; ++b) {
    for (int64_t i = 0; i < kL; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < kL; ++j) sum += weights[(b * kL + i) * kL + j];
      EXPECT_LE(std::abs(sum - 1), row_sum_bound(DType::float64));
      for (int64_t c = 0; c < kC; ++c) {
        double expected = 0;
        for (int64_t j = 0; j < kL; ++j) expected += weights[(b * kL + i) * kL + j] * v[(b * kL + j) * kC + c];
        EXPECT_LE(std::abs(out[(b * kL + i) * kC + c] - expected), weight_bound(1, DType::float64));
      }
    }
  }
}

TEST(Relative, InferenceReadsDistancesInPlaceAndGivesTheSameBits) {
  for (bool causal : {false, true}) {
    nn::Parameters parameters({.initialization = Initialization::xavier, .seed = 3});
    const MultiHeadAttention layer(
        Scope(parameters) / "attention", kC,
        {.heads = 2, .causal = causal, .position = AttentionPositions::relative, .buckets = 8, .max_distance = 20});
    stir(parameters);
    const Value x(random_array(DType::float32, {kB, 60, kC}, 11), true);
    AttentionTrace of_inference, of_training;
    AttentionInputs inferred, recorded;
    inferred.trace = &of_inference;
    recorded.trace = &of_training;
    Tape infer, record({.record = true});
    EXPECT_TRUE(numbers(layer(infer, x, inferred).data()) == numbers(layer(record, x, recorded).data()));
    EXPECT_TRUE(numbers(of_inference.weights()) == numbers(of_training.weights()));
    EXPECT_EQ(of_inference.bias.data().count(), 2 * (60 + 60 - 1)) << "a number a head and distance";
  }
}

TEST(Relative, BucketsAreThoseOfT5) {
  // From the definition: 32 buckets both ways, distances below 8 have their own, 128 and more share the last.
  const std::pair<int64_t, int64_t> both[] = {{0, 0},  {-1, 1}, {1, 17},    {-7, 7},
                                              {-8, 8}, {8, 24}, {-128, 15}, {500, 31}};
  for (auto [distance, bucket] : both) EXPECT_EQ(relative_bucket(distance, true, 32, 128), bucket) << distance;
  const std::pair<int64_t, int64_t> past[] = {{0, 0}, {3, 0}, {-1, 1}, {-15, 15}, {-16, 16}, {-127, 31}, {-1000, 31}};
  for (auto [distance, bucket] : past) EXPECT_EQ(relative_bucket(distance, false, 32, 128), bucket) << distance;
  EXPECT_EQ(relative_bucket(std::numeric_limits<int64_t>::min(), true, 32, 128), 15);
  EXPECT_EQ(relative_bucket(std::numeric_limits<int64_t>::max(), true, 32, 128), 31);
}

TEST(Sinusoids, AnyPartOfThemIsThatPart) {
  const Values whole = numbers(sinusoids(40, 6, DType::float64)), tail = numbers(sinusoids(8, 6, DType::float64, 32));
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), whole.begin() + 32 * 6));
  EXPECT_EQ(whole[7 * 6 + 3], std::cos(7 * std::pow(10000, -2 / 6.0)));
}

TEST(LayerGradients, ScaledEmbedding) {
  nn::Parameters parameters(exact());
  const Embedding layer(Scope(parameters) / "tokens", 7, kC, {.scale = 2.5});
  Tape tape;
  EXPECT_EQ(numbers(layer(tape, {3}, {1}).data())[1], 2.5 * numbers(layer.weight.data())[3 * kC + 1]);
  const auto look_up = [&](Tape& on) { return layer(on, {1, 2, 1, 6}, {2, 2}); };
  expect_gradients("embedding", leaves_of(parameters), look_up, 56);
}

}  // namespace
}  // namespace attn::test
