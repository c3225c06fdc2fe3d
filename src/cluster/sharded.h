// The boundary of the calls: what is checked on each rank, before all ranks agree.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/call.h"
#include "core/checker.h"

namespace attn::cluster {

/// Shards of a rank.
struct ForwardArrays {
  ConstView<4> q, k, v;
  View<4> out;
  View<3> lse;
};
struct BackwardArrays {
  ConstView<4> q, k, v, out, dout;
  ConstView<3> lse, dlse;
  AttentionGradients to;
};

/// The calls, once all ranks have agreed on what they want. `rows` has the mask and the bias of the rank, and the sink.
void forward_over(Communicator& ranks, const Whole& whole, const AttentionOptions& rows, const ForwardArrays& arrays,
                  Schedule::Keys keys);
void backward_over(Communicator& ranks, const Whole& whole, const AttentionOptions& rows, const BackwardArrays& arrays,
                   Schedule::Keys keys, uint32_t agreed);
/// The same among groups that exchange tokens for heads.
void forward_by_heads(Communicator& ranks, const Whole& whole, const AttentionOptions& rows,
                      const ForwardArrays& arrays, Schedule schedule, uint32_t agreed);
void backward_by_heads(Communicator& ranks, const Whole& whole, const AttentionOptions& rows,
                       const BackwardArrays& arrays, Schedule schedule, uint32_t agreed);

class ShardedCall {
 public:
  ShardedCall(const char* operation, Communicator& ranks, const Sharding& sharding, const ConstView<4>& q,
              const ConstView<4>& k, const ConstView<4>& v, const AttentionOptions& options);

  void check_forward(const View<4>& out, const View<3>& lse);
  void check_backward(const ConstView<4>& out, const ConstView<3>& lse, const ConstView<4>& dout,
                      const AttentionGradients& gradients, const ConstView<3>& dlse);
  /// Returns what all ranks want, once none has found anything wrong; throws the same Error on all otherwise.
  uint32_t agreed(Schedule schedule, Wants wants);
  const Whole& whole() const { return *whole_; }

 private:
  const char* operation_;
  Communicator& ranks_;
  const AttentionOptions& options_;
  AttentionOptions of_rows_;  // mask, bias and sink
  Checker checker_;
  detail::Problem own_;  // the arrays of the rank, without options
  std::unique_ptr<Whole> whole_;
};

}  // namespace attn::cluster
