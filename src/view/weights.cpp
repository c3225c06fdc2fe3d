// Checks of what is to be drawn, the loop over rows of attention_weights(), and pooling by the maximum.
//
// Loop order: blocks of rows, then heads, then rows of the block. attention_weights() is asked for all heads of a block
// at once, so that its own tasks fill the threads.
#include "view/weights.h"

#include <algorithm>
#include <cmath>

#include "attention/problem.h"

namespace attn::view {
namespace {

// Scores in the thousands round a weight of 1 to about 1.0001, 16-bit inputs less than a percent. More means that lse
// is not the one of q and k, which no picture may hide.
constexpr double kLargestWeight = 1 + 1.0 / 64;
constexpr int64_t kBlockRows = 64;

bool is_weight(double value) { return value >= 0 && value <= kLargestWeight; }  // false for NaN

std::string at_cell(int64_t row, int64_t column, double value) {
  return "query " + std::to_string(row) + ", key " + std::to_string(column) + " has weight " + std::to_string(value) +
         ", must be in [0, 1]";
}

/// All that attention_weights() says of an empty rectangle: it checks everything and computes nothing.
void check_call(Checker& checker, const std::string& name, const Layer& layer) {
  const DType dtype = layer.q.dtype == DType::float64 ? DType::float64 : DType::float32;
  try {
    attention_weights(layer.q, layer.k, layer.lse, View<4>(nullptr, dtype, {layer.q.size[0], layer.q.size[1], 0, 0}), 0,
                      0, layer.options);
  } catch (const Error& error) {
    for (const std::string& reason : error.reasons()) checker.require(false, name + ": " + reason);
  }
}

}  // namespace

void check_layers(Checker& checker, const std::vector<Layer>& layers, int64_t tokens) {
  checker.require(!layers.empty(), "there must be a layer");
  for (size_t n = 0; n < layers.size(); ++n) {
    const Layer& layer = layers[n];
    const std::string name = "layers[" + std::to_string(n) + "]";
    const int64_t Lq = layer.q.size[2], Lk = layer.k.size[2];
    checker.require(layer.q.data && layer.k.data && layer.lse.data, name + ": q, k and lse must have data");
    checker.require(layer.q.size[0] == 1, [&] {
      return name + ": q has size " + to_string<4>(layer.q.size) + ", must be one text: [1, H, Lq, D]";
    });
    checker.require(layer.q.size[1] > 0 && Lq > 0 && Lk > 0, name + ": there must be a head, a query and a key");
    if (tokens >= 0) {
      checker.require(Lq == tokens && Lk == tokens, [&] {
        return name + ": " + std::to_string(Lq) + " queries and " + std::to_string(Lk) + " keys, but " +
               std::to_string(tokens) + " tokens";
      });
    } else {
      checker.require(Lq == layers[0].q.size[2] && Lk == layers[0].k.size[2],
                      name + ": must have as many queries and keys as layers[0]");
    }
    check_call(checker, name, layer);
  }
}

void check_scale(Checker& checker, Scale scale) {
  checker.require(scale == Scale::linear || scale == Scale::log, "the scale is neither linear nor log");
}

void check_weights(Checker& checker, const ConstView<4>& weights) {
  checker.require(weights.dtype == DType::float32,
                  [&] { return "weights are " + std::string(name_of(weights.dtype)) + ", must be float32"; });
  const bool one_head = weights.size[0] == 1 && weights.size[1] == 1 && weights.size[2] > 0 && weights.size[3] > 0;
  checker.require(one_head, [&] {
    return "weights have size " + to_string<4>(weights.size) + ", must be [1, 1, Lq, Lk], not empty";
  });
  checker.require(weights.data != nullptr, "weights must have data");
  detail::check_layout(checker, "weights", weights);
  if (!checker.ok()) return;
  for (int64_t row = 0; row < weights.size[2]; ++row)
    for (int64_t column = 0; column < weights.size[3]; ++column) {
      const int64_t offset = row * weights.stride[2] + column * weights.stride[3];
      const float value = static_cast<const float*>(weights.data)[offset];
      if (!checker.require(is_weight(value), [&] { return at_cell(row, column, value); })) return;  // the first will do
    }
}

float weight_at(const ConstView<4>& weights, int64_t row, int64_t column) {
  return std::min(static_cast<const float*>(weights.data)[row * weights.stride[2] + column * weights.stride[3]], 1.0f);
}

void for_each_row(std::string_view operation, const Layer& layer, int64_t index, const RowSink& sink) {
  const int64_t H = layer.q.size[1], Lq = layer.q.size[2], Lk = layer.k.size[2];
  const bool wide = layer.q.dtype == DType::float64;
  const int64_t rows = std::min(kBlockRows, Lq);
  const Buffer block(H * rows * Lk * (wide ? 8 : 4));
  std::vector<double> values(static_cast<size_t>(Lk));
  for (int64_t first = 0; first < Lq; first += rows) {
    const int64_t count = std::min(rows, Lq - first);
    const View<4> weights(block.data(), wide ? DType::float64 : DType::float32, {1, H, count, Lk});
    attention_weights(layer.q, layer.k, layer.lse, weights, first, 0, layer.options);
    for (int64_t h = 0; h < H; ++h)
      for (int64_t r = 0; r < count; ++r) {
        const int64_t offset = (h * count + r) * Lk;
        for (int64_t c = 0; c < Lk; ++c) {
          const double value = wide ? static_cast<const double*>(block.data())[offset + c]
                                    : static_cast<double>(static_cast<const float*>(block.data())[offset + c]);
          if (!is_weight(value))
            throw Error(operation, {"layers[" + std::to_string(index) + "], head " + std::to_string(h) + ": " +
                                    at_cell(first + r, c, value)});
          values[c] = std::min(value, 1.0);
        }
        sink(h, first + r, values.data());
      }
  }
}

Pooled::Pooled(int64_t Lq, int64_t Lk, int64_t max_rows, int64_t max_columns) {
  const auto ceiling = [](int64_t a, int64_t b) { return a / b + (a % b != 0); };
  row_group = ceiling(Lq, max_rows);
  column_group = ceiling(Lk, max_columns);
  rows = ceiling(Lq, row_group);
  columns = ceiling(Lk, column_group);
  cells.resize(static_cast<size_t>(rows * columns));
}

void Pooled::add(int64_t row, int64_t column, float weight) {
  float& cell = cells[row / row_group * columns + column / column_group];
  cell = std::max(cell, weight);
}

}  // namespace attn::view
