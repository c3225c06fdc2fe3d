// What attention is, said without an oracle: symmetries and independences that hold for any input.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "support/checks.h"

namespace attn::test {
namespace {

constexpr Dims kSquare = {.B = 1, .H = 2, .Hk = 2, .Lq = 40, .Lk = 40, .D = 16, .Dv = 16};

/// A copy whose rows (axis 2) come in another order.
Array<4> permuted(const Array<4>& array, const std::vector<int64_t>& order) {
  Array<4> result(array.dtype(), array.size());
  const Shape<4>& size = array.size();
  for (int64_t b = 0; b < size[0]; ++b)
    for (int64_t h = 0; h < size[1]; ++h)
      for (int64_t i = 0; i < size[2]; ++i)
        for (int64_t d = 0; d < size[3]; ++d) result.set({b, h, i, d}, array.get({b, h, order[i], d}));
  return result;
}

std::vector<int64_t> random_order(int64_t count, uint64_t seed) {
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  Random random(seed);
  for (int64_t n = count - 1; n > 0; --n) std::swap(order[n], order[random.below(n + 1)]);
  return order;
}

/// The same projection for queries and keys makes the scores symmetric: P_ij exp(lse_i) = P_ji exp(lse_j).
TEST(Properties, EqualQueriesAndKeysGiveSymmetricScores) {
  for_each_isa([](const std::string& isa) {
    Case c = make_case(feature_named("none"), kSquare, DType::float64, 91);
    c.k = c.q;
    const Results r = run(c, false);
    Array<4> weights(DType::float64, {1, 2, 40, 40});
    attention_weights(c.q.view(), c.k.view(), r.lse.view(), weights.view(), 0, 0);
    Values scores, transposed;
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < 40; ++i)
        for (int64_t j = 0; j < 40; ++j) {
          scores.push_back(std::log(weights.get({0, h, i, j})) + r.lse.get({0, h, i}));
          transposed.push_back(std::log(weights.get({0, h, j, i})) + r.lse.get({0, h, j}));
        }
    EXPECT_TRUE(close_float64(scores, transposed)) << isa;
  });
}

/// Attention sees a set: permuting the tokens permutes the output, permuting the keys alone leaves it.
TEST(Properties, TokensAreASet) {
  for_each_isa([](const std::string& isa) {
    const Case c = make_case(feature_named("none"), kSquare, DType::float64, 92);
    const std::vector<int64_t> order = random_order(40, 93);
    const Array<4> out = run(c, false).out;
    Case keys = c;
    keys.k = permuted(c.k, order);
    keys.v = permuted(c.v, order);
    EXPECT_TRUE(close_float64(run(keys, false).out.values(), out.values())) << isa;
    Case all = keys;
    all.q = permuted(c.q, order);
    EXPECT_TRUE(close_float64(run(all, false).out.values(), permuted(out, order).values())) << isa;
  });
}

/// A causal row never depends on a later token: change the future, and no bit of the past changes.
TEST(Properties, TheFutureDoesNotMatter) {
  for_each_isa([](const std::string& isa) {
    for (DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      const Dims dims = {.H = 2, .Hk = 1, .Lq = 300, .Lk = 300, .D = 16, .Dv = 16};
      const Case c = make_case(feature_named("causal top_left"), dims, dtype, 94);
      const Results before = run(c, false);
      for (int64_t now : {0, 1, 47, 48, 63, 64, 255, 256, 298}) {
        Case changed = c;
        Random random(now, 1);
        for (Array<4>* rows : {&changed.q, &changed.k, &changed.v})
          for (int64_t h = 0; h < rows->size()[1]; ++h)
            for (int64_t i = now + 1; i < 300; ++i)
              for (int64_t d = 0; d < 16; ++d) rows->set({0, h, i, d}, 100 * random.normal());
        const Results after = run(changed, false);
        for (int64_t h = 0; h < 2; ++h)
          for (int64_t i = 0; i <= now; ++i)
            for (int64_t d = 0; d < 16; ++d)
              ASSERT_EQ(after.out.get({0, h, i, d}), before.out.get({0, h, i, d}))
                  << "row " << i << " of " << c.name() << " after " << now << " changed, on " << isa;
      }
    }
  });
}

/// Softmax does not see a constant: one bias for all keys changes lse by that much and the output not at all.
TEST(Properties, ConstantsCancel) {
  for_each_isa([](const std::string& isa) {
    Case c = make_case(feature_named("bias queries"), kSquare, DType::float64, 95);
    const Results shifted = run(c, false);
    const Array<4> bias = c.bias;
    c.bias = {};
    const Results plain = run(c, false);
    Values lse = plain.lse.values();
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < 40; ++i) lse[h * 40 + i] += bias.get({0, h, i, 0});
    EXPECT_TRUE(close_float64(shifted.out.values(), plain.out.values())) << isa;
    EXPECT_TRUE(close_float64(shifted.lse.values(), lse)) << isa;
  });
}

/// Outputs are averages: within the values' range, and equal values come out as they are.
TEST(Properties, OutputsAreAverages) {
  for_each_isa([](const std::string& isa) {
    for (const char* name : {"none", "causal top_left", "softcap", "alibi", "bias full"}) {
      Case c = make_case(feature_named(name), kSquare, DType::float64, 96);
      const Values values = c.v.values(), out = run(c, false).out.values();
      EXPECT_LE(*std::max_element(out.begin(), out.end()), *std::max_element(values.begin(), values.end()));
      EXPECT_GE(*std::min_element(out.begin(), out.end()), *std::min_element(values.begin(), values.end()));
      c.v.fill(0.75);
      EXPECT_TRUE(close_float64(run(c, false).out.values(), Values(out.size(), 0.75))) << name << " on " << isa;
    }
  });
}

/// The output is linear in the values, and so is dv in dout.
TEST(Properties, LinearInTheValues) {
  for_each_isa([](const std::string& isa) {
    const Case a = make_case(feature_named("everything"), kSquare, DType::float64, 97);
    Case b = a, sum = a;
    Random random(98);
    b.v.fill_normal(random);
    for (int64_t n = 0; n < sum.v.count(); ++n) sum.v.set(n, 2 * a.v.get(n) - b.v.get(n));
    const Values out_a = run(a, false).out.values(), out_b = run(b, false).out.values();
    Values expected;
    for (size_t n = 0; n < out_a.size(); ++n) expected.push_back(2 * out_a[n] - out_b[n]);
    EXPECT_TRUE(close_float64(run(sum, false).out.values(), expected)) << isa;
  });
}

/// Gradients of the scores sum to dlse in every row, since a constant on all scores moves lse alone.
TEST(Properties, ScoreGradientsSumToDlse) {
  for_each_isa([](const std::string& isa) {
    const Case c = make_case(feature_named("bias full"), kSquare, DType::float64, 99);
    const Results r = run(c);
    Values sums;
    for (int64_t row = 0; row < c.dlse.count(); ++row) {
      double sum = 0;
      for (int64_t j = 0; j < 40; ++j) sum += r.dbias.get(row * 40 + j);
      sums.push_back(sum);
    }
    EXPECT_TRUE(close_float64(sums, c.dlse.values())) << isa;
  });
}

/// One mask, said in several ways, is one mask.
TEST(Properties, WaysToSayTheSameMask) {
  for_each_isa([](const std::string& isa) {
    const Case causal = make_case(feature_named("causal top_left"), kSquare, DType::float64, 100);
    const Results expected = run(causal);
    std::vector<Case> ways(5, causal);
    for (Case& way : ways) way.scalars.causal = false;
    ways[0].feature = "mask";
    ways[0].mask = Array<4>(DType::boolean, {1, 1, 40, 40});
    ways[1].feature = "bias";
    ways[1].bias = Array<4>(DType::float64, {1, 1, 40, 40});
    ways[2].feature = "blocks";
    ways[2].blocks = Array<4>(DType::boolean, {1, 1, 40, 40});
    ways[2].scalars.blocks = {{}, 1, 1};
    ways[3].feature = "window";
    ways[3].scalars.window = {39, 0};
    ways[4].feature = "offset";
    ways[4].scalars.causal = true;
    ways[4].scalars.alignment = Alignment::offset;
    ways[4].offset = {0};
    for (int64_t i = 0; i < 40; ++i)
      for (int64_t j = 0; j < 40; ++j) {
        ways[0].mask.set({0, 0, i, j}, j <= i);
        ways[1].bias.set({0, 0, i, j}, j <= i ? 0 : -kInf);
        ways[2].blocks.set({0, 0, i, j}, j <= i);
      }
    for (const Case& way : ways) {
      const Results actual = run(way);
      EXPECT_TRUE(close_float64(actual.out.values(), expected.out.values())) << way.feature << " on " << isa;
      EXPECT_TRUE(close_float64(actual.dq.values(), expected.dq.values())) << way.feature << " on " << isa;
      EXPECT_TRUE(close_float64(actual.dk.values(), expected.dk.values())) << way.feature << " on " << isa;
      EXPECT_TRUE(close_float64(actual.dv.values(), expected.dv.values())) << way.feature << " on " << isa;
    }
  });
}

/// Packed sequences, documents and separate calls are one thing.
TEST(Properties, PackedIsSeparate) {
  for_each_isa([](const std::string& isa) {
    Case packed =
        make_case(feature_named("none"), {.H = 4, .Hk = 2, .Lq = 60, .Lk = 60, .D = 16, .Dv = 16}, DType::float32, 101);
    packed.scalars.causal = true;
    packed.cu_seqlens_q = packed.cu_seqlens_k = {0, 13, 13, 45, 60};
    const Results together = run(packed, false);
    for (int t = 0; t < 4; ++t) {
      const int64_t first = packed.cu_seqlens_q[t], count = packed.cu_seqlens_q[t + 1] - first;
      if (count == 0) continue;
      Array<4> out(DType::float32, {1, 4, count, 16});
      attention(part_of(packed.q.view(), 2, first, count), part_of(packed.k.view(), 2, first, count),
                part_of(packed.v.view(), 2, first, count), out.view(), {.causal = true});
      for (int64_t h = 0; h < 4; ++h)
        for (int64_t i = 0; i < count; ++i)
          for (int64_t d = 0; d < 16; ++d)
            ASSERT_EQ(out.get({0, h, i, d}), together.out.get({0, h, first + i, d}))
                << "sequence " << t << " on " << isa;
    }
  });
}

}  // namespace
}  // namespace attn::test
