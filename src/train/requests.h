// How the first rank asks the others for one tensor after the other, so that none needs memory for all.
#pragma once

#include <optional>
#include <vector>

#include "attn/cluster.h"

namespace attn::train {

/// All ranks make one, and meet in each call.
class Requests {
 public:
  explicit Requests(cluster::Communicator& ranks) : ranks_(ranks) {}

  /// On rank 0: asks for tensor n,
  void ask(int64_t n) { say(n); }
  /// or says that it needs no more.
  void end() { say(kNone); }
  /// On the others: what rank 0 asks for, until it needs no more.
  std::optional<int64_t> next() {
    const int64_t n = say(0);
    return n == kNone ? std::nullopt : std::optional(n);
  }

 private:
  static constexpr int64_t kNone = -1;

  int64_t say(int64_t n) {
    std::vector<int64_t> all(ranks_.size());
    ranks_.all_gather(&n, sizeof n, all.data());
    return all[0];
  }

  cluster::Communicator& ranks_;
};

}  // namespace attn::train
