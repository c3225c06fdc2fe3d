// The comparators themselves: each must fail on what it is there to find.
#include <gtest/gtest.h>

#include "naive.h"
#include "sweep.h"
#include "tolerance.h"

namespace attn::test {
namespace {

constexpr size_t kCount = 262'144;

/// A result with its naive twin: off by a few units in the last place here and there.
struct Sample {
  Values actual, reference, naive;

  Sample() : actual(kCount), reference(kCount), naive(kCount) {
    Random random(7);
    for (size_t n = 0; n < kCount; ++n) {
      reference[n] = rounded(random.normal(), DType::float32);
      actual[n] = reference[n] * (1 + 0x1p-24 * random.normal());
      naive[n] = reference[n] * (1 + 0x1p-24 * random.normal());
    }
  }
  bool passes(DType dtype = DType::float32) const {
    return close(actual, reference, Yardstick({naive}, reference, 0, kCount), dtype);
  }
};

const DType kTypes[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16};

TEST(Comparator, AcceptsRounding) {
  Sample s;
  EXPECT_TRUE(s.passes());
  s.actual = s.reference;
  for (DType dtype : kTypes) EXPECT_TRUE(s.passes(dtype));
}

TEST(Comparator, SeesNaNInTheResult) {
  Sample s;
  s.actual[kCount - 1] = kNaN;
  for (DType dtype : kTypes) EXPECT_FALSE(s.passes(dtype));
  EXPECT_FALSE(close_float64(s.actual, s.reference));
}

TEST(Comparator, SeesNaNInTheReference) {
  Sample s;
  s.reference[0] = kNaN;
  for (DType dtype : kTypes) EXPECT_FALSE(s.passes(dtype));
  s.actual[0] = kNaN;
  for (DType dtype : kTypes) EXPECT_FALSE(s.passes(dtype)) << "two NaN are not equal";
}

TEST(Comparator, SeesNaNInTheNaive) {
  Sample s;
  s.naive[5] = kNaN;
  for (DType dtype : kTypes) EXPECT_FALSE(s.passes(dtype)) << "a broken yardstick measures nothing";
}

TEST(Comparator, TheWorstOfSeveralMayNotBeNaN) {
  EXPECT_EQ(worst_of({1, 3, 2}), 3);
  EXPECT_TRUE(std::isnan(worst_of({1, kNaN, 2})));
}

TEST(Comparator, SeesOneWrongValueInAQuarterMillion) {
  for (double wrong : {0.0, -1.0, 1e30, kInf, -kInf}) {
    Sample s;
    s.reference[1234] = s.naive[1234] = 0.5;
    s.actual[1234] = wrong;
    for (DType dtype : kTypes) EXPECT_FALSE(s.passes(dtype)) << wrong;
  }
}

TEST(Comparator, SeesSixtyFourZeros) {
  Sample s;
  for (size_t n = 0; n < 64; ++n) s.actual[n] = 0;
  EXPECT_FALSE(s.passes());
}

TEST(Comparator, SeesASmallErrorEverywhere) {
  Sample s;  // each within the bound on the maximum, all together beyond the mean
  for (size_t n = 0; n < kCount; ++n) s.actual[n] = s.reference[n] + 2e-5;
  s.naive[0] = s.reference[0] + 1e-4;
  EXPECT_FALSE(s.passes());
}

TEST(Comparator, ZeroReference) {
  Sample s;
  s.reference.assign(kCount, 0);
  s.naive = s.actual = s.reference;
  for (DType dtype : kTypes) EXPECT_TRUE(s.passes(dtype)) << "0 / 0 is no error";
  s.actual[9] = 0x1p-20;
  EXPECT_FALSE(s.passes(DType::float32));
  EXPECT_FALSE(s.passes(DType::float64));
}

TEST(Comparator, SeesWrongSizes) {
  Sample s;
  s.actual.pop_back();
  for (DType dtype : kTypes) EXPECT_FALSE(s.passes(dtype));
  s.actual.clear();
  for (DType dtype : kTypes) EXPECT_FALSE(s.passes(dtype)) << "no result is not a good result";
}

TEST(Comparator, InfinitiesMustMatch) {
  Sample s;
  s.reference[3] = s.naive[3] = -kInf;
  EXPECT_FALSE(s.passes());
  s.actual[3] = kInf;
  EXPECT_FALSE(s.passes());
  s.actual[3] = -kInf;
  EXPECT_TRUE(s.passes());
}

TEST(Comparator, SignsMatter) {
  Sample s;
  for (double& value : s.actual) value = -value;
  for (DType dtype : kTypes) EXPECT_FALSE(s.passes(dtype));
  EXPECT_FALSE(same_nans({kNaN, 1}, {1, kNaN}));
  EXPECT_FALSE(same_nans({1}, {1, 1}));
}

TEST(Comparator, SeesSwappedHeads) {
  for (DType dtype : kTypes) {
    const Case c = make_case(feature_named("causal top_left"), small_dims()[0], dtype, 1);
    Case swapped = c;
    const int64_t head = c.q.size()[2] * c.q.size()[3];
    for (int64_t n = 0; n < head; ++n) {
      swapped.q.set(n, c.q.get(n + head));
      swapped.q.set(n + head, c.q.get(n));
    }
    const Values reference = run_reference(c, false).out.values();
    const Yardstick naive({run_naive(c, Way::textbook, false).out.values()}, reference, 0, c.q.count());
    EXPECT_TRUE(close(reference, reference, naive, dtype));
    EXPECT_FALSE(close(run_reference(swapped, false).out.values(), reference, naive, dtype));
  }
}

TEST(Comparator, BitsAreBits) {
  Array<1> a(DType::float32, {2}), b(DType::float32, {2});
  EXPECT_TRUE(same_bits(a, b));
  b.set(1, -0.0);
  EXPECT_FALSE(same_bits(a, b));
  EXPECT_FALSE(same_bits(a, Array<1>(DType::int32, {2})));
  EXPECT_FALSE(same_bits(a, Array<1>(DType::float32, {3})));
}

}  // namespace
}  // namespace attn::test
