// The tree that fixes the order of sums, whatever the order in which their terms come.
#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "cluster/tree.h"
#include "support/arrays.h"

namespace attn::test {
namespace {

using cluster::FixedTree;
using cluster::TreeNode;
using Text = std::optional<std::string>;

void join(std::string& left, const std::string& right) { left = "(" + left + right + ")"; }

std::string letter(int64_t n) { return std::string(1, static_cast<char>('a' + n)); }

/// The leaves in an order; those of `absent` have no value.
std::string sum_of(int64_t leaves, const std::vector<int64_t>& order, const std::string& absent = "") {
  FixedTree<std::string> tree(leaves);
  for (const int64_t n : order) {
    const bool is_there = absent.find(letter(n)) == std::string::npos;
    tree.add({0, n}, is_there ? Text(letter(n)) : std::nullopt, join);
  }
  return tree.take_root().value_or("");
}

TEST(ClusterTree, CombinesInOrder) {
  const char* expected[] = {"", "a", "(ab)", "((ab)c)", "((ab)(cd))", "(((ab)(cd))e)", "(((ab)(cd))(ef))"};
  Random random(3);
  for (int64_t leaves = 0; leaves <= 6; ++leaves)
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<int64_t> order(leaves);
      std::iota(order.begin(), order.end(), 0);
      for (int64_t n = leaves - 1; n > 0; --n) std::swap(order[n], order[random.below(n + 1)]);
      EXPECT_EQ(sum_of(leaves, order), expected[leaves]);
    }
}

TEST(ClusterTree, LeavesWithoutValueAddNothing) {
  EXPECT_EQ(sum_of(4, {3, 1, 0, 2}, "b"), "(a(cd))");
  EXPECT_EQ(sum_of(4, {3, 1, 0, 2}, "abd"), "c");
  EXPECT_EQ(sum_of(5, {4, 3, 2, 1, 0}, "abcd"), "e");
  EXPECT_EQ(sum_of(3, {0, 1, 2}, "abc"), "");
}

/// What a rank has computed of its leaves goes on as few nodes, which another tree takes.
TEST(ClusterTree, NodesOfConsecutiveLeavesAreFew) {
  FixedTree<std::string> all(64);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{17, 64}, {0, 17}}) {
    FixedTree<std::string> part(64);
    for (int64_t n = begin; n < end; ++n) part.add({0, n}, letter(n), join);
    EXPECT_LE(part.waiting().size(), begin == 0 ? 2U : 5U);
    for (auto& [place, value] : part.waiting()) all.add(place, std::move(value), join);
  }
  std::vector<int64_t> order(64);
  std::iota(order.begin(), order.end(), 0);
  EXPECT_EQ(all.take_root(), sum_of(64, order));
}

}  // namespace
}  // namespace attn::test
