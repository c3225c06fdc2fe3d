// Decoding with a KV cache that ranks share.
#include <gtest/gtest.h>

#include "ranks.h"
#include "support/checks.h"
#include "support/errors.h"

namespace attn::test {
namespace {

struct State {
  Array<4> out;
  Array<3> lse;
};

constexpr int64_t kHeads = 4, kKeyHeads = 2, kTokens = 50, kDim = 8;

/// Tokens that rank r has: some ranks have none.
std::pair<int64_t, int64_t> tokens_of(int rank, int ranks) {
  return {kTokens * std::max(rank - 1, 0) / std::max(ranks - 1, 1),
          rank == 0 && ranks > 1 ? 0 : kTokens * rank / std::max(ranks - 1, 1)};
}

/// The state of `queries` new tokens over a cache of keys [begin, end).
State attend(const Array<4>& q, const Array<4>& k, const Array<4>& v, int64_t begin, int64_t end) {
  KVCache cache({.kv_heads = kKeyHeads, .head_dim = kDim, .dtype = DType::float64, .page_size = 4});
  const int64_t sequence = cache.add();
  cache.append(sequence, part_of(k.view(), 2, begin, end - begin), part_of(v.view(), 2, begin, end - begin));
  const int64_t n = q.size()[2], ids[] = {sequence}, starts[] = {0, n};
  State state = {Array<4>(DType::float64, q.size()), Array<3>(DType::float64, {1, kHeads, n})};
  cache.attend(ids, starts, q.view(), state.out.view(), state.lse.view(), {});
  return state;
}

TEST(ClusterMerge, IsAttentionToTheKeysOfAll) {
  for (int n = 1; n <= world().size(); ++n) {
    const auto ranks = first_ranks(n);
    if (!ranks) continue;
    for (const int64_t queries : {1, 3}) {
      Random random(8);
      Array<4> q(DType::float64, {1, kHeads, queries, kDim}), k(DType::float64, {1, kKeyHeads, kTokens, kDim}), v = k;
      for (Array<4>* x : {&q, &k, &v}) x->fill_normal(random);
      const State whole = attend(q, k, v, 0, kTokens);
      const auto [begin, end] = n == 1 ? std::pair<int64_t, int64_t>(0, kTokens) : tokens_of(ranks->rank(), n);
      State mine = attend(q, k, v, begin, end);
      cluster::merge(*ranks, mine.out.view(), mine.lse.view());
      EXPECT_TRUE(close_float64(mine.out.values(), whole.out.values())) << n << " ranks";
      EXPECT_TRUE(close_float64(mine.lse.values(), whole.lse.values())) << n << " ranks";
    }
  }
}

/// More ranks than rows, strides, and the same bits on all ranks.
TEST(ClusterMerge, GivesAllRanksTheSame) {
  Random random(9 + static_cast<uint64_t>(world().rank()));
  Array<4> out = Array<4>(DType::float32, {1, 3, 1, 5}).fill_normal(random);
  Array<3> lse = Array<3>(DType::float32, {1, 3, 1}).fill_normal(random);
  cluster::merge(world(), part_of(out.view(), 1, 0, 2), part_of(lse.view(), 1, 0, 2));
  const int64_t bytes = 2 * 5 * int64_t{sizeof(float)};
  std::vector<std::byte> all(bytes * world().size());
  world().all_gather(out.bytes().data(), bytes, all.data());
  for (int rank = 1; rank < world().size(); ++rank)
    EXPECT_TRUE(std::equal(all.begin(), all.begin() + bytes, all.begin() + rank * bytes)) << rank;
}

TEST(ClusterMerge, Errors) {
  Array<4> out(DType::float32, {1, 2, 1, 4}), half(DType::bfloat16, {1, 2, 1, 4});
  Array<3> lse(DType::float32, {1, 2, 1}), wide(DType::float32, {1, 3, 1});
  EXPECT_NE(error_of([&] { cluster::merge(world(), half.view(), lse.view()); }).find("out is bfloat16 and lse float32"),
            std::string::npos);
  EXPECT_NE(error_of([&] { cluster::merge(world(), out.view(), wide.view()); }).find("lse has size [1, 3, 1]"),
            std::string::npos);
  if (world().size() == 1) return;
  Array<4> other(DType::float32, {1, 2, 1, world().rank() == 0 ? 4 : 5});
  EXPECT_NE(error_of([&] { cluster::merge(world(), other.view(), lse.view()); }).find("differ in the shapes"),
            std::string::npos);
}

}  // namespace
}  // namespace attn::test
