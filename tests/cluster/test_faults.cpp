// No test by itself: failed_rank.py kills or stops a rank of this job.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

#include "ranks.h"
#include "support/arrays.h"

namespace attn::test {
namespace {

TEST(ClusterFaults, DISABLED_WorksUntilItIsKilled) {
  std::printf("rank %d has pid %d\n", world().rank(), static_cast<int>(getpid()));
  std::fflush(stdout);
  const auto placement = cluster::Placement::zigzag(256, world().size(), 16);
  const int64_t n = placement.tokens(world().rank());
  Array<4> x(DType::float32, {1, 2, n, 16}), out = x;
  for (;;) cluster::attention(world(), placement, x.view(), x.view(), x.view(), out.view(), {}, {});
}

}  // namespace
}  // namespace attn::test
