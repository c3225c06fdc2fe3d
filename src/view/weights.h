// What the pictures are made of: checked layers, rows of weights, and matrices pooled to a size that can be seen.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "attn/view.h"
#include "core/checker.h"

namespace attn::view {

/// Every layer must be what attention_weights() takes, for one text, and all have the same numbers of queries and keys:
/// these, where they are named.
void check_layers(Checker& checker, const std::vector<Layer>& layers, int64_t queries = -1, int64_t keys = -1);

/// What is named must exist in `layers`, once.
void check_selection(Checker& checker, const std::vector<Layer>& layers, const Selection& selection);

/// The layers, or the heads, that a selection means where there are `count` of them.
std::vector<int64_t> selected(const std::vector<int64_t>& named, int64_t count);
/// One of the two scales.
void check_scale(Checker& checker, Scale scale);

/// One head's weights as the pictures of one head take them.
void check_weights(Checker& checker, const ConstView<4>& weights);

/// In [0, 1] but for rounding; not NaN.
bool is_weight(double value);

/// The lse that attention() gives for q, k and options; it lives in `memory`.
ConstView<3> forward_lse(const Layer& layer, std::vector<Buffer>& memory);

/// One head of a layer as a layer of its own: its part of q, k and lse, and of what the options hold for each head.
Layer head_of(const Layer& layer, int64_t head);

using RowSink = std::function<void(int64_t row, const double* weights)>;
/// Hands over [heads, Lk] weights, at most 1, for every row in order, with a few rows of these heads in memory at a
/// time. Throws Error under the name `operation` for what is no weight; `index` names the layer.
void for_each_row(std::string_view operation, const Layer& layer, int64_t index, const std::vector<int64_t>& heads,
                  const RowSink& sink);

/// Weights as attention gives them, of its type, as float32, at most 1. Throws Error, under the name `operation`, for
/// what is no weight: lse is another's.
std::vector<float> checked_weights(std::string_view operation, const void* data, DType dtype, int64_t count);

/// A rectangle of P of one head, as head_of() makes it: [queries, keys].
std::vector<float> exact_window(std::string_view operation, const Layer& head, int64_t query, int64_t queries,
                                int64_t key, int64_t keys);

/// A matrix whose cells are the largest of row_group x column_group weights.
struct Pooled {
  int64_t rows = 0, columns = 0, row_group = 1, column_group = 1;
  int64_t Lk = 0;
  std::vector<float> cells = {};   // [rows, columns]
  std::vector<double> peaks = {};  // [Lq], the largest weight of each row

  Pooled(int64_t Lq, int64_t Lk, int64_t max_rows, int64_t max_columns);
  /// Of one head's weights, checked by check_weights().
  Pooled(const ConstView<4>& weights, int64_t max_rows, int64_t max_columns);
  /// Of one head of layers[0], checked by check_layers().
  Pooled(std::string_view operation, const Layer& layer, int64_t head, int64_t max_rows, int64_t max_columns);
  void add_row(int64_t row, const double* weights);
  float at(int64_t row, int64_t column) const { return cells[row * columns + column]; }
  bool is_pooled() const { return row_group > 1 || column_group > 1; }
};

}  // namespace attn::view
