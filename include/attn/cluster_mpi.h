// cluster_mpi: ranks of MPI 3.1. The library attn::cluster is compiled with the MPI that it is used with.
//
// ```cpp
// #include "attn/cluster_mpi.h"
// int main(int argc, char** argv) {  // mpirun -n 4 ./program
//   const attn::cluster::MpiSession session(argc, argv);
//   attn::cluster::Communicator& ranks = session.world();
//   const auto placement = attn::cluster::Placement::zigzag(4096, ranks.size());
//   const int64_t n = placement.tokens(ranks.rank());  // of this rank
//   attn::Tensor<float, 4> q({1, 8, n, 64}), k({1, 2, n, 64}), v({1, 2, n, 64}), out({1, 8, n, 64});
//   attn::cluster::attention(ranks, placement, q, k, v, out, {}, {.causal = true});
// }
// ```
#pragma once

#include "attn/cluster.h"

#ifndef OMPI_SKIP_MPICXX  // the C++ interfaces of these MPIs, which MPI 3 has no more
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <memory>
#include <stdexcept>

#pragma GCC visibility push(default)
namespace attn::cluster {

/// Thrown by a call that has waited for longer than its limit: "ranks have waited for 60 s, which is the limit:
/// rank 3 hangs, or computes for longer". The job must end then: messages are still under way, and every later call
/// throws the same.
class RankHangs : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// MPI from its start to its end. One thread of a process may call MPI at a time, as attention() does.
class MpiSession {
 public:
  /// Starts MPI, unless the program has. Throws Error if MPI has no support for threads that do not call it.
  /// `wait_limit` is that of mpi_ranks().
  MpiSession(int& argc, char**& argv, double wait_limit = 0);
  /// Ends MPI if the constructor has started it. While an exception passes, it aborts the job instead, so that no rank
  /// waits for one that is gone.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  /// All ranks of the job.
  Communicator& world() const { return *world_; }

 private:
  bool started_ = false;
  int exceptions_ = 0;
  std::unique_ptr<Communicator> world_;
};

/// The ranks of a communicator, of which a duplicate is used, so that messages of others do not mix in. All of its
/// ranks call it. A call that waits for other ranks for longer than `wait_limit` seconds (0: no limit) throws
/// RankHangs.
std::unique_ptr<Communicator> mpi_ranks(MPI_Comm communicator, double wait_limit = 0);

}  // namespace attn::cluster
#pragma GCC visibility pop
