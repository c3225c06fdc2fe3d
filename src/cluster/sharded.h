// The boundary of the calls: what is checked on each rank, before all ranks agree.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/call.h"
#include "core/checker.h"

namespace attn::cluster {

class ShardedCall {
 public:
  ShardedCall(const char* operation, Communicator& ranks, const Sharding& sharding, const ConstView<4>& q,
              const ConstView<4>& k, const ConstView<4>& v, const AttentionOptions& options);

  void check_forward(const View<4>& out, const View<3>& lse);
  void check_backward(const ConstView<4>& out, const ConstView<3>& lse, const ConstView<4>& dout,
                      const AttentionGradients& gradients, const ConstView<3>& dlse);
  /// Returns what all ranks want, once none has found anything wrong; throws the same Error on all otherwise.
  uint32_t agreed(Schedule schedule, Wants wants = {});
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
