// A call in which ranks exchange tokens for heads.
#pragma once

#include <functional>
#include <optional>

#include "cluster/head_exchange.h"
#include "cluster/sharded.h"

namespace attn::cluster {

/// A call on the heads of this rank, with the tokens of its group: one call for each piece of the heads.
class CallByHeads {
 public:
  /// `rows` has the mask and the bias of the rank; `agreed` is what all ranks want.
  CallByHeads(Communicator& ranks, const Whole& whole, const AttentionOptions& rows, int size, uint32_t agreed);

  HeadGroups& groups() { return groups_; }
  /// [B, own heads of the axis, rows of the group, width], of the query or key axis.
  Array array(HeadAxis axis, DType dtype, int64_t width) const;
  /// The gradient of the bias, with the heads and rows of this call, as zeros.
  Array bias_gradient(DType dtype) const;
  Array sink_gradient(DType dtype) const;

  void each_piece(const std::function<void(const PieceOfWhole&)>& visit);

 private:
  ConstView<4> own_pairs(const ConstView<4>& pairs, bool one_row, std::optional<ToHeads>& exchange);

  const Whole& whole_;
  HeadGroups groups_;
  AttentionOptions options_;
  const bool one_bias_row_;
  std::optional<ToHeads> masks_, biases_;
  Array mask_, bias_;
};

}  // namespace attn::cluster
