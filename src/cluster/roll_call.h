// How long a rank waits for the others of its job, and which of them do not answer.
#pragma once

#include <mpi.h>

#include <functional>
#include <string>
#include <vector>

namespace attn::cluster {

/// All ranks of a job that wait for each other with a time limit. Once the limit of one has passed, all that wait tell
/// each other so: a rank that tells nothing hangs.
class RollCall {
 public:
  /// All ranks of `all` call it. `limit` in seconds; 0: no limit.
  RollCall(MPI_Comm all, double limit);
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  bool has_limit() const { return limit_ > 0; }
  /// True once wait() has thrown: nobody should wait any more.
  bool gave_up() const { return !reason_.empty(); }
  /// Returns once `complete` gives true. Throws RankHangs, with their numbers, if that takes longer than the limit.
  void wait(const std::function<bool()>& complete);

 private:
  /// Notes which ranks have said that they wait; true if any has.
  bool listen();
  [[noreturn]] void give_up();

  MPI_Comm all_ = MPI_COMM_NULL;
  double limit_;
  int rank_ = 0;
  std::vector<bool> waits_;  // [ranks]
  std::string reason_;       // that wait() throws from then on
};

}  // namespace attn::cluster
