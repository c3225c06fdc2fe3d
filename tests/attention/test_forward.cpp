// attention() against the oracle: every option, every element type, every instruction set.
#include <gtest/gtest.h>

#include "support/checks.h"

namespace attn::test {
namespace {

TEST(Forward, EveryOptionInEveryType) {
  sample_every_option(100, [](const Case& c) { Oracle(c, false).expect_on_every_isa(); });
}

/// Shapes that take different paths: one query, a few, a panel and its edges; one key block and several.
TEST(Forward, EveryNumberOfQueries) {
  const int64_t step = by_effort(13, 3, 1);
  for (int64_t Lq = 1; Lq <= 150; Lq += step)
    for (int64_t group : {1, 2, 8}) {
      const Dims dims = {.B = 1, .H = group, .Hk = 1, .Lq = Lq, .Lk = 70, .D = 24, .Dv = 24};
      Oracle(make_case(feature_named("causal bottom_right"), dims, DType::float32, Lq), false).expect_on_every_isa();
    }
}

/// Any number of query heads over one key head, with a mask that tells the heads apart.
TEST(Forward, EveryGroupSize) {
  const int64_t step = by_effort(9, 1, 1);
  for (int64_t group = 1; group <= 50; group += step)
    for (const char* feature : {"mask heads", "bias heads", "alibi"}) {
      const Dims dims = {.B = 1, .H = 2 * group, .Hk = 2, .Lq = 6, .Lk = 9, .D = 8, .Dv = 8};
      Oracle(make_case(feature_named(feature), dims, DType::float32, group), false).expect_on_every_isa();
    }
}

TEST(Forward, LongRows) {
  for (int64_t Lk : {255, 256, 257, 511, 513, 1025, 5000})
    for (DType dtype : {DType::float32, DType::bfloat16}) {
      const Dims dims = {.B = 1, .H = 2, .Hk = 1, .Lq = 5, .Lk = Lk, .D = 64, .Dv = 64};
      for (const char* feature : {"none", "mask padding", "window both", "bias keys"})
        Oracle(make_case(feature_named(feature), dims, dtype, Lk), false).expect_on_every_isa();
    }
}

/// A new maximum in every block: the running sums are rescaled again and again.
TEST(Forward, ScoresThatKeepRising) {
  Case c = make_case(feature_named("none"), {.Lq = 50, .Lk = 1000, .D = 4, .Dv = 8}, DType::float32, 5);
  for (int64_t j = 0; j < c.dims.Lk; ++j) c.k.set({0, 0, j, 0}, static_cast<double>(j) / 10);
  Oracle(std::move(c), false).expect_on_every_isa();
}

TEST(Forward, LseIsOptional) {
  for_each_isa([](const std::string& isa) {
    for (const Feature& feature : features()) {
      const Case c = make_case(feature, small_dims()[1], DType::float32, 3);
      const Results with_lse = run(c, false);
      Results without = empty_results(c, c.dtype, false);
      attention(c.q.view(), c.k.view(), c.v.view(), without.out.view(), c.options());
      EXPECT_TRUE(same_bits(with_lse.out, without.out)) << c.name() << " on " << isa;
    }
  });
}

TEST(Forward, InputsAreNotTouched) {
  for_each_isa([](const std::string& isa) {
    for (const Feature& feature : features()) {
      const Case c = make_case(feature, small_dims()[0], DType::bfloat16, 4), before = c;
      run(c);
      EXPECT_TRUE(same_bits(c.q, before.q) && same_bits(c.k, before.k) && same_bits(c.v, before.v) &&
                  same_bits(c.dout, before.dout) && same_bits(c.mask, before.mask) && same_bits(c.bias, before.bias))
          << c.name() << " on " << isa;
    }
  });
}

/// So many panels that groups of 16-bit rows are at their widest.
TEST(Forward, ManyPanels) {
  for (const char* feature : {"none", "causal bottom_right"})
    for (DType dtype : {DType::bfloat16, DType::float16}) {
      const Dims dims = {.B = 2, .H = 4, .Hk = 2, .Lq = 1200, .Lk = 20, .D = 4, .Dv = 4};
      Oracle(make_case(feature_named(feature), dims, dtype, 6), false).expect_on_every_isa();
    }
}

/// Short lists of sequences and of groups live on the stack: numbers around where they move to the heap.
TEST(Forward, ManySequences) {
  for (int64_t B : {7, 8, 9, 15, 16, 17, 40})
    Oracle(
        make_case(feature_named("causal bottom_right"), {.B = B, .Lq = 3, .Lk = 5, .D = 8, .Dv = 8}, DType::float32, B))
        .expect_on_every_isa();
}

/// The widest heads, and values much wider or narrower than keys.
TEST(Forward, HeadWidths) {
  for (auto [D, Dv] : {std::pair<int64_t, int64_t>{1024, 1024}, {1000, 3}, {3, 1000}, {576, 512}, {1, 1}}) {
    const Dims dims = {.B = 1, .H = 4, .Hk = 2, .Lq = 20, .Lk = 40, .D = D, .Dv = Dv};
    for (DType dtype : {DType::float32, DType::bfloat16, DType::float16})
      Oracle(make_case(feature_named("causal bottom_right"), dims, dtype, D), false).expect_on_every_isa();
  }
}

}  // namespace
}  // namespace attn::test
