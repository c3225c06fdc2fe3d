// merge(): the one rule that joins states of attention over disjoint keys.
#include <gtest/gtest.h>

#include "support/checks.h"

namespace attn::test {
namespace {

struct State {
  Array<4> out;
  Array<3> lse;
};

State random_state(DType dtype, const Shape<4>& size, uint64_t seed) {
  Random random(seed);
  State s = {Array<4>(dtype, size).fill_normal(random), Array<3>(lse_type(dtype), {size[0], size[1], size[2]})};
  s.lse.fill_normal(random, 3);
  return s;
}

State empty_state(DType dtype, const Shape<4>& size) {
  State s = {Array<4>(dtype, size), Array<3>(lse_type(dtype), {size[0], size[1], size[2]})};
  s.lse.fill(-kInf);
  return s;
}

State merged(State a, const State& b) {
  merge(a.out.view(), a.lse.view(), b.out.view(), b.lse.view());
  return a;
}

testing::AssertionResult same_states(const State& a, const State& b) {
  if (!same_bits(a.out, b.out)) return testing::AssertionFailure() << "out differs";
  if (!same_bits(a.lse, b.lse)) return testing::AssertionFailure() << "lse differs";
  return testing::AssertionSuccess();
}

constexpr Shape<4> kSize = {2, 3, 37, 21};

TEST(Merge, IsItsDefinition) {
  for_each_isa([](const std::string& isa) {
    const State a = random_state(DType::float64, kSize, 1), b = random_state(DType::float64, kSize, 2);
    const State both = merged(a, b);
    Values out, lse;
    for (int64_t row = 0; row < a.lse.count(); ++row) {
      const double wa = std::exp(a.lse.get(row)), wb = std::exp(b.lse.get(row));
      lse.push_back(std::log(wa + wb));
      for (int64_t d = 0; d < kSize[3]; ++d)
        out.push_back((wa * a.out.get(row * kSize[3] + d) + wb * b.out.get(row * kSize[3] + d)) / (wa + wb));
    }
    EXPECT_TRUE(close_float64(both.out.values(), out)) << isa;
    EXPECT_TRUE(close_float64(both.lse.values(), lse)) << isa;
  });
}

TEST(Merge, TheEmptyStateIsTheIdentity) {
  for_each_isa([](const std::string& isa) {
    for (DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
      const State a = random_state(dtype, kSize, 3), nothing = empty_state(dtype, kSize);
      EXPECT_TRUE(same_states(merged(a, nothing), a)) << name_of(dtype) << " on " << isa;
      EXPECT_TRUE(same_states(merged(nothing, a), a)) << name_of(dtype) << " on " << isa;
      EXPECT_TRUE(same_states(merged(nothing, nothing), nothing)) << name_of(dtype) << " on " << isa;
    }
  });
}

/// What an empty state holds in out does not matter where it comes from an uninitialised buffer.
TEST(Merge, AnEmptyStateIsNotRead) {
  for_each_isa([](const std::string& isa) {
    const State a = random_state(DType::float32, kSize, 4);
    State poison = empty_state(DType::float32, kSize);
    poison.out.fill_with_nan();
    EXPECT_TRUE(same_states(merged(a, poison), a)) << isa;
    EXPECT_TRUE(same_states(merged(poison, a), a)) << isa;
  });
}

TEST(Merge, CommutesAndAssociates) {
  for_each_isa([](const std::string& isa) {
    const State a = random_state(DType::float64, kSize, 5), b = random_state(DType::float64, kSize, 6),
                c = random_state(DType::float64, kSize, 7);
    const State ab = merged(a, b), ba = merged(b, a);
    EXPECT_TRUE(close_float64(ab.out.values(), ba.out.values())) << isa;
    EXPECT_TRUE(close_float64(ab.lse.values(), ba.lse.values())) << isa;
    const State left = merged(merged(a, b), c), right = merged(a, merged(b, c));
    EXPECT_TRUE(close_float64(left.out.values(), right.out.values())) << isa;
    EXPECT_TRUE(close_float64(left.lse.values(), right.lse.values())) << isa;
  });
}

TEST(Merge, FarApartAndInfinite) {
  for_each_isa([](const std::string& isa) {
    const Shape<4> one = {1, 1, 1, 1};
    const auto state = [&](double out, double lse) {
      State s = empty_state(DType::float32, one);
      s.out.set(0, out);
      s.lse.set(0, lse);
      return s;
    };
    EXPECT_TRUE(same_states(merged(state(1, 1e30), state(2, -1e30)), state(1, 1e30))) << isa;
    EXPECT_TRUE(same_states(merged(state(1, 200), state(2, 0)), state(1, 200))) << isa;
    EXPECT_EQ(merged(state(1, 0), state(3, 0)).out.get(0), 2) << isa;
    EXPECT_EQ(merged(state(1, kInf), state(2, 5)).out.get(0), 1) << isa;
    EXPECT_TRUE(std::isnan(merged(state(kNaN, 0), state(2, 0)).out.get(0))) << isa;
    EXPECT_TRUE(std::isnan(merged(state(1, kNaN), state(2, 0)).out.get(0))) << isa;
  });
}

/// Keys in parts of any size, merged, are the whole: the rule that split keys, caches and rings rest on.
TEST(Merge, PartsMakeTheWhole) {
  for_each_isa([](const std::string& isa) {
    for (int64_t parts : {2, 3, 7})
      for (const char* name : {"none", "mask rare", "softcap"}) {
        Case c = make_case(feature_named(name), {.B = 2, .H = 4, .Hk = 2, .Lq = 9, .Lk = 70, .D = 16, .Dv = 16},
                           DType::float32, parts);
        const Oracle oracle(c, false);
        Results sum = empty_results(c, c.dtype, false);
        sum.out.fill(0);
        sum.lse.fill(-kInf);
        for (int64_t part = 0; part < parts; ++part) {
          const int64_t first = 70 * part / parts, count = 70 * (part + 1) / parts - first;
          Results r = empty_results(c, c.dtype, false);
          AttentionOptions options = c.options();
          if (options.mask) options.mask = part_of(options.mask, 3, first, count);
          attention(c.q.view(), part_of(c.k.view(), 2, first, count), part_of(c.v.view(), 2, first, count),
                    r.out.view(), r.lse.view(), options);
          merge(sum.out.view(), sum.lse.view(), r.out.view(), r.lse.view());
        }
        oracle.expect(sum, isa);
      }
  });
}

/// Strided states: heads next to each other, and lse with gaps.
TEST(Merge, AnyStrides) {
  for_each_isa([](const std::string& isa) {
    const State a = random_state(DType::float32, kSize, 8), b = random_state(DType::float32, kSize, 9);
    const State expected = merged(a, b);
    Array<4> out(DType::float32, {2, 37, 3, 21});  // [B, Lq, H, Dv]
    Array<4> lse(DType::float32, {2, 3, 37, 2});   // every other element
    const View<4> out_view(out.view().data, DType::float32, kSize, {37 * 63, 21, 63, 1});
    const View<3> lse_view(lse.view().data, DType::float32, {2, 3, 37}, {3 * 74, 74, 2});
    for (int64_t n = 0; n < a.lse.count(); ++n) lse.set(2 * n, a.lse.get(n));
    const auto place = [&](int64_t n) {
      const int64_t d = n % 21, i = n / 21 % 37, h = n / 21 / 37 % 3, batch = n / 21 / 37 / 3;
      return out.index({batch, i, h, d});
    };
    for (int64_t n = 0; n < a.out.count(); ++n) out.set(place(n), a.out.get(n));
    merge(out_view, lse_view, b.out.view(), b.lse.view());
    for (int64_t n = 0; n < a.out.count(); ++n) ASSERT_EQ(out.get(place(n)), expected.out.get(n)) << isa;
    for (int64_t n = 0; n < a.lse.count(); ++n) ASSERT_EQ(lse.get(2 * n), expected.lse.get(n)) << isa;
  });
}

}  // namespace
}  // namespace attn::test
