// Checks of what is to be drawn, the loop over rows of attention_weights(), and pooling by the maximum.
//
// Loop order: blocks of rows, then heads, then rows of the block.
#include "view/weights.h"

#include <algorithm>
#include <numeric>

#include "attention/elements.h"
#include "core/layout.h"

namespace attn::view {
namespace {

// Scores in the thousands round a weight of 1 to about 1.0001, 16-bit inputs by less than a percent. More means that
// lse does not belong to q and k, which is an Error.
constexpr double kLargestWeight = 1 + 1.0 / 64;
constexpr int64_t kBlockRows = 128;  // enough tasks for the threads in every block

std::string at_cell(int64_t row, int64_t column, double value) {
  return "query " + std::to_string(row) + ", key " + std::to_string(column) + " has weight " + std::to_string(value) +
         ", must be in [0, 1]";
}

}  // namespace

bool is_weight(double value) { return value >= 0 && value <= kLargestWeight; }

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
      if (!checker.require(is_weight(value), [&] { return at_cell(row, column, value); }))
        return;  // one reason is enough
    }
}

void check_selection(Checker& checker, const std::vector<RecordedAttention>& layers, const Selection& selection) {
  const auto check = [&](const std::string& where, const char* kind, const std::vector<int64_t>& named, int64_t count) {
    for (size_t n = 0; n < named.size() && count > 0; ++n) {
      checker.require(named[n] >= 0 && named[n] < count, [&] {
        return where + "the " + kind + " is " + std::to_string(named[n]) + ", must be from 0 to " +
               std::to_string(count - 1);
      });
      checker.require(std::find(named.begin(), named.begin() + static_cast<std::ptrdiff_t>(n), named[n]) ==
                          named.begin() + static_cast<std::ptrdiff_t>(n),
                      [&] { return where + kind + " " + std::to_string(named[n]) + " is selected twice"; });
    }
  };
  const auto count = static_cast<int64_t>(layers.size());
  check("", "layer", selection.layers, count);
  for (int64_t n : selected(selection.layers, count))
    if (n >= 0 && n < count) check("layers[" + std::to_string(n) + "]: ", "head", selection.heads, layers[n].q.size[1]);
}

std::vector<int64_t> selected(const std::vector<int64_t>& named, int64_t count) {
  if (!named.empty()) return named;
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// The keys are also passed as values: the output is not used.
ConstView<3> forward_lse(const RecordedAttention& layer, std::vector<Buffer>& memory) {
  const DType type = layer.q.dtype == DType::float64 ? DType::float64 : DType::float32;
  const Buffer out(std::max<int64_t>(layer.q.count() * size_of(layer.q.dtype), 1));
  View<3> lse(nullptr, type, {1, layer.q.size[1], layer.q.size[2]});
  memory.emplace_back(std::max<int64_t>(lse.count() * size_of(type), 1));
  lse.data = memory.back().data();
  attention(layer.q, layer.k, layer.k, View<4>(out.data(), layer.q.dtype, layer.q.size), lse, layer.options);
  return lse;
}

RecordedAttention head_of(const RecordedAttention& layer, int64_t head) {
  const auto slice = [](auto& view, int64_t at) {  // an axis of extent 1 is used for every head
    if (view.data && view.size[1] > 1)
      view.data = static_cast<const char*>(view.data) + at * view.stride[1] * size_of(view.dtype);
    view.size[1] = std::min<int64_t>(view.size[1], 1);
  };
  const auto one = [&](std::span<const float>& values) {
    if (!values.empty()) values = values.subspan(static_cast<size_t>(head), 1);
  };
  RecordedAttention part = layer;
  slice(part.k, head / (layer.q.size[1] / layer.k.size[1]));
  slice(part.q, head);
  slice(part.lse, head);
  slice(part.options.mask, head);
  slice(part.options.bias, head);
  slice(part.options.blocks.allowed, head);
  slice(part.options.blocks.offsets, head);
  one(part.options.alibi_slopes);
  one(part.options.sink);
  return part;
}

void for_each_row(std::string_view operation, const RecordedAttention& layer, int64_t index,
                  const std::vector<int64_t>& heads, const RowSink& sink) {
  const int64_t Lq = layer.q.size[2], Lk = layer.k.size[2], rows = std::min(kBlockRows, Lq);
  const DType dtype = layer.q.dtype == DType::float64 ? DType::float64 : DType::float32;
  const auto H = static_cast<int64_t>(heads.size());
  const int64_t head_bytes = rows * Lk * size_of(dtype);
  const Buffer block(H * head_bytes);
  std::vector<double> values(static_cast<size_t>(H * Lk));
  for (int64_t first = 0; first < Lq; first += rows) {
    const int64_t count = std::min(rows, Lq - first);
    for (int64_t h = 0; h < H; ++h) {
      const RecordedAttention part = head_of(layer, heads[h]);
      const View<4> weights(static_cast<char*>(block.data()) + h * head_bytes, dtype, {1, 1, count, Lk});
      attention_weights(part.q, part.k, part.lse, weights, first, 0, part.options);
    }
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t n = 0; n < H * Lk; ++n) {
        const char* element =
            static_cast<const char*>(block.data()) + n / Lk * head_bytes + (r * Lk + n % Lk) * size_of(dtype);
        const double value = detail::load_element(dtype, element);
        if (!is_weight(value))
          throw Error(operation, {"layers[" + std::to_string(index) + "], head " + std::to_string(heads[n / Lk]) +
                                  ": " + at_cell(first + r, n % Lk, value)});
        values[n] = std::min(value, 1.0);
      }
      sink(first + r, values.data());
    }
  }
}

std::vector<float> checked_weights(std::string_view operation, const void* data, DType dtype, int64_t count) {
  std::vector<float> weights(static_cast<size_t>(count));
  for (int64_t n = 0; n < count; ++n) {
    const double value = detail::load_element(dtype, static_cast<const char*>(data) + n * size_of(dtype));
    if (!is_weight(value))
      throw Error(operation, {"lse does not belong to q and k: a weight is " + std::to_string(value)});
    weights[n] = static_cast<float>(std::min(value, 1.0));
  }
  return weights;
}

std::vector<float> exact_window(std::string_view operation, const RecordedAttention& head, int64_t query,
                                int64_t queries, int64_t key, int64_t keys) {
  const DType dtype = head.q.dtype == DType::float64 ? DType::float64 : DType::float32;
  const Buffer memory(queries * keys * size_of(dtype));
  const View<4> cells(memory.data(), dtype, {1, 1, queries, keys});
  attention_weights(head.q, head.k, head.lse, cells, query, key, head.options);
  return checked_weights(operation, memory.data(), dtype, queries * keys);
}

Pooled::Pooled(int64_t Lq, int64_t Lk_, int64_t max_rows, int64_t max_columns)
    : Lk(Lk_), peaks(static_cast<size_t>(Lq)) {
  const auto ceiling = [](int64_t a, int64_t b) { return a / b + (a % b != 0); };
  row_group = ceiling(Lq, max_rows);
  column_group = ceiling(Lk, max_columns);
  rows = ceiling(Lq, row_group);
  columns = ceiling(Lk, column_group);
  cells.resize(static_cast<size_t>(rows * columns));
}

Pooled::Pooled(const ConstView<4>& weights, int64_t max_rows, int64_t max_columns)
    : Pooled(weights.size[2], weights.size[3], max_rows, max_columns) {
  std::vector<double> values(static_cast<size_t>(Lk));
  for (int64_t row = 0; row < weights.size[2]; ++row) {
    const float* data = static_cast<const float*>(weights.data) + row * weights.stride[2];
    for (int64_t column = 0; column < Lk; ++column)
      values[column] = std::min<double>(data[column * weights.stride[3]], 1);
    add_row(row, values.data());
  }
}

Pooled::Pooled(std::string_view operation, const RecordedAttention& layer, int64_t head, int64_t max_rows,
               int64_t max_columns)
    : Pooled(layer.q.size[2], layer.k.size[2], max_rows, max_columns) {
  for_each_row(operation, layer, 0, {head}, [this](int64_t row, const double* weights) { add_row(row, weights); });
}

void Pooled::add_row(int64_t row, const double* weights) {
  float* pooled = cells.data() + row / row_group * columns;
  for (int64_t column = 0; column < Lk; ++column) {
    float& cell = pooled[column / column_group];
    cell = std::max(cell, static_cast<float>(weights[column]));
    peaks[row] = std::max(peaks[row], weights[column]);
  }
}

}  // namespace attn::view
