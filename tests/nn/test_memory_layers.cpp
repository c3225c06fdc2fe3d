// Attention with memory: against the four terms of the paper in plain loops, gradients in float64 against differences,
// text segments against the whole text, what a memory makes learnable, errors.
#include <cmath>

#include "attn/autograd_operations.h"
#include "attn/core_names.h"
#include "attn/nn_adamw.h"
#include "attn/nn_memory.h"
#include "support/errors.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using namespace nn;
using attn::Array;

constexpr int64_t kB = 2, kL = 5, kC = 6, kH = 2, kD = 3, kR = 4;

nn::Parameters::Options exact(Precision precision = Precision::float64) {
  return {.initialization = Initialization::xavier, .precision = precision, .seed = 3};
}
TransformerXLOptions plain(int64_t memory = 7) {
  return {.heads = kH, .head_dim = kD, .memory = memory, .position_dim = kR};
}
TransformerXLOptions compressing(MemoryCompression compression) {
  TransformerXLOptions options = plain(4);
  options.bias = true;
  options.compressed_memory = 3;
  options.compression_rate = 2;
  options.compression = compression;
  return options;
}
/// The layer of each paper, and what Compressive Transformers pool by without learning it.
std::vector<std::pair<std::string, TransformerXLOptions>> layers() {
  return {{"Transformer-XL", plain()},
          {"Compressive Transformer", compressing(MemoryCompression::projection)},
          {"mean", compressing(MemoryCompression::mean)}};
}
/// Text segment n of a batch of texts.
Value segment(int64_t n, DType dtype = DType::float64, int64_t L = kL) {
  return Value(random_array(dtype, {kB, L, kC}, 100 + n), true);
}

// ----------------------------------------------------------------------------------------------------- the plain loops

using Rows = std::vector<Values>;

Values applied(const Linear& linear, const Values& x) {
  const Values weight = numbers(linear.weight.data());
  Values y = linear.bias ? numbers(linear.bias.data()) : Values(static_cast<size_t>(linear.weight.shape()[0]), 0);
  for (size_t o = 0; o < y.size(); ++o)
    for (size_t i = 0; i < x.size(); ++i) y[o] += weight[o * x.size() + i] * x[i];
  return y;
}

/// q_i . k_j + q_i . W_R r_{i-j} + u . k_j + v . W_R r_{i-j} of head h, (a) to (d) in section 3.3 of the paper.
double score(const TransformerXLAttention& layer, const Values& q, const Values& k, int64_t distance, int64_t h) {
  const Values W = numbers(layer.position.data()), u = numbers(layer.content_bias.data()),
               v = numbers(layer.position_bias.data());
  double a = 0, b = 0, c = 0, d = 0;
  for (int64_t n = 0; n < kD; ++n) {
    const int64_t column = h * kD + n;
    double projected = 0;  // W_R r
    for (int64_t m = 0; m < kR; ++m) {
      const double angle = static_cast<double>(distance) * std::pow(10000, -static_cast<double>(m / 2 * 2) / kR);
      projected += W[(h * kR + m) * kD + n] * (m % 2 ? std::cos(angle) : std::sin(angle));
    }
    a += q[column] * k[column];
    b += q[column] * projected;
    c += u[column] * k[column];
    d += v[column] * projected;
  }
  return (a + b + c + d) / std::sqrt(static_cast<double>(kD));
}

/// One sequence, call by call.
struct Reference {
  const TransformerXLAttention& layer;
  Rows memory = {}, leaving = {}, compressed = {};

  void compress() {
    const size_t c = layer.options.compression_rate;
    for (size_t first = 0; first < leaving.size(); first += c) {
      Values joined, mean(kC, 0);
      for (size_t n = first; n < first + c; ++n)
        for (size_t i = 0; i < kC; ++i) {
          joined.push_back(leaving[n][i]);
          mean[i] += leaving[n][i] / static_cast<double>(c);
        }
      const bool learned = layer.options.compression == MemoryCompression::projection;
      compressed.push_back(learned ? applied(layer.compression, joined) : mean);
    }
    leaving.clear();
    while (static_cast<int64_t>(compressed.size()) > layer.options.compressed_memory)
      compressed.erase(compressed.begin());
  }

  void keep(const Rows& x) {
    memory.insert(memory.end(), x.begin(), x.end());
    const bool drops = layer.options.compressed_memory == 0;
    const int64_t M = layer.options.memory, c = drops ? 1 : layer.options.compression_rate;
    while (static_cast<int64_t>(memory.size()) - M >= c) {
      leaving.insert(leaving.end(), memory.begin(), memory.begin() + c);
      memory.erase(memory.begin(), memory.begin() + c);
    }
    while (static_cast<int64_t>(leaving.size()) > layer.options.compressed_memory * c) leaving.erase(leaving.begin());
  }

  Rows operator()(const Rows& x) {
    compress();
    Rows tokens = compressed, keys, values, y;
    tokens.insert(tokens.end(), memory.begin(), memory.end());
    tokens.insert(tokens.end(), x.begin(), x.end());
    for (const Values& token : tokens) {
      keys.push_back(applied(layer.key, token));
      values.push_back(applied(layer.value, token));
    }
    for (size_t i = tokens.size() - x.size(); i < tokens.size(); ++i) {
      const Values q = applied(layer.query, tokens[i]);
      Values seen(kH * kD, 0);
      for (int64_t h = 0; h < kH; ++h) {
        double total = 0;
        Values weight;
        for (size_t j = 0; j <= i; ++j) {
          weight.push_back(std::exp(score(layer, q, keys[j], static_cast<int64_t>(i - j), h)));
          total += weight.back();
        }
        for (size_t j = 0; j <= i; ++j)
          for (int64_t d = 0; d < kD; ++d) seen[h * kD + d] += weight[j] / total * values[j][h * kD + d];
      }
      y.push_back(applied(layer.output, seen));
    }
    keep(x);
    return y;
  }
};

Rows rows_of(const Array& x, int64_t b) {
  Rows rows;
  const Values all = numbers(x);
  for (int64_t i = 0; i < x.shape()[1]; ++i) {
    const auto first = all.begin() + (b * x.shape()[1] + i) * kC;
    rows.emplace_back(first, first + kC);
  }
  return rows;
}
Values joined(const Rows& rows) {
  Values all;
  for (const Values& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

const double kSums = 200;  // roundings of sums over tokens, columns and angles

TEST(TransformerXL, IsTheFormulaCallAfterCall) {
  for (const auto& [name, options] : layers()) {
    nn::Parameters parameters(exact());
    const TransformerXLAttention layer(Scope(parameters) / "attention", kC, options);
    stir(parameters);
    TransformerXLState state = layer.new_state(kB);
    std::vector<Reference> references(kB, Reference{layer});
    for (const int64_t L : {5, 3, 1, 9, 4}) {
      const Value x = segment(L, DType::float64, L);
      autograd::Tape tape;
      const Value y = layer(tape, x, &state);
      for (int64_t b = 0; b < kB; ++b) {
        const Values wanted = joined(references[b](rows_of(x.data(), b)));
        EXPECT_LE(max_abs_error(joined(rows_of(y.data(), b)), wanted),
                  rounding_bound(DType::float64, max_abs(wanted), kSums))
            << name << ", L = " << L << ", sequence " << b;
        EXPECT_EQ(rows_of(state.memory, b), references[b].memory) << name;
        EXPECT_EQ(rows_of(state.leaving, b), references[b].leaving) << name;
        EXPECT_EQ(state.compressed.shape()[1], static_cast<int64_t>(references[b].compressed.size())) << name;
      }
    }
    EXPECT_EQ(state.bytes(), 8 * (state.memory.count() + state.leaving.count() + state.compressed.count()));
  }
}

TEST(TransformerXL, HasTheGradientsOfDifferences) {
  for (const auto& [name, options] : layers()) {
    nn::Parameters parameters(exact());
    const TransformerXLAttention layer(Scope(parameters) / "attention", kC, options);
    stir(parameters);
    const Value x = segment(0);
    expect_gradients(name + " without a state", leaves_of(parameters, x), [&](Tape& tape) { return layer(tape, x); });
    TransformerXLState state = layer.new_state(kB);
    autograd::Tape before;
    for (int64_t n = 1; n < 4; ++n) layer(before, segment(n), &state);
    expect_gradients(name, leaves_of(parameters, x), [&](Tape& tape) {
      TransformerXLState copy = state;  // the call replaces its arrays
      return layer(tape, x, &copy);
    });
  }
}

/// Where the memory reaches back to the first token, text segments give what the whole text gives.
TEST(TransformerXL, SegmentsAreTheWholeText) {
  for (const DType dtype : {DType::float64, DType::float32}) {
    nn::Parameters parameters(exact(dtype == DType::float64 ? Precision::float64 : Precision::float32));
    const TransformerXLAttention layer(Scope(parameters) / "attention", kC, plain(20));
    stir(parameters);
    const Value x = segment(0, dtype, 21);
    autograd::Tape tape;
    const Value whole = layer(tape, x);
    TransformerXLState state = layer.new_state(kB);
    for (int64_t begin = 0, end = 9; begin < 21; begin = end, end += 6) {
      const Values part = numbers(layer(tape, autograd::slice(tape, x, 1, begin, end), &state).data());
      const Values wanted = numbers(autograd::slice(tape, whole, 1, begin, end).data());
      EXPECT_LE(max_abs_error(part, wanted), rounding_bound(dtype, max_abs(wanted), kSums)) << name_of(dtype);
    }
  }
}

/// A text segment without tokens, and a batch without texts, have results of their shape and change no state.
TEST(TransformerXL, TakesEmptyInputs) {
  nn::Parameters parameters(exact());
  const TransformerXLAttention layer(Scope(parameters) / "attention", kC, plain());
  TransformerXLState state = layer.new_state(kB);
  for (const std::vector<int64_t>& shape : {std::vector{kB, int64_t{0}, kC}, std::vector{int64_t{0}, kL, kC}}) {
    autograd::Tape tape({.record = true});
    const Value x(Array(DType::float64, shape), true);
    const Value y = layer(tape, x, shape[0] == kB ? &state : nullptr);
    EXPECT_EQ(y.shape(), shape);
    tape.backward(autograd::sum(tape, y));
    EXPECT_EQ(layer(tape, x).shape(), shape);
  }
  EXPECT_EQ(state.memory.count(), 0);
}

TEST(TransformerXL, TrainsInEveryPrecision) {
  for (const Precision precision : {Precision::float32, Precision::bfloat16, Precision::float16}) {
    nn::Parameters parameters(exact(precision));
    const TransformerXLAttention layer(Scope(parameters) / "attention", kC, compressing(MemoryCompression::projection));
    TransformerXLState state = layer.new_state(kB);
    for (int64_t n = 0; n < 3; ++n) {
      autograd::Tape tape({.record = true});
      tape.backward(autograd::sum(tape, layer(tape, segment(n, parameters.dtype()), &state)));
    }
    for (const Value& parameter : {layer.position, layer.content_bias, layer.position_bias, layer.compression.weight})
      EXPECT_GT(max_abs(gradient_of(parameter)), 0) << name_of(precision);
  }
}

/// The share of right answers after training to say what symbol came `gap` tokens before, on a stream of random symbols
/// in text segments of 8.
double recalled(int64_t memory, int64_t gap) {
  constexpr int64_t B = 16, L = 8, symbols = 8, width = 16;
  nn::Parameters parameters(exact(Precision::float32));
  const TransformerXLAttention layer(Scope(parameters) / "attention", width, {.memory = std::max<int64_t>(memory, 1)});
  const Linear head(Scope(parameters) / "head", width, symbols);
  AdamW optimizer(parameters, {.learning_rate = 0.02});
  TransformerXLState state = layer.new_state(B);
  std::vector<std::vector<int64_t>> text(B, std::vector<int64_t>(gap, ops::kIgnoreIndex));
  Random random(5);
  double right = 0, asked = 0;
  for (int step = 0; step < 300; ++step) {
    const Array x(DType::float32, {B, L, width});
    std::vector<int64_t> targets;
    for (int64_t b = 0; b < B; ++b)
      for (int64_t t = 0; t < L; ++t) {
        text[b].push_back(random.below(symbols));
        x.data<float>()[(b * L + t) * width + text[b].back()] = 1;
        targets.push_back(*(text[b].end() - 1 - gap));
      }
    parameters.clear_gradients();
    autograd::Tape tape({.record = true, .training = true});
    const Value logits = head(tape, layer(tape, Value(x), memory > 0 ? &state : nullptr));
    tape.backward(autograd::cross_entropy(tape, logits, targets));
    optimizer.step();
    if (step < 250) continue;
    const Values scores = numbers(logits.data());
    for (int64_t n = 0; n < B * L; ++n, ++asked) {
      const auto first = scores.begin() + n * symbols;
      right += std::max_element(first, first + symbols) - first == targets[n];
    }
  }
  return right / asked;
}

/// A query of a text segment of 8 sees a token 12 back if the memory has it: none, half, or all of the queries do. The
/// others guess one of 8.
TEST(MemoryLearning, ReachesAsFarBackAsTheMemory) {
  const double guess = 1.0 / 8, deviation = std::sqrt(guess * (1 - guess) / 6400);  // of the mean of 6,400 guesses
  EXPECT_NEAR(recalled(0, 12), guess, 4 * deviation);
  EXPECT_NEAR(recalled(8, 12), (1 + guess) / 2, 4 * deviation);
  EXPECT_NEAR(recalled(12, 12), 1, 4 * deviation);
}

TEST(TransformerXL, SaysWhatIsWrong) {
  nn::Parameters parameters(exact());
  const auto error = [&](int64_t width, TransformerXLOptions options) {
    return error_of([&] { TransformerXLAttention(Scope(parameters) / "attention", width, options); });
  };
  EXPECT_EQ(
      error(kC, {.heads = 4, .memory = 0, .compressed_memory = -1, .compression_rate = 0}),
      "[attention] heads 4 must divide width 6, or head_dim must be given; memory is 0, must be in [1, 2147483648]; "
      "compressed_memory is -1, must be in [0, 2147483648]; compression_rate is 0, must be in [1, 2147483648]");
  EXPECT_EQ(
      error(1000, {.heads = 10}),
      "[attention] position_dim is 1000 (the width), must be even and in [2, 924]: it and the 100 columns of a head "
      "are at most 1024 together");
  EXPECT_EQ(error(kC, {.position_dim = 3}),
            "[attention] position_dim is 3, must be even and in [2, 1018]: it and the 6 columns of a head are at most "
            "1024 together");

  const TransformerXLAttention layer(Scope(parameters) / "layer", kC, compressing(MemoryCompression::mean));
  autograd::Tape tape;
  const auto call = [&](const Value& x, TransformerXLState state) { return error_of([&] { layer(tape, x, &state); }); };
  TransformerXLState state = layer.new_state(kB);
  EXPECT_EQ(call(Value(Array(DType::float64, {kB, kL, kC + 1})), state),
            "[layer] x is [2, 5, 7] of float64, must be [B, L, 6] of float64");
  EXPECT_EQ(call(segment(0), layer.new_state(kB + 1)),
            "[layer] the state's memory is float64 [3, 0, 6], must be float64 [2, m, 6] with m at most 5: new_state() "
            "makes it");
  EXPECT_EQ(
      call(segment(0), {state.memory, Array(DType::float64, {kB, 3, kC}), state.compressed}),
      "[layer] the state's leaving is float64 [2, 3, 6], must be float64 [2, m, 6] with m at most 6 and a multiple "
      "of 2: new_state() makes it");
  EXPECT_EQ(call(segment(0), {state.memory, state.leaving, Array(DType::float32, {kB, 3, kC})}),
            "[layer] the state's compressed is float32 [2, 3, 6], must be float64 [2, m, 6] with m at most 3: "
            "new_state() makes it");
  EXPECT_EQ(error_of([&] { TransformerXLAttention()(tape, segment(0)); }),
            "[TransformerXLAttention] the layer has no parameters: make it with a Scope before it is called");
  EXPECT_EQ(error_of([&] { layer.new_state(0); }), "[layer] B is 0, must be in [1, 2147483648]");
}

}  // namespace
}  // namespace attn::test
