// Placements, by hand and as properties.
#include <gtest/gtest.h>

#include "attn/cluster.h"
#include "support/arrays.h"
#include "support/errors.h"

namespace attn::test {
namespace {

using cluster::Placement;
using cluster::TokenRange;

TEST(ClusterPlacement, ByHand) {
  const Placement contiguous = Placement::contiguous(100, 3, 20);
  EXPECT_EQ(contiguous.ranges(0), (std::vector<TokenRange>{{0, 20}}));
  EXPECT_EQ(contiguous.ranges(2), (std::vector<TokenRange>{{60, 100}}));
  const Placement zigzag = Placement::zigzag(80, 2, 20);
  EXPECT_EQ(zigzag.ranges(0), (std::vector<TokenRange>{{0, 20}, {60, 80}}));
  EXPECT_EQ(zigzag.ranges(1), (std::vector<TokenRange>{{20, 60}}));
  const Placement striped = Placement::striped(80, 2, 10);
  EXPECT_EQ(striped.ranges(0), (std::vector<TokenRange>{{0, 10}, {20, 30}, {40, 50}, {60, 70}}));
  const int64_t tokens[] = {5, 0, 12};
  const Placement shards = Placement::of_shards(tokens, 8);
  EXPECT_EQ(shards.ranges(1), std::vector<TokenRange>());
  EXPECT_EQ(shards.ranges(2), (std::vector<TokenRange>{{5, 17}}));
  EXPECT_EQ(shards.chunks(), 3);
  const std::vector<TokenRange> own[] = {{{10, 15}, {0, 5}}, {{5, 10}}};
  const Placement ranges = Placement::of_ranges(own, 3);
  EXPECT_EQ(ranges.ranges(0), (std::vector<TokenRange>{{0, 5}, {10, 15}}));
  EXPECT_EQ(ranges.chunk(0), (TokenRange{10, 13}));
  EXPECT_EQ(ranges.chunk(4), (TokenRange{5, 8}));
}

/// Every token is somewhere, once; a shard that is taken and put back is where it was.
TEST(ClusterPlacement, HasEveryTokenOnce) {
  for (const int64_t tokens : {0, 1, 7, 64, 1000})
    for (const int ranks : {1, 2, 3, 5, 16})
      for (const int64_t chunk : {0, 1, 16})
        for (const Placement& placement :
             {Placement::contiguous(tokens, ranks, chunk), Placement::zigzag(tokens, ranks, chunk),
              Placement::striped(tokens, ranks, chunk)}) {
          Array<4> whole(DType::float32, {1, 2, tokens, 3}), again(DType::float32, {1, 2, tokens, 3});
          for (int64_t n = 0; n < whole.count(); ++n) whole.set(n, static_cast<double>(n + 1));
          int64_t sum = 0;
          for (int rank = 0; rank < ranks; ++rank) {
            sum += placement.tokens(rank);
            Array<4> shard(DType::float32, {1, 2, placement.tokens(rank), 3});
            cluster::take_shard(placement, rank, whole.view(), shard.view());
            cluster::put_shard(placement, rank, shard.view(), again.view());
          }
          EXPECT_EQ(sum, tokens);
          EXPECT_TRUE(same_bits(whole, again)) << tokens << " tokens on " << ranks << " ranks";
        }
}

/// The order of chunks is that of fewer ranks: only the cuts differ.
TEST(ClusterPlacement, OrderDoesNotDependOnRanks) {
  for (const auto make : {Placement::contiguous, Placement::zigzag, Placement::striped}) {
    const Placement one = make(1000, 1, 16), many = make(1000, 7, 16);
    ASSERT_EQ(one.chunks(), many.chunks());
    for (int64_t place = 0; place < one.chunks(); ++place) EXPECT_EQ(one.chunk(place), many.chunk(place));
  }
}

/// With a causal mask, the pairs that a rank computes are as many as those of any other, but with contiguous shards.
TEST(ClusterPlacement, GroupsOfRanksAreJoined) {
  const Placement of_six = Placement::zigzag(103, 6, 4);
  EXPECT_EQ(of_six.joined(1).first_place(5), of_six.first_place(5));
  const Placement joined = of_six.joined(3);
  ASSERT_EQ(joined.ranks(), 2);
  EXPECT_EQ(joined.first_place(1), of_six.first_place(3));
  EXPECT_EQ(joined.tokens(0), of_six.tokens(0) + of_six.tokens(1) + of_six.tokens(2));
  for (int64_t place = 0; place < of_six.chunks(); ++place) EXPECT_EQ(joined.chunk(place), of_six.chunk(place));
  EXPECT_NE(error_of([&] { (void)of_six.joined(4); }).find("group is 4, must divide the 6 ranks"), std::string::npos);
}

TEST(ClusterPlacement, ZigzagIsEvenUnderACausalMask) {
  const auto most_of_mean = [](const Placement& placement) {
    const cluster::ClusterPlan plan = cluster::explain(placement, {.D = 8, .Dv = 8}, {.causal = true});
    double sum = 0, most = 0;
    for (const double flops : plan.flops) sum += flops, most = std::max(most, flops);
    return most * placement.ranks() / sum;
  };
  EXPECT_LT(most_of_mean(Placement::zigzag(2048, 4, 64)), 1.01);
  EXPECT_GT(most_of_mean(Placement::contiguous(2048, 4, 64)), 1.7);
}

TEST(ClusterPlacement, BadInput) {
  EXPECT_EQ(error_of([] { Placement::zigzag(-1, 0, -1); }),
            "[Placement::zigzag] there are -1 tokens, must be 0 or more; there are 0 ranks, must be at least 1; chunk "
            "is -1, must be 0 or more tokens");
  const std::vector<TokenRange> gap[] = {{{0, 4}}, {{5, 8}}};
  EXPECT_EQ(
      error_of([&] { Placement::of_ranges(gap); }),
      "[Placement::of_ranges] the range 5 to 8 must begin at 4, where the one before it ends, and not be reversed");
  EXPECT_EQ(error_of([] { Placement::of_shards({}); }), "[Placement::of_shards] there must be at least one rank");
  Array<4> whole(DType::float32, {1, 1, 10, 2}), shard(DType::float32, {1, 1, 4, 2});
  const Placement placement = Placement::contiguous(10, 2, 5);
  EXPECT_EQ(error_of([&] { cluster::take_shard(placement, 2, whole.view(), shard.view()); }),
            "[take_shard] rank is 2, must be one of the 2");
  EXPECT_EQ(error_of([&] { cluster::take_shard(placement, 1, whole.view(), shard.view()); }),
            "[take_shard] the whole has size [1, 1, 10, 2] and the shard [1, 1, 4, 2], must have one type and 10 and 5 "
            "tokens");
}

}  // namespace
}  // namespace attn::test
