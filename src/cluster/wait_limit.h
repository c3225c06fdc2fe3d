// A time limit for ranks that wait for others, and which of the others hang.
#pragma once

#include <mpi.h>

#include <functional>
#include <string>
#include <vector>

namespace attn::cluster {

/// The time limit of all ranks of a job. When it has passed for one rank, every rank that waits sends the others a
/// message. A rank that sends none hangs, or computes for longer than the limit.
class WaitLimit {
 public:
  /// All ranks of `all` call it. `limit` in seconds; 0: no limit.
  WaitLimit(MPI_Comm all, double limit);
  ~WaitLimit();
  WaitLimit(const WaitLimit&) = delete;
  WaitLimit& operator=(const WaitLimit&) = delete;

  bool is_set() const { return limit_ > 0; }
  /// True after wait() has thrown; every later wait() throws the same.
  bool has_passed() const { return !reason_.empty(); }
  /// Returns once `complete` gives true; of a limit that is set. Throws RankHangs, with the numbers of the ranks that
  /// hang, if that takes longer than the limit.
  void wait(const std::function<bool()>& complete);

 private:
  /// Receives the messages of ranks that wait; true if any rank has sent one.
  bool receive();
  /// Sends the message to the others, waits for theirs, and throws.
  [[noreturn]] void throw_rank_hangs();

  MPI_Comm all_ = MPI_COMM_NULL;
  double limit_;
  int rank_ = 0;
  std::vector<bool> waits_;  // [ranks], those whose message has come
  std::string reason_;       // of RankHangs; empty until the limit has passed
};

}  // namespace attn::cluster
