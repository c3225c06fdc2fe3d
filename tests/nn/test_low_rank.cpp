// Linformer: against the formula in plain loops, gradients in float64 against differences, padding, errors.
#include <cmath>

#include "attn/autograd_operations.h"
#include "attn/core_names.h"
#include "attn/nn_low_rank.h"
#include "support/errors.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using namespace nn;
using attn::Array;

constexpr int64_t kB = 2, kL = 6, kC = 8, kH = 2, kD = 3, kRows = 4, kMost = 7;

LinformerOptions options_of(LinformerSharing sharing) {
  return {.heads = kH, .head_dim = kD, .max_length = kMost, .rows = kRows, .sharing = sharing};
}
nn::Parameters::Options exact(Precision precision = Precision::float64) {
  return {.initialization = Initialization::xavier, .precision = precision, .seed = 3};
}

/// A layer, with what owns its parameters and, where it shares one, the projection.
struct Made {
  explicit Made(LinformerSharing sharing, Precision precision = Precision::float64) : parameters(exact(precision)) {
    layer = LinformerAttention(Scope(parameters) / "attention", kC, options_of(sharing));
    if (sharing == LinformerSharing::layers) {
      first = LinformerAttention(Scope(parameters) / "first", kC, options_of(LinformerSharing::key_value));
      layer.share_projection(first);
    }
    stir(parameters);
  }
  nn::Parameters parameters;
  LinformerAttention layer, first;
};

/// softmax(Q (E K)^T / sqrt(D)) (F V) of one sequence: q, k, v [tokens, H D] -> [tokens, H D].
Values by_loops(const Values& q, const Values& k, const Values& v, const LinformerAttention& layer) {
  const bool apart = layer.options.sharing == LinformerSharing::none;
  const Values E = numbers(layer.key_projection.data());
  const Values F = layer.value_projection ? numbers(layer.value_projection.data()) : E;
  const int64_t C = kH * kD, tokens = static_cast<int64_t>(q.size()) / C;
  Values out(q.size(), 0);
  for (int64_t h = 0; h < kH; ++h) {
    const auto projected = [&](const Values& matrix, const Values& x, int64_t r, int64_t d) {
      double sum = 0;
      for (int64_t j = 0; j < tokens; ++j)
        sum += matrix[((apart ? h * kRows : 0) + r) * kMost + j] * x[j * C + h * kD + d];
      return sum;
    };
    for (int64_t i = 0; i < tokens; ++i) {
      Values weight(kRows);
      double total = 0;
      for (int64_t r = 0; r < kRows; ++r) {
        double score = 0;
        for (int64_t d = 0; d < kD; ++d) score += q[i * C + h * kD + d] * projected(E, k, r, d);
        total += weight[r] = std::exp(score / std::sqrt(static_cast<double>(kD)));
      }
      for (int64_t d = 0; d < kD; ++d)
        for (int64_t r = 0; r < kRows; ++r) out[i * C + h * kD + d] += weight[r] / total * projected(F, v, r, d);
    }
  }
  return out;
}

/// y [rows, out] of a Linear.
Values applied(const Linear& linear, const Values& x) {
  const Values weight = numbers(linear.weight.data()), bias = numbers(linear.bias.data());
  const int64_t out = linear.weight.shape()[0], in = linear.weight.shape()[1];
  Values y;
  for (size_t row = 0; row < x.size() / in; ++row)
    for (int64_t o = 0; o < out; ++o) {
      double sum = bias[o];
      for (int64_t i = 0; i < in; ++i) sum += weight[o * in + i] * x[row * in + i];
      y.push_back(sum);
    }
  return y;
}

/// The layer on one sequence x [tokens, C].
Values by_loops(const LinformerAttention& layer, const Values& x) {
  const Values qkv = applied(layer.qkv, x);
  const size_t C = kH * kD;
  Values part[3];
  for (size_t n = 0; n < qkv.size(); ++n) part[n / C % 3].push_back(qkv[n]);
  return applied(layer.output, by_loops(part[0], part[1], part[2], layer));
}

constexpr LinformerSharing kKinds[] = {LinformerSharing::none, LinformerSharing::heads, LinformerSharing::key_value,
                                       LinformerSharing::layers};

TEST(Linformer, IsTheFormula) {
  for (const LinformerSharing sharing : kKinds) {
    const Made made(sharing);
    const Array x = random_array(DType::float64, {kB, kL, kC}, 11);
    const int64_t lengths[] = {kL, kL - 2};
    autograd::Tape tape;
    const Values y = numbers(made.layer(tape, Value(x), lengths).data()), all = numbers(x);
    for (int64_t b = 0; b < kB; ++b) {
      const auto row = [&](const Values& of, int64_t i) { return of.begin() + (b * kL + i) * kC; };
      const Values wanted = by_loops(made.layer, Values(row(all, 0), row(all, lengths[b])));
      const double roundings = 100;  // of sums over C and over the tokens
      EXPECT_LE(max_abs_error(Values(row(y, 0), row(y, lengths[b])), wanted),
                rounding_bound(DType::float64, max_abs(wanted), roundings))
          << name_of(sharing) << ", sequence " << b;
    }
  }
}

TEST(Linformer, HasTheGradientsOfDifferences) {
  for (const LinformerSharing sharing : kKinds) {
    const Made made(sharing);
    const Value x(random_array(DType::float64, {kB, kL, kC}, 11), true);
    const std::vector<int64_t> lengths = {kL, 0};
    for (const auto& some : {std::vector<int64_t>(), lengths})
      expect_gradients(std::string(name_of(sharing)), leaves_of(made.parameters, x),
                       [&](Tape& tape) { return made.layer(tape, x, some); });
  }
}

TEST(Linformer, TakesEmptyInputs) {
  for (const LinformerSharing sharing : kKinds) {
    const Made made(sharing);
    for (const std::vector<int64_t>& shape : {std::vector{kB, int64_t{0}, kC}, std::vector{int64_t{0}, kL, kC}}) {
      autograd::Tape tape({.record = true});
      const Value y = made.layer(tape, Value(Array(DType::float64, shape), true));
      EXPECT_EQ(y.shape(), shape);
      tape.backward(autograd::sum(tape, y));
    }
  }
}

/// In float32 and in 16 bits a step runs, and its gradients reach E and F.
TEST(Linformer, TrainsInEveryPrecision) {
  for (const Precision precision : {Precision::float32, Precision::bfloat16, Precision::float16}) {
    const Made made(LinformerSharing::none, precision);
    const Value x(random_array(made.parameters.dtype(), {kB, kL, kC}, 11), true);
    autograd::Tape tape({.record = true});
    tape.backward(autograd::sum(tape, made.layer(tape, x)));
    EXPECT_GT(max_abs(gradient_of(made.layer.key_projection)), 0) << name_of(precision);
    EXPECT_GT(max_abs(gradient_of(made.layer.value_projection)), 0) << name_of(precision);
  }
}

/// What is in the padding changes no bit of the other rows, not even as NaN, and neither does its length.
TEST(Linformer, DoesNotReadPadding) {
  const Made made(LinformerSharing::heads, Precision::float32);
  const int64_t length = 4, lengths[] = {length};
  const Array alone = random_array(DType::float32, {1, length, kC}, 11);
  Values padded = numbers(alone);
  padded.resize(kMost * kC, kNaN);
  const std::vector<float> elements(padded.begin(), padded.end());
  autograd::Tape tape;
  Values y = numbers(made.layer(tape, Value(Array(elements, {1, kMost, kC})), lengths).data());
  y.resize(length * kC);
  EXPECT_EQ(y, numbers(made.layer(tape, Value(alone)).data()));
}

TEST(Linformer, SaysWhatIsWrong) {
  nn::Parameters parameters(exact());
  const auto error = [&](LinformerOptions options) {
    return error_of([&] { LinformerAttention(Scope(parameters) / "linformer", kC, options); });
  };
  EXPECT_EQ(error({.heads = 3}), "[linformer] heads 3 must divide width 8, or head_dim must be given");
  EXPECT_EQ(
      error({.max_length = 0, .rows = 0, .dropout = 1}),
      "[linformer] dropout is 1.000000, must be in [0, 1); max_length is 0, must be in [1, 2147483648]; rows is 0, "
      "must be in [1, 2147483648]");

  Made made(LinformerSharing::key_value);
  autograd::Tape tape;
  const auto call = [&](const LinformerAttention& layer, const Value& x, std::vector<int64_t> lengths = {}) {
    return error_of([&] { layer(tape, x, lengths); });
  };
  const Value x(random_array(DType::float64, {kB, kL, kC}, 11));
  EXPECT_EQ(call(made.layer, Value(Array(DType::float64, {kB, kMost + 1, kC}))),
            "[attention] x has L = 8 tokens, must be at most max_length = 7");
  EXPECT_EQ(call(made.layer, Value(Array(DType::float32, {kB, kL, kC}))),
            "[attention] x is [2, 6, 8] of float32, must be [B, L, 8] of float64");
  EXPECT_EQ(call(made.layer, x, {kL}), "[attention] key_length has 1 entries, must have B = 2");
  EXPECT_EQ(call(made.layer, x, {kL, kL + 1}), "[attention] key_length[1] is 7, must be in [0, 6]");
  EXPECT_EQ(call({}, x), "[LinformerAttention] the layer has no parameters: make it with a Scope before it is called");

  LinformerAttention later(Scope(parameters) / "later", kC, options_of(LinformerSharing::layers));
  EXPECT_EQ(call(later, x), "[later] the layer has no projection yet: share_projection() gives it another's");
  EXPECT_EQ(error_of([&] { later.share_projection(later); }),
            "[later] the other layer's sharing is layers, must be key_value, or layers with a projection");
  EXPECT_EQ(error_of([&] { made.layer.share_projection(made.layer); }),
            "[attention] sharing is key_value, must be layers: the layer has its own projection");
  LinformerOptions wide = options_of(LinformerSharing::layers);
  wide.rows = 5;
  EXPECT_EQ(error_of([&] { LinformerAttention(Scope(parameters) / "wide", kC, wide).share_projection(made.layer); }),
            "[wide] the other layer's projection is [4, 7], must be [5, 7]");
}

}  // namespace
}  // namespace attn::test
