// Gradients that are sums over the queries of all ranks, or over the keys: those of biases and sinks.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "cluster/call.h"

namespace attn::cluster {

/// The sum of one small array for each chunk of queries, in the order of the placement, on all ranks.
class QuerySums {
 public:
  QuerySums(const Placement& queries, std::vector<int64_t> shape, DType dtype)
      : queries_(queries), shape_(std::move(shape)), dtype_(dtype), own_(queries.chunks()) {}

  /// The array of a chunk of this rank; it may be changed afterwards by the sum.
  void add(int64_t place, const Array& x);
  /// A node over chunks of this rank.
  void add_node(TreeNode node, const Array& x);
  /// All ranks call it. The array has its values even where a rank has no queries.
  Array of_all(Communicator& ranks);

 private:
  const Placement& queries_;
  const std::vector<int64_t> shape_;
  const DType dtype_;
  FixedTree<Array> own_;
};

/// dbias of a rank, from those of pairs of chunks.
class BiasGradient {
 public:
  /// one_row: the bias has one row for the queries of all ranks.
  BiasGradient(const Whole& whole, const RankChunks& queries, const View<4>& to, bool one_row, DType dtype, int rank);

  /// Where a pair writes its gradient: in place, or in an array that becomes `own`. `part` is the pair's bias.
  View<4> target(int64_t i, int64_t j, const ConstView<4>& part, std::optional<Array>& own) const;
  /// The array of a pair, in the order of chunks of queries; none where nothing is visible.
  void add(int64_t i, int64_t j, std::optional<Array> own);
  /// After all pairs of a chunk of keys.
  void end_keys(int64_t j);
  /// All ranks call it.
  void write(Communicator& ranks);

 private:
  bool for_all_keys() const { return to_.size[3] == 1 && whole_.sharding().keys.tokens() != 1; }

  const Whole& whole_;
  const RankChunks& queries_;
  const View<4> to_;
  const bool one_row_;
  const DType dtype_;
  std::vector<FixedTree<Array>> of_queries_;  // one row a query, one column: sums over keys
  FixedTree<Array> of_keys_;                  // one row: those of one chunk of keys, over queries of the rank
  std::map<TreeNode, Array> nodes_;           // and of all chunks of keys: [B, H, 1, Lk], or one column a chunk
};

}  // namespace attn::cluster
