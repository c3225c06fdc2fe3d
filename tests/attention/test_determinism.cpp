// Bits: the same for any number of threads, run after run, with any neighbours; and dropout as a pure function.
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "support/checks.h"

namespace attn::test {
namespace {

/// Sets the number of threads for a scope.
class Threads {
 public:
  explicit Threads(int threads) { set_thread_count(threads); }
  ~Threads() { set_thread_count(0); }
};

/// Shapes that are cut up in different ways: many groups, few groups with keys split, one row, a long backward.
std::vector<Case> cut_up_cases() {
  std::vector<Case> cases;
  const auto add = [&](const char* feature, const Dims& dims, DType dtype) {
    cases.push_back(make_case(feature_named(feature), dims, dtype, 700 + cases.size()));
  };
  add("causal bottom_right", {.B = 2, .H = 4, .Hk = 2, .Lq = 100, .Lk = 100, .D = 16, .Dv = 16}, DType::float32);
  add("none", {.B = 1, .H = 2, .Hk = 1, .Lq = 3, .Lk = 9000, .D = 8, .Dv = 8}, DType::float32);
  add("mask padding", {.B = 1, .H = 1, .Hk = 1, .Lq = 1, .Lk = 5000, .D = 16, .Dv = 16}, DType::bfloat16);
  add("everything", {.B = 2, .H = 3, .Hk = 1, .Lq = 65, .Lk = 300, .D = 24, .Dv = 8}, DType::float32);
  add("bias shared", {.B = 2, .H = 2, .Hk = 2, .Lq = 70, .Lk = 140, .D = 8, .Dv = 8}, DType::float32);
  add("packed causal", {.B = 1, .H = 4, .Hk = 2, .Lq = 200, .Lk = 200, .D = 16, .Dv = 16}, DType::float16);
  add("sink", {.B = 1, .H = 1, .Hk = 1, .Lq = 700, .Lk = 60, .D = 8, .Dv = 8}, DType::bfloat16);
  add("none", {.B = 1, .H = 1, .Hk = 1, .Lq = 300, .Lk = 2500, .D = 4, .Dv = 4}, DType::float64);
  return cases;
}

TEST(Bitwise, ForAnyNumberOfThreads) {
  const std::vector<Case> cases = cut_up_cases();
  const auto count = static_cast<int64_t>(cases.size());
  const int thread_counts[] = {1, 2, 3, 4, 7, 8, 16};
  std::map<std::pair<int64_t, std::string>, Results> serial;
  set_thread_count(1);
  for (int64_t n = 0; n < count; ++n)
    for_each_isa([&](const std::string& isa) { serial.emplace(std::pair(n, isa), run(cases[n])); });
  sample(count * 7 * 1000, {.quick = count * 7, .normal = count * 7 * 4, .seconds = 60}, [&](int64_t number) {
    const int64_t n = number % count;
    const Threads scope(thread_counts[number / count % 7]);
    for_each_isa([&](const std::string& isa) {
      ASSERT_TRUE(same_results(run(cases[n]), serial.at({n, isa})))
          << cases[n].name() << " with " << thread_count() << " threads on " << isa;
    });
  });
}

/// Batch row b alone, as a call of its own.
Case batch_row(const Case& c, int64_t b) {
  Case row = c;
  row.dims.B = 1;
  const auto take = [&](auto& array) {
    if (!array.given() || array.size()[0] == 1) return;
    auto size = array.size();
    const int64_t count = array.count() / size[0];
    size[0] = 1;
    std::decay_t<decltype(array)> part(array.dtype(), size);
    for (int64_t n = 0; n < count; ++n) part.set(n, array.get(b * count + n));
    array = part;
  };
  take(row.q);
  take(row.k);
  take(row.v);
  take(row.dout);
  take(row.dlse);
  take(row.mask);
  take(row.bias);
  take(row.query_segment_ids);
  take(row.key_segment_ids);
  for (auto* lengths : {&row.key_length, &row.query_length, &row.offset})
    if (!lengths->empty()) *lengths = {(*lengths)[b]};
  return row;
}

/// A batch row's bits are its own: alone or among 2 to 64 others.
TEST(Bitwise, WhateverTheNeighbours) {
  for (int64_t B : {2, 5, 64})
    for (const char* name : {"none", "causal bottom_right", "key_length bottom_right", "mask padding", "documents"})
      for (DType dtype : {DType::float32, DType::bfloat16}) {
        const Dims dims = {.B = B, .H = 4, .Hk = 2, .Lq = 5, .Lk = 90, .D = 16, .Dv = 16};
        const Case c = make_case(feature_named(name), dims, dtype, B);
        for_each_isa([&](const std::string& isa) {
          const Results together = run(c);
          for (int64_t b : {int64_t{0}, B / 2, B - 1}) {
            const Results alone = run(batch_row(c, b));
            const auto same_part = [&](const Array<4>& part, const Array<4>& whole) {
              return std::equal(part.bytes().begin(), part.bytes().end(),
                                whole.bytes().begin() + static_cast<int64_t>(part.bytes().size()) * b);
            };
            EXPECT_TRUE(same_part(alone.out, together.out) && same_part(alone.dq, together.dq) &&
                        same_part(alone.dk, together.dk) && same_part(alone.dv, together.dv))
                << "row " << b << " of " << c.name() << " on " << isa;
          }
        });
      }
}

/// A query row's bits are its own too: computed alone, in the middle of others, or at their end.
TEST(Bitwise, WhateverTheOtherQueries) {
  for_each_isa([](const std::string& isa) {
    for (DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64}) {
      const Case c =
          make_case(feature_named("none"), {.H = 2, .Hk = 1, .Lq = 120, .Lk = 333, .D = 20, .Dv = 20}, dtype, 31);
      const Results whole = run(c, false);
      for (int64_t count : {1, 3, 17, 60})
        for (int64_t first : {0, 1, 50, 60}) {
          Array<4> out(dtype, {1, 2, count, 20});
          attention(part_of(c.q.view(), 2, first, count), c.k.view(), c.v.view(), out.view(), {},
                    {.batch_invariant = true});
          for (int64_t h = 0; h < 2; ++h)
            for (int64_t i = 0; i < count; ++i)
              for (int64_t d = 0; d < 20; ++d)
                ASSERT_EQ(out.get({0, h, i, d}), whole.out.get({0, h, first + i, d}))
                    << count << " queries from " << first << ", " << name_of(dtype) << " on " << isa;
        }
    }
  });
}

/// More keys after the last one that is allowed change nothing: a prefix in a longer cache.
TEST(Bitwise, WhateverIsAfterTheLastKey) {
  for_each_isa([](const std::string& isa) {
    for (int64_t length : {1, 63, 64, 256, 257, 2100}) {
      Case c = make_case(feature_named("none"), {.H = 2, .Hk = 1, .Lq = 4, .Lk = 2500, .D = 16, .Dv = 16},
                         DType::float32, 32);
      c.key_length = {length};
      const Results masked = run(c, false);
      Results cut = masked;
      attention(c.q.view(), part_of(c.k.view(), 2, 0, length), part_of(c.v.view(), 2, 0, length), cut.out.view(),
                cut.lse.view());
      EXPECT_TRUE(same_results(cut, masked)) << length << " keys on " << isa;
    }
  });
}

// ------------------------------------------------------------------------------------------------------------- dropout

/// The counter that the header promises, checked against philox() word by word.
TEST(Dropout, IsAFunctionOfItsPlace) {
  const uint64_t seed = 0x0123456789abcdef;
  Random random(1);
  for (int n = 0; n < 1000; ++n) {
    const int64_t b = random.below(1 << 20), h = random.below(65536), i = random.below(int64_t{1} << 40),
                  j = random.below(int64_t{1} << 40);
    const double probability = random.uniform();
    const auto words = philox(seed, {static_cast<uint32_t>(j / 4), static_cast<uint32_t>(i), static_cast<uint32_t>(b),
                                     static_cast<uint32_t>(h << 16 | (i >> 32 & 0xff) << 8 | (j / 4 >> 32 & 0xff))});
    EXPECT_EQ(dropout_keeps(seed, probability, b, h, i, j),
              words[j % 4] >= static_cast<uint32_t>(probability * 4294967296.0));
  }
  EXPECT_TRUE(dropout_keeps(seed, 0, 0, 0, 0, 0));
}

TEST(Dropout, DropsAtItsRate) {
  for (double probability : {0.1, 0.5, 0.9})
    for (uint64_t seed : {1, 2, 3}) {
      int64_t dropped = 0;
      const int64_t rows = 256, keys = 1024;
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < keys; ++j) dropped += !dropout_keeps(seed, probability, 0, 0, i, j);
      const double rate = static_cast<double>(dropped) / (rows * keys);
      EXPECT_TRUE(std::abs(rate - probability) <= rate_bound(probability, rows * keys)) << rate;
    }
}

/// q = 0 makes every weight equal; with the identity as values (or as dout) the weights themselves come out.
Case transparent(double dropout, uint64_t seed, int64_t Lq, int64_t Lk) {
  Case c = make_case(feature_named("none"), {.B = 2, .H = 4, .Hk = 2, .Lq = Lq, .Lk = Lk, .D = 1, .Dv = Lk},
                     DType::float32, 33);
  c.scalars.dropout = dropout;
  c.scalars.seed = seed;
  c.q.fill(0);
  c.v.fill(0);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t j = 0; j < Lk; ++j) c.v.set({b, h, j, j}, 1);
  return c;
}

TEST(Dropout, ForwardKeepsWhatTheFunctionKeeps) {
  for_each_isa([](const std::string& isa) {
    for (double probability : {0.1, 0.5, 0.9})
      for (auto [Lq, Lk] : {std::pair<int64_t, int64_t>{1, 70}, {3, 300}, {100, 9}}) {
        const Case c = transparent(probability, 34, Lq, Lk);
        const Results r = run(c, false);
        for (int64_t n = 0; n < r.out.count(); ++n) {
          const int64_t j = n % Lk, i = n / Lk % Lq, h = n / Lk / Lq % 4, b = n / Lk / Lq / 4;
          ASSERT_EQ(r.out.get(n) > 0, dropout_keeps(34, probability, b, h, i, j)) << c.name() << " on " << isa;
        }
      }
  });
}

/// dv_j = sum_i P'_ij dout_i: with one query head a key head and dout_i the i-th unit vector, dv is P' transposed.
TEST(Dropout, BackwardReplaysTheSameMask) {
  for_each_isa([](const std::string& isa) {
    for (double probability : {0.1, 0.5, 0.9}) {
      const int64_t Lq = 90, Lk = 300;
      Case c = make_case(feature_named("none"), {.B = 2, .H = 2, .Hk = 2, .Lq = Lq, .Lk = Lk, .D = 1, .Dv = Lq},
                         DType::float32, 35);
      c.scalars.dropout = probability;
      c.scalars.seed = 36;
      c.q.fill(0);
      c.dout.fill(0);
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t h = 0; h < 2; ++h)
          for (int64_t i = 0; i < Lq; ++i) c.dout.set({b, h, i, i}, 1);
      const Results r = run(c);
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t h = 0; h < 2; ++h)
          for (int64_t i = 0; i < Lq; ++i)
            for (int64_t j = 0; j < Lk; ++j)
              ASSERT_EQ(r.dv.get({b, h, j, i}) > 0, dropout_keeps(36, probability, b, h, i, j)) << isa;
    }
  });
}

/// Gradients with dropout hold the float32 rule, for several seeds and shapes that tile differently.
TEST(Dropout, GradientsFollowTheOracle) {
  for (double probability : {0.1, 0.5, 0.9})
    for (const Dims& dims : small_dims()) {
      Case c = make_case(feature_named("causal bottom_right"), dims, DType::float32, 37);
      c.scalars.dropout = probability;
      c.scalars.seed = 38;
      Oracle(std::move(c)).expect_on_every_isa();
    }
}

}  // namespace
}  // namespace attn::test
