// The numeric bar: the float32 and 16-bit rules on a random grid, tails, zero sizes and extreme scores.
#include <gtest/gtest.h>

#include "support/checks.h"

namespace attn::test {
namespace {

const Feature& random_feature(Random& random) { return features()[random.below(feature_count())]; }

/// Random calls from the grid of shapes and options, each with its own seed. One in 16 may do all of the work, counted
/// in multiplications, the rest an eighth of it.
void check_grid(int64_t grid, const Share& share, uint64_t first_seed, DType dtype,
                const std::vector<double>& q_scales) {
  const auto work = static_cast<double>(by_effort(1 << 19, 1 << 22, 1 << 23));
  sample(grid, share, [&](int64_t number) {
    const uint64_t seed = first_seed + number;
    Random random(seed, 1);
    const Dims dims = random_dims(random, number % 16 == 0 ? work : work / 8);
    const double q_scale = q_scales[random.below(static_cast<int64_t>(q_scales.size()))];
    Oracle(make_case(random_feature(random), dims, dtype, seed, q_scale)).expect_on_every_isa();
  });
}

TEST(OracleFp32, Grid) {
  check_grid(20'000, {.quick = 32, .normal = 500, .seconds = 120}, 1'000'000, DType::float32, {1, 10, 50});
}

TEST(LowPrecision, Bfloat16) {
  check_grid(5000, {.quick = 20, .normal = 250, .seconds = 60}, 2'000'000, DType::bfloat16, {1, 4});
}

TEST(LowPrecision, Float16) {
  check_grid(5000, {.quick = 20, .normal = 250, .seconds = 60}, 3'000'000, DType::float16, {1, 4});
}

// ----------------------------------------------------------------------------------------------------- tails and zeros

void check_tail(int64_t D, int64_t Lk) {
  const Dims dims = {.H = 2, .Hk = 1, .Lq = 1 + (D + Lk) % 5, .Lk = Lk, .D = D, .Dv = D};
  const DType dtypes[] = {DType::float32, DType::bfloat16, DType::float16};
  Oracle(make_case(feature_named("causal bottom_right"), dims, dtypes[(D + Lk) % 3], D * 1000 + Lk))
      .expect_on_every_isa();
}

/// Every head width, and every number of keys up to well past any tile.
TEST(Tails, HeadWidthsAndKeys) {
  sample(288 * 260, {.quick = 120, .normal = 800, .seconds = 60},
         [](int64_t number) { check_tail(1 + number / 260, 1 + number % 260); });
}

/// Where the naive algorithm would have nothing to get wrong.
template <int Rank>
testing::AssertionResult close_exactly(const Array<Rank>& actual, const Array<Rank>& reference) {
  const Values expected = reference.values();
  return close(actual.values(), expected, Yardstick({expected}, expected, 0, actual.count()), actual.dtype());
}

/// Any size may be 0: the answer has the right shape and holds what the oracle says, or the call is refused.
TEST(Zero, AnySizeMayBeZero) {
  for_each_isa([](const std::string& isa) {
    for (int zero = 1; zero < 128; ++zero) {
      const auto unless = [&](int bit, int64_t extent) { return zero >> bit & 1 ? 0 : extent; };
      Case c = make_case(feature_named("none"),
                         {.B = unless(0, 2),
                          .H = unless(1, 4),
                          .Hk = unless(2, 2),
                          .Lq = unless(3, 3),
                          .Lk = unless(4, 5),
                          .D = unless(5, 8),
                          .Dv = unless(6, 8)},
                         DType::float32, zero);
      if (c.dims.Hk == 0 && c.dims.H > 0) {
        EXPECT_THROW(run(c), Error) << c.name() << " on " << isa;
        continue;
      }
      const Results reference = run_reference(c), actual = run(c);
      EXPECT_TRUE(close_exactly(actual.out, reference.out)) << c.name() << " on " << isa;
      EXPECT_TRUE(close_exactly(actual.lse, reference.lse)) << c.name() << " on " << isa;
      EXPECT_TRUE(close_exactly(actual.dq, reference.dq)) << c.name() << " on " << isa;
      EXPECT_TRUE(close_exactly(actual.dk, reference.dk)) << c.name() << " on " << isa;
      EXPECT_TRUE(close_exactly(actual.dv, reference.dv)) << c.name() << " on " << isa;
    }
  });
}

/// A length of 0 in some sequences only, in every way to say so.
TEST(Zero, EmptySequences) {
  Case c =
      make_case(feature_named("none"), {.B = 3, .H = 2, .Hk = 1, .Lq = 4, .Lk = 6, .D = 8, .Dv = 8}, DType::float32, 1);
  c.key_length = {0, 6, 0};
  Oracle(c).expect_on_every_isa();
  Case packed =
      make_case(feature_named("none"), {.H = 2, .Hk = 1, .Lq = 4, .Lk = 6, .D = 8, .Dv = 8}, DType::float32, 2);
  packed.cu_seqlens_q = {0, 0, 2, 4, 4};
  packed.cu_seqlens_k = {0, 1, 1, 6, 6};
  Oracle(packed).expect_on_every_isa();
}

// ------------------------------------------------------------------------------------------------------ extreme scores

struct ExtremeRow {
  const char* name;
  double all;                                   // every score
  std::vector<std::pair<int64_t, double>> but;  // except these keys
};

/// Scores are set one by one: q = 1, scale = 1, D = 1, k_j = score. Values are ones beside random columns.
TEST(Extreme, WeightsStillSumToOne) {
  const ExtremeRow rows[] = {
      {"all -2.45e5", -2.45e5, {}},
      {"all -1e30", -1e30, {}},
      {"all +1e30", 1e30, {}},
      {"all -3e38", -3e38, {}},
      {"spread 2e38", -1e38, {{3, 1e38}}},
      {"spread 2e38 in the last key", -1e38, {{-1, 1e38}}},
      {"a winner far below zero", -1e30, {{0, -2.45e5}}},
      {"one +infinity", 0.5, {{2, kInf}}},
      {"two +infinity", 0.5, {{2, kInf}, {-2, kInf}}},
      {"one -infinity", 0.5, {{1, -kInf}}},
      {"all but one -infinity", -kInf, {{1, 7}}},
      {"the first keys -infinity", 1, {{0, -kInf}, {1, -kInf}, {2, -kInf}}},
      {"equal", 12.5, {}},
      {"zero", 0, {}},
      {"subnormal", 1e-40, {{0, -1e-42}}},
      {"steps of 90", -90, {{0, 0}, {1, 90}, {2, 180}}},
  };
  for_each_isa([&](const std::string& isa) {
    for (const ExtremeRow& row : rows)
      for (int64_t Lk : {5, 37, 300, 2500})
        for (int64_t Lq : {1, 3, 50})
          for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
            const Dims dims = {.Lq = Lq, .Lk = Lk, .D = 1, .Dv = 9};
            Case c = make_case(feature_named("none"), dims, dtype, Lk);
            c.scalars.scale = 1;
            c.q.fill(1);
            c.k.fill(row.all);
            for (auto [key, score] : row.but) c.k.set((key + Lk) % Lk, score);
            for (int64_t j = 0; j < Lk; ++j) c.v.set(j * 9, 1);
            const Values actual = run(c, false).out.values(), reference = run_reference(c, false).out.values();
            const double bound = row_sum_bound(dtype);
            for (int64_t i = 0; i < Lq; ++i)
              EXPECT_TRUE(std::abs(actual[i * 9] - 1) <= bound)
                  << row.name << ": " << c.name() << " on " << isa << " row " << i << " sums to " << actual[i * 9];
            EXPECT_TRUE(max_abs_error(actual, reference) <= bound * max_abs(c.v.values()))
                << row.name << ": " << c.name() << " on " << isa;
          }
  });
}

/// The same through the mean of q: scores near 1e4 that differ by little keep their differences.
TEST(Extreme, SmallDifferencesOnALargeOffset) {
  Case c = make_case(feature_named("none"), {.Lq = 7, .Lk = 90, .D = 2, .Dv = 4}, DType::float32, 9);
  c.scalars.scale = 1;
  c.q.fill(1);
  for (int64_t j = 0; j < c.dims.Lk; ++j) {
    c.k.set(2 * j, 16384);
    c.k.set(2 * j + 1, static_cast<double>(j % 8) / 4);
  }
  Oracle(std::move(c), false).expect_on_every_isa();
}

/// Biases that drown the scores: the keys with the largest share the row.
TEST(Extreme, LargeBias) {
  for (double size : {1e4, 1e30, 1e38}) {
    Case c = make_case(feature_named("bias full"), {.Lq = 9, .Lk = 60, .D = 4, .Dv = 4}, DType::float32, 10);
    for (int64_t n = 0; n < c.bias.count(); ++n) c.bias.set(n, n % 3 == 0 ? size : -size);
    Oracle(std::move(c), false).expect_on_every_isa();
  }
}

/// A weight, and a product of gradients, below the smallest normal number is 0, for such numbers are slow; and code
/// that calls keeps his own.
TEST(Extreme, SubnormalResultsAreFlushedInsideTheCallAlone) {
  for_each_isa([&](const std::string& isa) {
    const auto view = [](float* x, int64_t n) { return View<4>{x, DType::float32, {1, 1, n, 1}}; };
    float q[] = {1}, k[] = {0, -90}, v[] = {0, 1}, out[] = {7}, lse[] = {7};
    AttentionOptions options;
    options.scale = 1;
    const View<3> row = {lse, DType::float32, {1, 1, 1}};
    attention(view(q, 1), view(k, 2), view(v, 2), view(out, 1), row, options);
    EXPECT_EQ(out[0], 0) << "exp(-90) is 2^-130 on " << isa;

    k[1] = -80;  // 2^-115.4, a normal number; times 2^-14 no longer
    float dout[] = {0x1p-14f}, dv[] = {7, 7};
    AttentionGradients gradients;
    gradients.dv = view(dv, 2);
    attention(view(q, 1), view(k, 2), view(v, 2), view(out, 1), row, options);
    EXPECT_GT(out[0], 0) << isa;
    attention_backward(view(q, 1), view(k, 2), view(v, 2), view(out, 1), row, view(dout, 1), gradients, options);
    EXPECT_EQ(dv[0], 0x1p-14f) << isa;
    EXPECT_EQ(dv[1], 0) << isa;

    volatile float small = 0x1p-126f;
    EXPECT_EQ(small * 0.5f, 0x1p-127f) << "subnormal numbers of the caller, after a call on " << isa;
  });
}

}  // namespace
}  // namespace attn::test
