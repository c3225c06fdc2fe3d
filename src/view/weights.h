// What pictures are made of: rows of weights of recorded attention, and matrices pooled to the size of a picture.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "attn/view.h"
#include "record/recorded.h"

namespace attn::view {

/// Records a reason for every number of the selection that does not exist in `layers` or occurs twice.
void check_selection(Checker& checker, const std::vector<RecordedAttention>& layers, const Selection& selection);

/// The numbers that a selection of `count` layers or heads means: `named`, or all where it is empty.
std::vector<int64_t> selected(const std::vector<int64_t>& named, int64_t count);
/// Records a reason unless `scale` is one of the two.
void check_scale(Checker& checker, Scale scale);

/// Records a reason unless these are weights of one head, [1, 1, Lq, Lk] in float32.
void check_weights(Checker& checker, const ConstView<4>& weights);

/// True in [0, 1] and slightly above, for rounding; false for NaN.
bool is_weight(double value);

/// The lse that attention() computes for q, k and options, in a new element of `memory`.
ConstView<3> forward_lse(const RecordedAttention& layer, std::vector<Buffer>& memory);

/// One head of a layer as a layer with one head: its part of q, k and lse, and of the options that have a value a head.
RecordedAttention head_of(const RecordedAttention& layer, int64_t head);

using RowSink = std::function<void(int64_t row, const double* weights)>;
/// Calls `sink` with [heads, Lk] weights, at most 1, for every row in order; a few rows of these heads are in memory at
/// a time. Throws Error with this operation if a number is not a weight; `index` is the layer's number in the message.
void for_each_row(std::string_view operation, const RecordedAttention& layer, int64_t index,
                  const std::vector<int64_t>& heads, const RowSink& sink);

/// Computed weights as float32, at most 1. Throws Error with this operation if a number is not a weight, as it happens
/// where lse does not belong to q and k.
std::vector<float> checked_weights(std::string_view operation, const void* data, DType dtype, int64_t count);

/// A rectangle [queries, keys] of P of a layer with one head, as head_of() returns it.
std::vector<float> exact_window(std::string_view operation, const RecordedAttention& head, int64_t query,
                                int64_t queries, int64_t key, int64_t keys);

/// A matrix whose cells are the largest of row_group x column_group weights.
struct Pooled {
  int64_t rows = 0, columns = 0, row_group = 1, column_group = 1;
  int64_t Lk = 0;
  std::vector<float> cells = {};   // [rows, columns]
  std::vector<double> peaks = {};  // [Lq], the largest weight of each row

  Pooled(int64_t Lq, int64_t Lk, int64_t max_rows, int64_t max_columns);
  /// Of one head's weights, checked by check_weights().
  Pooled(const ConstView<4>& weights, int64_t max_rows, int64_t max_columns);
  /// Of one head of layers[0], checked by check_recorded().
  Pooled(std::string_view operation, const RecordedAttention& layer, int64_t head, int64_t max_rows,
         int64_t max_columns);
  void add_row(int64_t row, const double* weights);
  float at(int64_t row, int64_t column) const { return cells[row * columns + column]; }
  bool is_pooled() const { return row_group > 1 || column_group > 1; }
};

}  // namespace attn::view
