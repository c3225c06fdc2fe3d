// The layouts of papers: the operator over their lists is the dense operator over a boolean mask, which the tests write
// as the papers' formulas.
#include "attn/attention_layouts.h"

#include <gtest/gtest.h>

#include "support/checks.h"
#include "support/errors.h"

namespace attn::test {
namespace {

using Formula = std::function<bool(int64_t n, int64_t m)>;  // of numbers of blocks

/// Lists of `length` tokens give what the mask of the formula gives, for causal calls too.
void expect_formula(const std::string& name, const BlockLists& lists, int64_t length, int64_t block,
                    const std::vector<Formula>& heads) {
  const auto H = static_cast<int64_t>(heads.size());
  Case c = make_case(feature_named("none"), {.B = 1, .H = H, .Hk = 1, .Lq = length, .Lk = length, .D = 4, .Dv = 3},
                     DType::float64, 700);
  c.mask = Array<4>(DType::boolean, {1, H, length, length});
  for (int64_t h = 0; h < H; ++h)
    for (int64_t i = 0; i < length; ++i)
      for (int64_t j = 0; j < length; ++j) c.mask.set({0, h, i, j}, heads[h](i / block, j / block));
  for (const bool causal : {false, true}) {
    c.scalars.causal = causal;
    const Results expected = run(c);
    Results actual = empty_results(c, DType::float64, true);
    AttentionOptions options = c.options();
    options.mask = {};
    options.blocks = lists;
    attention(c.q.view(), c.k.view(), c.v.view(), actual.out.view(), actual.lse.view(), options);
    attention_backward(c.q.view(), c.k.view(), c.v.view(), actual.out.view(), actual.lse.view(), c.dout.view(),
                       gradients_of(actual), options, c.dlse.view());
    const std::string where = name + (causal ? ", causal" : "") + ", blocks of " + std::to_string(block);
    EXPECT_TRUE(close_float64(actual.lse.values(), expected.lse.values())) << where;
    EXPECT_TRUE(close_float64(actual.out.values(), expected.out.values())) << where;
    EXPECT_TRUE(close_float64(actual.dq.values(), expected.dq.values())) << where;
    EXPECT_TRUE(close_float64(actual.dk.values(), expected.dk.values())) << where;
    EXPECT_TRUE(close_float64(actual.dv.values(), expected.dv.values())) << where;
  }
}

/// The listed blocks of a row.
std::vector<int64_t> row_of(const BlockLists& lists, int64_t h, int64_t n) {
  return {lists.indices.begin() + lists.offsets(int64_t{0}, h, n),
          lists.indices.begin() + lists.offsets(int64_t{0}, h, n + 1)};
}

constexpr int64_t kLength = 45;
constexpr int64_t kBlocks[] = {1, 4, 100};

TEST(Layouts, AreTheFormulasOfTheirPapers) {
  const std::vector<int64_t> global = {2, 0, 2};
  struct Row {
    const char* name;
    std::function<BlockLists(int64_t block)> lists;
    Formula formula;
  };
  const Row rows[] = {
      {"local",
       [](int64_t block) {
         return layouts::local(kLength, block, {2, 1});
       },
       [](int64_t n, int64_t m) { return n - 2 <= m && m <= n + 1; }},
      {"local to the left",
       [](int64_t block) {
         return layouts::local(kLength, block, {-1, 0});
       },
       [](int64_t n, int64_t m) { return m <= n; }},
      {"dilated", [](int64_t block) { return layouts::dilated(kLength, block, 2, 3); },
       [](int64_t n, int64_t m) { return (m - n) % 3 == 0 && std::abs(m - n) <= 6; }},
      {"strided", [](int64_t block) { return layouts::strided(kLength, block, 5); },
       [](int64_t n, int64_t m) { return std::abs(n - m) <= 5 || (n - m) % 5 == 0; }},
      {"fixed", [](int64_t block) { return layouts::fixed(kLength, block, 4, 2); },
       [](int64_t n, int64_t m) { return n / 4 == m / 4 || m % 4 >= 2; }},
      {"fixed without a summary", [](int64_t block) { return layouts::fixed(kLength, block, 3, 0); },
       [](int64_t n, int64_t m) { return n / 3 == m / 3; }},
      {"block_diagonal", [](int64_t block) { return layouts::block_diagonal(kLength, block); },
       [](int64_t n, int64_t m) { return n == m; }},
      {"prefix", [](int64_t block) { return layouts::prefix(kLength, block, 3); },
       [](int64_t n, int64_t m) { return m < 3 || m <= n; }},
  };
  for (const Row& row : rows)
    for (const int64_t block : kBlocks)
      expect_formula(row.name, row.lists(block), kLength, block, {row.formula, row.formula});
  for (const int64_t block : {1, 4})  // with blocks of 100 there is no block 2
    expect_formula("longformer", layouts::longformer(kLength, block, 1, global), kLength, block,
                   {[](int64_t n, int64_t m) { return std::abs(n - m) <= 1 || n == 0 || n == 2 || m == 0 || m == 2; }});
}

/// Strides and windows beyond the sequence do not overflow.
TEST(Layouts, OfTheLargestNumbers) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  const Formula all = [](int64_t, int64_t) { return true; }, same = [](int64_t n, int64_t m) { return n == m; };
  expect_formula("local", layouts::local(kLength, 4, {kLargest, kLargest}), kLength, 4, {all});
  expect_formula("dilated", layouts::dilated(kLength, 4, kLargest, kLargest), kLength, 4, {same});
  expect_formula("strided", layouts::strided(kLength, 4, kLargest), kLength, 4, {all});
  expect_formula("fixed", layouts::fixed(kLength, 4, kLargest, kLargest), kLength, 4, {all});
  expect_formula("prefix", layouts::prefix(kLength, 4, kLargest), kLength, 4, {all});
  expect_formula("bigbird", layouts::bigbird(kLength, 4, {.side = kLargest, .random = kLargest}), kLength, 4, {all});
  expect_formula("block_diagonal", layouts::block_diagonal(kLength, kLargest), kLength, kLargest, {same});
  EXPECT_EQ(layouts::strided(0, 4, 2).offsets.count(), 1);
}

/// The random blocks as the header describes them: of the blocks that are not listed, by Floyd's algorithm.
TEST(Layouts, BigBirdIsItsFormula) {
  for (const int64_t block : {1, 4}) {
    const layouts::BigBirdOptions options{.side = 1, .global = 2, .random = 3, .seed = 5, .heads = 2};
    const int64_t blocks = (kLength + block - 1) / block;
    std::vector<Formula> heads;
    for (int64_t h = 0; h < 2; ++h) {
      std::vector<std::vector<bool>> allowed(blocks, std::vector<bool>(blocks));
      for (int64_t n = 0; n < blocks; ++n) {
        std::vector<int64_t> others;
        for (int64_t m = 0; m < blocks; ++m) {
          allowed[n][m] = std::abs(n - m) <= 1 || n < 2 || m < 2;
          if (!allowed[n][m]) others.push_back(m);
        }
        Random random(5, (static_cast<uint64_t>(h) << 40) + static_cast<uint64_t>(n));
        const auto count = static_cast<int64_t>(others.size());
        for (int64_t last = std::max<int64_t>(count - 3, 0); last < count; ++last) {
          const int64_t drawn = others[random.below(last + 1)];
          allowed[n][allowed[n][drawn] ? others[last] : drawn] = true;
        }
      }
      heads.emplace_back([allowed](int64_t n, int64_t m) { return bool{allowed[n][m]}; });
    }
    expect_formula("bigbird", layouts::bigbird(kLength, block, options), kLength, block, heads);
  }
}

/// Each of the blocks outside of the window and the global ones is drawn about as often as the others.
TEST(Layouts, BigBirdDrawsEvenly) {
  constexpr int64_t kSeeds = 4000;
  std::vector<int64_t> drawn(12);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto row =
        row_of(layouts::bigbird(12, 1, {.side = 1, .global = 1, .random = 2, .seed = seed, .heads = 1}), 0, 5);
    EXPECT_EQ(row.size(), 6);
    for (const int64_t m : row) ++drawn[m];
  }
  for (const int64_t m : {0, 4, 5, 6}) EXPECT_EQ(drawn[m], kSeeds);
  for (const int64_t m : {1, 2, 3, 7, 8, 9, 10, 11})
    EXPECT_LE(std::abs(static_cast<double>(drawn[m]) / kSeeds - 0.25), rate_bound(0.25, kSeeds)) << m;
}

TEST(Layouts, BigBirdIsAFunctionOfSeedAndHead) {
  const auto lists = [](uint64_t seed) {
    return layouts::bigbird(400, 4, {.side = 1, .global = 1, .random = 3, .seed = seed, .heads = 2});
  };
  const BlockLists one = lists(1), again = lists(1), other = lists(2);
  EXPECT_TRUE(std::equal(one.indices.begin(), one.indices.end(), again.indices.begin(), again.indices.end()));
  EXPECT_NE(row_of(one, 0, 50), row_of(other, 0, 50));
  EXPECT_NE(row_of(one, 0, 50), row_of(one, 1, 50));
  EXPECT_NE(row_of(one, 0, 50), row_of(one, 0, 51));
}

/// The two heads of a strided layout, apart.
TEST(Layouts, ByHead) {
  std::vector<BlockLists> heads;
  heads.push_back(layouts::local(kLength, 4, {3, 3}));
  heads.push_back(layouts::dilated(kLength, 4, kLength, 3));
  expect_formula("by_head", layouts::by_head(heads), kLength, 4,
                 {[](int64_t n, int64_t m) { return std::abs(n - m) <= 3; },
                  [](int64_t n, int64_t m) { return (n - m) % 3 == 0; }});
}

TEST(Layouts, RefuseWhatIsNoLayout) {
  const std::vector<int64_t> global = {0, 12, -1};
  const std::pair<std::function<void()>, std::string> cases[] = {
      {[] {
         layouts::local(-1, 0, {-2, -3});
       },
       "[layouts::local] length is -1, must be at least 0; block is 0, must be at least 1; window.left is -2, must be "
       "at "
       "least -1; window.right is -3, must be at least -1"},
      {[] { layouts::dilated(8, 1, -1, 0); },
       "[layouts::dilated] side is -1, must be at least 0; dilation is 0, must be at least 1"},
      {[] { layouts::strided(8, 1, 0); }, "[layouts::strided] stride is 0, must be at least 1"},
      {[] { layouts::fixed(8, 1, 4, 5); }, "[layouts::fixed] summary is 5, must be at most 4"},
      {[] { layouts::fixed(8, 1, 0, -1); },
       "[layouts::fixed] stride is 0, must be at least 1; summary is -1, must be at least 0"},
      {[&] { layouts::longformer(kLength, 4, 1, global); },
       "[layouts::longformer] global[1] is 12, must be at most 11; global[2] is -1, must be at least 0"},
      {[] { layouts::bigbird(8, 1, {.side = -1, .global = -2, .random = -3, .seed = 0, .heads = 0}); },
       "[layouts::bigbird] side is -1, must be at least 0; global is -2, must be at least 0; random is -3, must be at "
       "least 0; heads is 0, must be at least 1"},
      {[] { layouts::block_diagonal(8, 0); }, "[layouts::block_diagonal] block is 0, must be at least 1"},
      {[] { layouts::prefix(8, 1, -1); }, "[layouts::prefix] prefix is -1, must be at least 0"},
      {[] { layouts::by_head({}); }, "[layouts::by_head] heads has 0 layouts, must have at least 1"},
      {[] {
         const BlockLists heads[] = {layouts::block_diagonal(8, 2), layouts::block_diagonal(8, 4)};
         layouts::by_head(heads);
       },
       "[layouts::by_head] heads[1] has blocks of 4 x 4 and offsets [1, 1, 3], must be as heads[0]: 2 x 2 and [1, 1, "
       "5]"},
  };
  for (const auto& [call, message] : cases) EXPECT_EQ(error_of(call), message);
}

}  // namespace
}  // namespace attn::test
