// A loss that is a function of statistics of rows, as the backward's walks take it: what it wants of each weight.
//
//   g_ij = dL / dP_ij = sum of, each times the gradient by the statistic:
//     sum 1                     entropy - ln P_ij - 1            participation - 2 P_ij / (sum_j P_ij^2)^2
//     maximum [j is its key]    distance |p_i - j|               masses [j in the set]
//   delta_i = sum_j P_ij g_ij, which needs no pass over the keys: it follows from the statistics
#pragma once

#include "attention/walk.h"
#include "attn/attention_statistics.h"

namespace attn::detail {

class StatisticsLoss {
 public:
  StatisticsLoss(const Problem& p, const ConstView<3>& lse, const AttentionStatistics& statistics,
                 const RowStatisticsGradients& drows);

  double delta(int64_t b, int64_t h, int64_t i) const;

  // Terms of a panel: acc [row_terms()][width], the first two of which are the kernel's.
  int64_t row_terms() const { return kBands + bands_ + labels_; }
  static const void* entropy(const void* terms) { return terms; }
  static const void* square(const TileKernels& tk, const void* terms, int width) {
    return static_cast<const char*>(terms) + kSquare * width * tk.acc_bytes;
  }
  /// Fills them, and the deltas of the panel, acc [width], less what is in g of all pairs of the row alike.
  void load(const TileKernels& tk, const Sequence& s, const Panel& panel, void* terms, void* delta) const;
  /// What else g is made of, acc [count][width]; false if there is nothing, and nothing written.
  bool fill(const TileKernels& tk, const Sequence& s, const Tile& tile, const void* terms, void* other) const;

 private:
  enum Term : int64_t { kEntropy, kSquare, kDistance, kSameToken, kMaximum, kBands };

  /// A view's number of a row, and 0 of what is not there.
  double value(const ConstView<3>& view, int64_t b, int64_t h, int64_t i) const;
  double constant(int64_t b, int64_t h, int64_t i) const;
  template <class T>
  void fill(const Sequence& s, const Tile& tile, const T* terms, T* other) const;
  template <class T>
  void fill_row(const Sequence& s, const Tile& tile, int r, const T* terms, T* other) const;

  const Problem& p_;
  const ConstView<3> lse_;
  const AttentionStatistics& statistics_;
  const RowStatisticsGradients& drows_;
  int64_t bands_ = 0, labels_ = 0;
};

}  // namespace attn::detail
