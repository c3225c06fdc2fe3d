// Selected lists against plain loops in float64: every score, a full sort, and the first of it.
#include "attn/attention_selection.h"

#include <gtest/gtest.h>

#include <numeric>

#include "support/checks.h"
#include "support/errors.h"

namespace attn::test {
namespace {

using Lists = std::vector<std::vector<int64_t>>;  // of all rows

Lists rows_of(const BlockLists& lists) {
  Lists rows;
  const auto [B, H, count] = lists.offsets.size();
  for (int64_t head = 0; head < B * H; ++head)
    for (int64_t n = head * count; n < (head + 1) * count - 1; ++n)
      rows.emplace_back(lists.indices.begin() + lists.offsets[n], lists.indices.begin() + lists.offsets[n + 1]);
  return rows;
}

/// The numbers of the `count` largest scores: a stable sort leaves equal ones in order.
std::vector<int64_t> largest(const Values& scores, int64_t count) {
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
  order.resize(std::min<size_t>(order.size(), count));
  std::erase_if(order, [&](int64_t n) { return scores[n] == -kInf; });
  std::sort(order.begin(), order.end());
  return order;
}

double mean_of(const Array<4>& x, int64_t b, int64_t h, int64_t first, int64_t block, int64_t d) {
  double sum = 0;
  int64_t count = 0;
  for (int64_t i = first; i < std::min(first + block, x.size()[2]); ++i, ++count) sum += x.get({b, h, i, d});
  return sum / static_cast<double>(count);
}

/// MoBA with plain loops. Blocks of the queries' own positions score +infinity, later ones -infinity.
Lists reference_blocks(const Case& c, const BlockSelection& s) {
  const Dims& d = c.dims;
  Lists rows;
  for (int64_t b = 0; b < d.B; ++b)
    for (int64_t h = 0; h < d.H; ++h)
      for (int64_t first = 0; first < d.Lq; first += s.query_block) {
        Values scores;
        int64_t own = 0;
        for (int64_t key = 0; key < d.Lk; key += s.key_block) {
          double score = 0;
          for (int64_t f = 0; f < d.D; ++f)
            score += mean_of(c.q, b, h, first, s.query_block, f) * mean_of(c.k, b, h * d.Hk / d.H, key, s.key_block, f);
          const int64_t last = std::min(first + s.query_block, d.Lq) - 1 + d.Lk - d.Lq, place = first + d.Lk - d.Lq;
          if (s.causal && key > last) score = -kInf;
          else if (s.causal && key + s.key_block > place) score = kInf, ++own;
          scores.push_back(score);
        }
        rows.push_back(largest(scores, std::max(s.count, own)));
      }
  return rows;
}

Case call(const Dims& dims, DType dtype) { return make_case(feature_named("none"), dims, dtype, 800); }

TEST(Selection, BlocksOfTheLargestScores) {
  const Dims dims[] = {{.B = 2, .H = 4, .Hk = 2, .Lq = 90, .Lk = 90, .D = 8, .Dv = 8},
                       {.B = 1, .H = 2, .Hk = 1, .Lq = 3, .Lk = 100, .D = 5, .Dv = 8}};
  for (const Dims& d : dims)
    for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16})
      for (const bool causal : {false, true})
        for (const BlockSelection s : {BlockSelection{1, 16, 3, causal}, BlockSelection{16, 8, 4, causal},
                                       BlockSelection{7, 5, 2, causal}, BlockSelection{4, 16, 100, causal}}) {
          const Case c = call(d, dtype);
          EXPECT_EQ(rows_of(select_blocks(c.q.view(), c.k.view(), s)), reference_blocks(c, s))
              << c.name() << " blocks of " << s.query_block << " and " << s.key_block << (causal ? " causal" : "");
        }
}

/// Small whole numbers have exact means and many equal scores.
TEST(Selection, TiesGoToTheLowerBlock) {
  Case c = call({.B = 1, .H = 2, .Hk = 2, .Lq = 64, .Lk = 64, .D = 2, .Dv = 2}, DType::float32);
  Random random(3);
  for (Array<4>* x : {&c.q, &c.k})
    for (int64_t n = 0; n < x->count(); ++n) x->set(n, static_cast<double>(random.below(3) - 1));
  const BlockSelection s{.query_block = 2, .key_block = 2, .count = 5, .causal = true};
  EXPECT_EQ(rows_of(select_blocks(c.q.view(), c.k.view(), s)), reference_blocks(c, s));
  c.q.fill(0);  // all scores are equal
  const Lists rows = rows_of(select_blocks(c.q.view(), c.k.view(), s));
  EXPECT_EQ(rows[20], (std::vector<int64_t>{0, 1, 2, 3, 20}));
}

/// The operator over the lists is the operator over the mask that they mean.
TEST(Selection, FeedsTheOperator) {
  Case c = call({.B = 1, .H = 4, .Hk = 2, .Lq = 70, .Lk = 70, .D = 8, .Dv = 8}, DType::float64);
  c.scalars.causal = true;
  const BlockSelection s{.query_block = 1, .key_block = 8, .count = 3, .causal = true};
  const BlockLists lists = select_blocks(c.q.view(), c.k.view(), s);
  c.mask = Array<4>(DType::boolean, {1, 4, 70, 70});
  const Lists rows = reference_blocks(c, s);
  for (int64_t row = 0; row < 4 * 70; ++row)
    for (const int64_t m : rows[row])
      for (int64_t j = 8 * m; j < std::min<int64_t>(8 * m + 8, 70); ++j) c.mask.set(row * 70 + j, 1);
  Array<4> out(DType::float64, c.dout.size());
  attention(c.q.view(), c.k.view(), c.v.view(), out.view(), {.causal = true, .blocks = lists});
  EXPECT_TRUE(close_float64(out.values(), run(c, false).out.values()));
}

TEST(Selection, KeysOfTheLargestScores) {
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16})
    for (const bool causal : {false, true}) {
      Array<4> scores(dtype, {2, 3, 5, 40});
      Random random(4);
      for (int64_t n = 0; n < scores.count(); ++n)  // many are equal
        scores.set(n, random.below(4) == 0 ? -kInf : static_cast<double>(random.below(6)));
      Lists expected;
      for (int64_t row = 0; row < 2 * 3 * 5; ++row) {
        Values values;
        for (int64_t j = 0; j < 40; ++j)
          values.push_back(causal && j > row % 5 + 35 ? -kInf : scores.get(row * 40 + j));
        expected.push_back(largest(values, 7));
      }
      const BlockLists lists = select_keys(scores.view(), 7, causal);
      EXPECT_EQ(rows_of(lists), expected) << name_of(dtype) << (causal ? " causal" : "");
      EXPECT_EQ(lists.query_block * lists.key_block, 1);
    }
}

/// A score that is no number is not selected, nor is a block with such a key.
TEST(Selection, LeavesOutWhatIsNoNumber) {
  Array<4> scores(DType::float32, {1, 1, 1, 4});
  const double values[] = {kNaN, 1, -kInf, kInf};
  for (int64_t j = 0; j < 4; ++j) scores.set(j, values[j]);
  EXPECT_EQ(rows_of(select_keys(scores.view(), 3)), (Lists{{1, 3}}));
  Case c = call({.B = 1, .H = 1, .Hk = 1, .Lq = 2, .Lk = 12, .D = 2, .Dv = 2}, DType::float32);
  c.k.set({0, 0, 5, 1}, kNaN);
  const BlockSelection s{.query_block = 2, .key_block = 4, .count = 3, .causal = false};
  EXPECT_EQ(rows_of(select_blocks(c.q.view(), c.k.view(), s)), (Lists{{0, 2}}));
}

TEST(Selection, RefusesWhatItCannotSelect) {
  const Tensor<float, 4> q({2, 3, 9, 4}), k({1, 2, 8, 5});
  const Tensor<int32_t, 4> ids({1, 1, 3, 2});
  EXPECT_EQ(
      error_of([&] { select_blocks(q, k, {.query_block = 0, .key_block = -1, .count = 0, .causal = true}); }),
      "[select_blocks] q and k must have the same batch B and head width D: q is [2, 3, 9, 4], k is [1, 2, 8, 5]; "
      "the heads of k must divide those of q: q is [2, 3, 9, 4], k is [1, 2, 8, 5]; query_block is 0, must be at "
      "least 1; key_block is -1, must be at least 1; count is 0, must be at least 1; Lq is 9, must be at most Lk "
      "= 8 with causal");
  EXPECT_EQ(
      error_of([&] { select_keys(ids, 0, true); }),
      "[select_keys] scores is int32, must be a floating type; count is 0, must be at least 1; Lq is 3, must be at "
      "most Lk = 2 with causal");
  EXPECT_EQ(error_of([&] {
              select_keys(ConstView<4>(nullptr, DType::float32, {1, 1, 2, 2}), 1);
            }),
            "[select_keys] scores must have data");
}

}  // namespace
}  // namespace attn::test
