// Mixers by attention to selected blocks of keys: the formulas of the papers in float64, gradients against differences,
// generation over the borders of blocks, packed sequences, errors.
#include <cmath>

#include "attn/autograd_operations.h"
#include "attn/nn_selected.h"
#include "support/errors.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using namespace nn;
using attn::Array;

constexpr int64_t kB = 2, kC = 8;

nn::Parameters::Options exact(Precision precision = Precision::float64) {
  return {.initialization = Initialization::xavier, .precision = precision, .seed = 3};
}
Value input(int64_t L, DType dtype = DType::float64) { return Value(random_array(dtype, {kB, L, kC}, 11), true); }

MobaOptions moba() {
  return {.heads = 4, .kv_heads = 2, .head_dim = 6, .block = 4, .count = 2, .bias = true, .rope = {.theta = 100}};
}

NativeSparseOptions nsa() {
  return {.heads = 4,
          .kv_heads = 2,
          .head_dim = 6,
          .block = 3,
          .count = 3,
          .window = 4,
          .bias = true,
          .rope = {.theta = 100}};
}

template <class Layer, class Options>
MixerMaker maker(const Options& options) {
  return [=](const Scope& scope, int64_t width) { return std::make_shared<Layer>(scope, width, options); };
}

std::vector<std::pair<std::string, MixerMaker>> layers() {
  return {
      {"MoBA", maker<MobaAttention>(moba())},
      {"MoBA without options", maker<MobaAttention>(MobaOptions{.block = 3, .count = 3})},
      {"NSA", maker<NativeSparseAttention>(nsa())},
      {"NSA without options", maker<NativeSparseAttention>(NativeSparseOptions{.block = 2, .count = 2, .window = 1})}};
}

// --------------------------------------------------------------------------------------------------------- plain loops

using Matrix = std::vector<Values>;  // rows

/// x W^T + b of the rows of one sequence.
Matrix product(const Linear& layer, const Matrix& x) {
  const Values weight = numbers(layer.weight.data());
  const Values bias = layer.bias ? numbers(layer.bias.data()) : Values(layer.weight.shape()[0], 0);
  Matrix y(x.size(), bias);
  for (size_t i = 0; i < x.size(); ++i)
    for (size_t n = 0; n < bias.size(); ++n)
      for (size_t c = 0; c < x[i].size(); ++c) y[i][n] += weight[n * x[i].size() + c] * x[i][c];
  return y;
}

Matrix columns(const Matrix& x, int64_t first, int64_t width) {
  Matrix y;
  for (const Values& row : x) y.emplace_back(row.begin() + first, row.begin() + first + width);
  return y;
}

/// Row i turned to position i step.
Matrix turned(Matrix x, double theta, int64_t step = 1) {
  for (size_t i = 0; i < x.size() && theta > 0; ++i) {
    const size_t half = x[i].size() / 2;
    for (size_t c = 0; c < half; ++c) {
      const double angle =
          static_cast<double>(i * step) * std::pow(theta, -static_cast<double>(c) / static_cast<double>(half));
      const double a = x[i][c], b = x[i][c + half];
      x[i][c] = a * std::cos(angle) - b * std::sin(angle);
      x[i][c + half] = a * std::sin(angle) + b * std::cos(angle);
    }
  }
  return x;
}

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

/// The weights of the keys for which allowed(j), 0 for the others.
template <class Allowed>
Values weights_of(const Values& q, const Matrix& k, const Allowed& allowed) {
  Values weights(k.size());
  const double scale = 1 / std::sqrt(static_cast<double>(q.size()));
  double total = 0;
  for (size_t j = 0; j < k.size(); ++j)
    if (allowed(static_cast<int64_t>(j))) total += weights[j] = std::exp(scale * dot(q, k[j]));
  for (double& weight : weights) weight = total > 0 ? weight / total : 0;
  return weights;
}

Values mean_of(const Values& weights, const Matrix& v) {
  Values out(v[0].size());
  for (size_t j = 0; j < v.size(); ++j)
    for (size_t c = 0; c < out.size(); ++c) out[c] += weights[j] * v[j][c];
  return out;
}

/// True for the `count` largest scores, of equal ones the first.
std::vector<bool> largest(Values scores, int64_t count) {
  std::vector<bool> chosen(scores.size());
  for (int64_t n = 0; n < count && n < std::ssize(scores); ++n) {
    const auto best = std::max_element(scores.begin(), scores.end());
    chosen[best - scores.begin()] = true;
    *best = -kInf;
  }
  return chosen;
}

Matrix sequence_of(const Value& x, int64_t b) {
  const Values all = numbers(x.data());
  const int64_t L = x.shape()[1];
  Matrix rows;
  for (int64_t i = b * L; i < (b + 1) * L; ++i) rows.emplace_back(all.begin() + i * kC, all.begin() + (i + 1) * kC);
  return rows;
}

/// MoBA, equations 2 to 6 of the paper, for one sequence.
Matrix moba_of(const MobaAttention& layer, const Matrix& x) {
  const MobaOptions& o = layer.options;
  const int64_t H = o.heads, Hk = o.kv_heads, D = o.head_dim, L = std::ssize(x);
  const Matrix rows = product(layer.qkv, x);
  Matrix out(x.size());
  for (int64_t h = 0; h < H; ++h) {
    const int64_t shared = h / (H / Hk);
    const Matrix q = turned(columns(rows, h * D, D), o.rope.theta);
    const Matrix k = turned(columns(rows, (H + shared) * D, D), o.rope.theta);
    const Matrix v = columns(rows, (H + Hk + shared) * D, D);
    for (int64_t i = 0; i < L; ++i) {
      Values scores;
      for (int64_t m = 0; m < i / o.block; ++m) {
        scores.push_back(0);
        for (int64_t j = m * o.block; j < (m + 1) * o.block; ++j)
          scores[m] += dot(q[i], k[j]) / static_cast<double>(o.block);
      }
      scores.push_back(kInf);  // its own
      const std::vector<bool> chosen = largest(scores, o.count);
      const Values y = mean_of(weights_of(q[i], k, [&](int64_t j) { return j <= i && chosen[j / o.block]; }), v);
      out[i].insert(out[i].end(), y.begin(), y.end());
    }
  }
  return product(layer.output, out);
}

/// The compressed rows of whole blocks.
Matrix compressed(const Linear& map, const Matrix& rows, int64_t block) {
  Matrix joined;
  for (int64_t first = 0; first + block <= std::ssize(rows); first += block) {
    joined.emplace_back();
    for (int64_t j = first; j < first + block; ++j)
      joined.back().insert(joined.back().end(), rows[j].begin(), rows[j].end());
  }
  return product(map, joined);
}

/// The blocks that query i selects: by the weights of compressed keys, summed over the heads q of a group.
std::vector<bool> selected_by(const std::vector<Matrix>& q, const Matrix& compressed_keys, int64_t i,
                              const NativeSparseOptions& o) {
  Values importance(i / o.block + 1);
  for (const Matrix& head : q) {
    const Values weights = weights_of(head[i], compressed_keys, [&](int64_t m) { return (m + 1) * o.block <= i + 1; });
    for (size_t m = 0; m < importance.size() && m < weights.size(); ++m) importance[m] += weights[m];
  }
  importance.front() = importance.back() = kInf;
  return largest(importance, o.count);
}

/// NSA, equations 5 to 12 of the paper with l = d = l', for one sequence.
Matrix nsa_of(const NativeSparseAttention& layer, const Matrix& x) {
  const NativeSparseOptions& o = layer.options;
  const int64_t H = o.heads, Hk = o.kv_heads, D = o.head_dim, G = H / Hk, L = std::ssize(x);
  const Matrix rows = product(layer.qkv, x), gates = product(layer.gate, x);
  Matrix out(x.size());
  for (int64_t shared = 0; shared < Hk; ++shared) {
    const auto run = [&](int64_t n) { return columns(rows, (H + n * Hk + shared) * D, D); };
    const Matrix k[] = {turned(compressed(layer.compress_key, run(4), o.block), o.rope.theta, o.block),
                        turned(run(0), o.rope.theta), turned(run(1), o.rope.theta)};
    const Matrix v[] = {compressed(layer.compress_value, run(5), o.block), run(2), run(3)};
    std::vector<Matrix> q;
    for (int64_t h = shared * G; h < (shared + 1) * G; ++h) q.push_back(turned(columns(rows, h * D, D), o.rope.theta));
    for (int64_t i = 0; i < L; ++i) {
      const std::vector<bool> chosen = selected_by(q, k[0], i, o);
      const std::function<bool(int64_t)> allowed[] = {[&](int64_t m) { return (m + 1) * o.block <= i + 1; },
                                                      [&](int64_t j) { return j <= i && chosen[j / o.block]; },
                                                      [&](int64_t j) { return j <= i && j > i - o.window; }};
      for (int64_t h = shared * G; h < (shared + 1) * G; ++h) {
        Values sum(D);
        for (int64_t branch = 0; branch < 3; ++branch) {
          const Values y = mean_of(weights_of(q[h - shared * G][i], k[branch], allowed[branch]), v[branch]);
          for (int64_t d = 0; d < D; ++d) sum[d] += y[d] / (1 + std::exp(-gates[i][branch * H + h]));
        }
        out[i].insert(out[i].end(), sum.begin(), sum.end());
      }
    }
  }
  return product(layer.output, out);
}

template <class Layer, class Options, class Formula>
void expect_formula(const Options& options, const Formula& formula) {
  nn::Parameters parameters(exact());
  const Layer layer(Scope(parameters) / "mixer", kC, options);
  stir(parameters);
  const Value x = input(19);
  autograd::Tape tape;
  const Values y = numbers(layer(tape, x).data());
  Values expected;
  for (int64_t b = 0; b < kB; ++b)
    for (const Values& row : formula(layer, sequence_of(x, b))) expected.insert(expected.end(), row.begin(), row.end());
  EXPECT_LE(max_abs_error(y, expected), rounding_bound(DType::float64, max_abs(expected), 100));
}

TEST(Moba, IsTheFormula) {
  expect_formula<MobaAttention>(moba(), moba_of);
  expect_formula<MobaAttention>(MobaOptions{.heads = 2, .block = 3, .count = 3}, moba_of);
  expect_formula<MobaAttention>(MobaOptions{.heads = 2, .block = 3, .count = 1}, moba_of);
}

TEST(NativeSparse, IsTheFormula) {
  expect_formula<NativeSparseAttention>(nsa(), nsa_of);
  expect_formula<NativeSparseAttention>(NativeSparseOptions{.heads = 2, .block = 4, .count = 3, .window = 100}, nsa_of);
  expect_formula<NativeSparseAttention>(NativeSparseOptions{.block = 2, .count = 2, .window = 1}, nsa_of);
}

/// Of equal scores the lower block is selected: all keys are equal, and the values tell their blocks.
TEST(Moba, SelectsTheLowerOfEqualBlocks) {
  nn::Parameters parameters(exact());
  const MobaAttention layer(Scope(parameters) / "mixer", kC, MobaOptions{.block = 2, .count = 2});
  for (const nn::Parameter& parameter : parameters.all()) {
    double* weight = parameter.master.data<double>();
    const int64_t rows = parameter.master.shape()[0];
    for (int64_t n = 0; n < rows * kC; ++n)
      weight[n] = n / kC - (rows - kC) == n % kC;  // q = k = 0, v = x; output = identity
  }
  parameters.refresh();
  const Value x = input(8);
  autograd::Tape tape;
  const Values y = numbers(layer(tape, x).data()), values = numbers(x.data());
  for (int64_t c = 0; c < kC; ++c) {  // the last query: blocks 0 and 3
    const double mean = (values[c] + values[kC + c] + values[6 * kC + c] + values[7 * kC + c]) / 4;
    EXPECT_LE(distance(y[7 * kC + c], mean), rounding_bound(DType::float64, max_abs(values), 10));
  }
}

/// With all blocks selected it is causal attention: the same parameters in the same places.
TEST(Moba, WithAllBlocksIsAttention) {
  nn::Parameters sparse(exact()), full(exact());
  MobaOptions options = moba();
  options.count = 5;
  const MobaAttention layer(Scope(sparse) / "mixer", kC, options);
  const MultiHeadAttention attention(Scope(full) / "mixer", kC,
                                     {.heads = 4,
                                      .kv_heads = 2,
                                      .head_dim = 6,
                                      .causal = true,
                                      .position = AttentionPositions::rope,
                                      .rope = {.theta = 100}});
  stir(sparse);
  stir(full);
  const Value x = input(19);
  autograd::Tape tape;
  const Values expected = numbers(attention(tape, x).data());
  EXPECT_LE(max_abs_error(numbers(layer(tape, x).data()), expected),
            rounding_bound(DType::float64, max_abs(expected), 100));
}

// ---------------------------------------------------------------------------------------------------------- all layers

TEST(Selected, HasTheGradientsOfDifferences) {
  for (const auto& [name, make] : layers()) {
    nn::Parameters parameters(exact());
    const std::shared_ptr<const Mixer> layer = make(Scope(parameters) / "mixer", kC);
    stir(parameters);
    const Value x = input(14);
    expect_gradients(name, leaves_of(parameters, x), [&](Tape& tape) { return (*layer)(tape, x); });
    const Value packed(random_array(DType::float64, {1, 17, kC}, 12), true);
    const int64_t starts[] = {0, 9, 9, 17};
    expect_gradients(
        name + ", packed", leaves_of(parameters, packed),
        [&](Tape& tape) { return (*layer)(tape, packed, {.cu_seqlens = starts}); }, 4);
  }
}

/// A prompt that ends inside a block, two tokens at once, then token by token over the borders of blocks.
TEST(Selected, GeneratesWhatTheWholeTextGives) {
  constexpr int64_t kL = 24;
  for (const auto& [name, make] : layers())
    for (const DType dtype : {DType::float64, DType::float32}) {
      nn::Parameters parameters(exact(dtype == DType::float64 ? Precision::float64 : Precision::float32));
      const std::shared_ptr<const Mixer> layer = make(Scope(parameters) / "mixer", kC);
      stir(parameters);
      const Value x = input(kL, dtype);
      autograd::Tape tape;
      const Values whole = numbers((*layer)(tape, x).data());
      MixerState state = layer->new_state(kB);
      for (int64_t begin = 0, end = 6; begin < kL; begin = end, end += begin == 6 ? 2 : 1) {
        const Value part = autograd::slice(tape, x, 1, begin, end);
        const Values y = numbers((*layer)(tape, part, {.state = &state}).data());
        const int64_t row = (end - begin) * kC;
        for (int64_t n = 0; n < kB * row; ++n)
          ASSERT_LE(distance(y[n], whole[n / row * kL * kC + begin * kC + n % row]),
                    rounding_bound(dtype, max_abs(whole), 100))
              << name << " at " << begin;
      }
    }
}

TEST(Selected, KeepsPackedSequencesApart) {
  for (const auto& [name, make] : layers()) {
    nn::Parameters parameters(exact());
    const std::shared_ptr<const Mixer> layer = make(Scope(parameters) / "mixer", kC);
    stir(parameters);
    const Value x = input(11);
    const int64_t starts[] = {0, 11, 22};
    autograd::Tape tape;
    const Value packed(x.data().reshaped({1, 22, kC}));
    const Values apart = numbers((*layer)(tape, x).data());
    EXPECT_LE(max_abs_error(numbers((*layer)(tape, packed, {.cu_seqlens = starts}).data()), apart),
              rounding_bound(DType::float64, max_abs(apart), 100))
        << name;
  }
}

TEST(NativeSparse, SaysWhatIsWrong) {
  nn::Parameters parameters(exact());
  const auto error = [&](NativeSparseOptions options) {
    return error_of([&] { NativeSparseAttention(Scope(parameters) / "mixer", kC, options); });
  };
  EXPECT_EQ(error({.block = 0, .count = 1, .window = 0}),
            "[mixer] block is 0, must be in [1, 2147483648]; window is 0, must be in [1, 2147483648]; count is 1, must "
            "be at least 2: a query's own block and the first one");
  EXPECT_EQ(error({.heads = 3}), "[mixer] heads 3 must divide width 8, or head_dim must be given");

  const NativeSparseAttention layer(Scope(parameters) / "layer", kC, nsa());
  const Value x = input(8);
  autograd::Tape tape;
  MixerState state = layer.new_state(kB);
  layer(tape, x, {.state = &state});
  EXPECT_EQ(state.bytes(), 8 * kB * 24 * (8 + 3 + 2 + 2));  // tokens, window, whole blocks, open block
  state.parts[2] = state.parts[0];
  EXPECT_EQ(error_of([&] { layer(tape, x, {.state = &state}); }),
            "[layer] the state's part 2 is float64 [2, 8, 24], must be float64 [2, 2, 24]: new_state() makes it");
  EXPECT_EQ(error_of([&] { NativeSparseAttention()(tape, x); }),
            "[NativeSparseAttention] the layer has no parameters: make it with a Scope before it is called");
}

TEST(Moba, SaysWhatIsWrong) {
  nn::Parameters parameters(exact());
  const auto error = [&](MobaOptions options) {
    return error_of([&] { MobaAttention(Scope(parameters) / "mixer", kC, options); });
  };
  EXPECT_EQ(error({.block = 0, .count = 0}),
            "[mixer] block is 0, must be in [1, 2147483648]; count is 0, must be in [1, 2147483648]");
  EXPECT_EQ(error({.heads = 3}), "[mixer] heads 3 must divide width 8, or head_dim must be given");
  EXPECT_EQ(error({.heads = 4, .kv_heads = 3}), "[mixer] kv_heads 3 must divide heads 4");
  EXPECT_EQ(error({.head_dim = 3, .rope = {.theta = 10}}), "[mixer] the width of a head is 3, must be even with rope");
  EXPECT_EQ(error({.rope = {.theta = -1}}), "[mixer] rope's theta must be more than 1 and finite");

  const MobaAttention layer(Scope(parameters) / "layer", kC, moba());
  const Value x = input(5);
  autograd::Tape tape, recording({.record = true});
  MixerState state = layer.new_state(3);
  EXPECT_EQ(error_of([&] { layer(tape, x, {.state = &state}); }),
            "[layer] the state's part 0 is float64 [3, 0, 24], must be float64 [2, 0, 24]: new_state() makes it");
  state = {};
  EXPECT_EQ(error_of([&] { layer(tape, x, {.state = &state}); }),
            "[layer] the state has 0 parts, must have 1: new_state() makes it");
  state = layer.new_state(2);
  EXPECT_EQ(error_of([&] { layer(recording, x, {.state = &state}); }),
            "[layer] a state is for inference, and the tape records");
  const int64_t starts[] = {0, 3, 2, 5};
  EXPECT_EQ(error_of([&] { layer(tape, x, {.cu_seqlens = starts}); }),
            "[layer] starts must rise from 0 to L = 5 beside x [1, L, C]");
  EXPECT_EQ(error_of([&] { layer(tape, input(5, DType::float32)); }),
            "[layer] x is [2, 5, 8] of float32, must be [B, L, 8] of float64");
  EXPECT_EQ(error_of([&] { MobaAttention()(tape, x); }),
            "[MobaAttention] the layer has no parameters: make it with a Scope before it is called");
  EXPECT_EQ(error_of([&] { layer.new_state(0); }), "[layer] B is 0, must be in [1, 2147483648]");
}

}  // namespace
}  // namespace attn::test
