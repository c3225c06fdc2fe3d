// attention_weights(): the matrix P, whole or any rectangle of it.
#include <gtest/gtest.h>

#include "support/checks.h"

namespace attn::test {
namespace {

Array<4> weights_of(const Case& c, const Array<3>& lse, int64_t first_query, int64_t rows, int64_t first_key,
                    int64_t columns) {
  Array<4> weights = Array<4>(lse_type(c.dtype), {c.dims.B, c.dims.H, rows, columns}).fill_with_nan();
  attention_weights(c.q.view(), c.k.view(), lse.view(), weights.view(), first_query, first_key, c.options());
  return weights;
}

/// All of P from the oracle, out of its own lse.
Array<4> reference_weights(const Case& c) {
  const Array<4> q = c.q.as(DType::float64), k = c.k.as(DType::float64);
  const Results r = run_reference(c, false);
  Array<4> weights(DType::float64, {c.dims.B, c.dims.H, c.dims.Lq, c.dims.Lk});
  reference::attention_weights(q.view(), k.view(), r.lse.view(), weights.view(), 0, 0, c.options());
  return weights;
}

TEST(Weights, AreTheOraclesForEveryOption) {
  sample_every_option(800, [](const Case& c) {
    const Array<4> expected = reference_weights(c);
    const double score = max_abs(run_reference(c, false).lse.values());
    for_each_isa([&](const std::string& isa) {
      const Array<4> actual = weights_of(c, run(c, false).lse, 0, c.dims.Lq, 0, c.dims.Lk);
      EXPECT_TRUE(max_abs_error(actual.values(), expected.values()) <= weight_bound(score, lse_type(c.dtype)))
          << c.name() << " on " << isa;
    });
  });
}

/// What the sink does not take, the keys share.
TEST(Weights, RowsSumToOne) {
  for_each_isa([](const std::string& isa) {
    for (const char* name : {"none", "causal top_left", "softcap", "alibi", "bias full", "packed causal"}) {
      const Case c = make_case(feature_named(name), {.B = 1, .H = 2, .Hk = 1, .Lq = 70, .Lk = 70, .D = 16, .Dv = 16},
                               DType::float32, 81);
      const Array<4> weights = weights_of(c, run(c, false).lse, 0, c.dims.Lq, 0, c.dims.Lk);
      for (int64_t row = 0; row < 2 * 70; ++row) {
        double sum = 0;
        for (int64_t j = 0; j < 70; ++j) sum += weights.get(row * 70 + j);
        EXPECT_TRUE(std::abs(sum - 1) <= row_sum_bound(DType::float32)) << c.name() << " row " << row << " on " << isa;
      }
    }
  });
}

/// An lse that is not the row's, however far below its scores, gives weights beyond all numbers, none that look right.
TEST(Weights, OfAnotherLseAreInfinite) {
  for_each_isa([](const std::string& isa) {
    for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16})
      for (const int64_t Lq : {int64_t{3}, int64_t{40}})
        for (const double lse : {-800.0, -1000.0, -1e5, -1e30}) {
          const Dims dims = {.B = 1, .H = 1, .Lq = Lq, .Lk = 9, .D = 8, .Dv = 8};
          const Case c = make_case(feature_named("none"), dims, dtype, 83);
          Array<3> wrong(lse_type(dtype), {1, 1, Lq});
          for (int64_t row = 0; row < Lq; ++row) wrong.set(row, lse);
          const Array<4> weights = weights_of(c, wrong, 0, Lq, 0, 9);
          for (const double weight : weights.values())
            EXPECT_EQ(weight, kInf) << name_of(dtype) << " " << Lq << " rows, lse " << lse << " on " << isa;
        }
  });
}

/// A rectangle has the bits of the whole, wherever it is cut.
TEST(Weights, AnyRectangle) {
  for_each_isa([](const std::string& isa) {
    for (const char* name : {"none", "everything", "packed with gaps", "causal bottom_right"}) {
      const Case c = make_case(feature_named(name), {.B = 1, .H = 3, .Hk = 1, .Lq = 75, .Lk = 290, .D = 12, .Dv = 12},
                               DType::float32, 82);
      const Array<3> lse = run(c, false).lse;
      const Array<4> whole = weights_of(c, lse, 0, c.dims.Lq, 0, c.dims.Lk);
      Random random(83);
      for (int n = 0; n < 40; ++n) {
        const int64_t first_query = random.below(c.dims.Lq), rows = random.below(c.dims.Lq - first_query + 1);
        const int64_t first_key = random.below(c.dims.Lk), columns = random.below(c.dims.Lk - first_key + 1);
        const Array<4> part = weights_of(c, lse, first_query, rows, first_key, columns);
        for (int64_t h = 0; h < 3; ++h)
          for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < columns; ++j)
              ASSERT_EQ(part.get({0, h, i, j}), whole.get({0, h, first_query + i, first_key + j}))
                  << c.name() << " from (" << first_query << ", " << first_key << ") on " << isa;
      }
    }
  });
}

/// Weights times values are the output.
TEST(Weights, ExplainTheOutput) {
  for_each_isa([](const std::string& isa) {
    const Case c = make_case(feature_named("causal bottom_right"),
                             {.B = 2, .H = 4, .Hk = 2, .Lq = 20, .Lk = 60, .D = 16, .Dv = 8}, DType::float64, 84);
    const Results r = run(c, false);
    const Array<4> weights = weights_of(c, r.lse, 0, 20, 0, 60);
    Array<4> out(DType::float64, r.out.size());
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t h = 0; h < 4; ++h)
        for (int64_t i = 0; i < 20; ++i)
          for (int64_t d = 0; d < 8; ++d) {
            double sum = 0;
            for (int64_t j = 0; j < 60; ++j) sum += weights.get({b, h, i, j}) * c.v.get({b, h / 2, j, d});
            out.set({b, h, i, d}, sum);
          }
    EXPECT_TRUE(close_float64(r.out.values(), out.values())) << isa;
  });
}

TEST(Weights, AnyStrides) {
  for_each_isa([](const std::string& isa) {
    const Case c = make_case(feature_named("mask"), small_dims()[1], DType::float32, 85);
    const Dims& d = c.dims;
    const Array<3> lse = run(c, false).lse;
    const Array<4> expected = weights_of(c, lse, 0, d.Lq, 0, d.Lk);
    Array<4> transposed = Array<4>(DType::float32, {d.B, d.H, d.Lk, d.Lq}).fill_with_nan();
    const View<4> view(transposed.view().data, DType::float32, {d.B, d.H, d.Lq, d.Lk},
                       {d.H * d.Lq * d.Lk, d.Lq * d.Lk, 1, d.Lq});
    attention_weights(c.q.view(), c.k.view(), lse.view(), view, 0, 0, c.options());
    for (int64_t b = 0; b < d.B; ++b)
      for (int64_t h = 0; h < d.H; ++h)
        for (int64_t i = 0; i < d.Lq; ++i)
          for (int64_t j = 0; j < d.Lk; ++j) ASSERT_EQ(transposed.get({b, h, j, i}), expected.get({b, h, i, j})) << isa;
  });
}

}  // namespace
}  // namespace attn::test
