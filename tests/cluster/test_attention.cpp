// Attention over ranks: that of one machine, with every option, on 1 to 7 ranks, and the same bits on all of them.
#include <gtest/gtest.h>

#include "ranks.h"
#include "sharded_case.h"
#include "support/errors.h"

namespace attn::test {
namespace {

/// Numbers of ranks up to all.
std::vector<int> sizes() {
  std::vector<int> all;
  for (const int n : {1, 2, 3, 4, 7})
    if (n <= world().size()) all.push_back(n);
  return all;
}

/// The same Case on every number of ranks: near the oracle, and with the bits of one rank.
void check_case(const Case& c, int kind, int64_t chunk, cluster::Schedule schedule) {
  const auto self = first_ranks(1);
  std::optional<Results> one;
  for (const int n : sizes()) {
    const auto ranks = first_ranks(n);
    if (!ranks) continue;
    const Results r = run_sharded(*ranks, c, kind, chunk, schedule);
    const std::string what = c.name() + " on " + std::to_string(n) + " ranks, kind " + std::to_string(kind) +
                             ", chunks of " + std::to_string(chunk);
    if (!one && n == 1) one = r;
    if (ranks->rank() == 0 && n == 1) Oracle(c).expect(r, what);
    if (one) {
      EXPECT_TRUE(same_results(*one, r)) << what;
    }
  }
}

TEST(ClusterAttention, IsThatOfOneMachineWithEveryOption) {
  const DType dtypes[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16};
  const std::vector<Dims> dims = small_dims();
  const int64_t each = 4 * static_cast<int64_t>(dims.size()), grid = feature_count() * each;
  sample(grid, {.quick = grid / 40, .normal = grid / 4, .seconds = 60}, [&](int64_t n) {
    const Case c = make_case(features()[n / each], dims[n % each / 4], dtypes[n % 4], 9100 + n);
    const int64_t chunks[] = {16, 24, 50};
    check_case(c, static_cast<int>(n % 3), chunks[n / 3 % 3],
               n % 2 == 0 ? cluster::Schedule::ring : cluster::Schedule::gather);
  });
}

/// Ranks that exchange tokens for heads, in groups of any size: near the oracle, with the bits of the ring if no two
/// ranks share the query heads of a key head, but for the gradient of a bias of all heads.
void check_heads(const Case& c, int kind, int64_t chunk) {
  std::optional<Oracle> oracle;
  if (world().rank() == 0) oracle.emplace(c);
  for (const int n : sizes()) {
    const auto ranks = first_ranks(n);
    if (!ranks) continue;
    const Results ring = run_sharded(*ranks, c, kind, chunk, cluster::Schedule::ring);
    for (int group = 2; group <= n; ++group) {
      if (n % group != 0) continue;
      Results r = run_sharded(*ranks, c, kind, chunk, cluster::Schedule::heads(group == n ? 0 : group));
      const std::string what = c.name() + " on " + std::to_string(n) + " ranks in groups of " + std::to_string(group) +
                               ", kind " + std::to_string(kind) + ", chunks of " + std::to_string(chunk);
      if (oracle) oracle->expect(r, what);
      if (c.dims.Hk % group != 0) continue;
      if (c.bias.given() && c.bias.size()[1] == 1) r.dbias = ring.dbias;
      EXPECT_TRUE(same_results(ring, r)) << what;
    }
  }
}

TEST(ClusterAttention, HeadsForTokensWithEveryOption) {
  const DType dtypes[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16};
  const std::vector<Dims> dims = small_dims();
  const int64_t each = 4 * static_cast<int64_t>(dims.size()), grid = feature_count() * each;
  sample(grid, {.quick = grid / 40, .normal = grid / 8, .seconds = 60}, [&](int64_t n) {
    const Case c = make_case(features()[n / each], dims[n % each / 4], dtypes[n % 4], 9700 + n);
    const int64_t chunks[] = {16, 24, 50};
    check_heads(c, static_cast<int>(n % 3), chunks[n / 3 % 3]);
  });
}

}  // namespace
}  // namespace attn::test
