// Runs the tests on every rank: mpirun -n 7 test_cluster. One rank prints; the exit status of the job is that of the
// rank that fails.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "attn/cluster_mpi.h"
#include "ranks.h"

namespace attn::test {
namespace {

const cluster::MpiSession* session = nullptr;

}  // namespace

cluster::Communicator& world() { return session->world(); }

/// 0: MPI itself waits.
double wait_limit() {
  const char* seconds = std::getenv("ATTN_TEST_WAIT_LIMIT");
  return seconds ? std::atof(seconds) : 0;
}

std::unique_ptr<cluster::Communicator> first_ranks(int n) {
  const int rank = world().rank();
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank < n ? 0 : MPI_UNDEFINED, rank, &part);
  if (part == MPI_COMM_NULL) return nullptr;
  std::unique_ptr<cluster::Communicator> ranks = cluster::mpi_ranks(part, wait_limit());
  MPI_Comm_free(&part);
  return ranks;
}

}  // namespace attn::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const attn::cluster::MpiSession session(argc, argv, attn::test::wait_limit());
  attn::test::session = &session;
  attn::set_thread_count(1);
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (session.world().rank() != 0) delete listeners.Release(listeners.default_result_printer());
  const int failed = RUN_ALL_TESTS();
  std::vector<int> all(session.world().size());
  session.world().all_gather(&failed, sizeof failed, all.data());
  int result = testing::UnitTest::GetInstance()->test_to_run_count() > 0 ? 0 : 1;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != 0 && session.world().rank() == 0) std::fprintf(stderr, "rank %zu failed\n", rank);
    result |= all[rank];
  }
  return result;
}
