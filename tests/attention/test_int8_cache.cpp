// The KV cache in 8 bits: what it stores, and attention over that against the oracle. Rows that are whole multiples of
// a power of two are stored without error, in every type: over them the cache must be as good as an exact one.
#include <gtest/gtest.h>

#include "attn/attention_statistics.h"
#include "support/checks.h"

namespace attn::test {
namespace {

const DType kTypes[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16};

/// Multiples of 2^-6 in every row of the last axis, from -127 to 127, of which one is reached.
void fill_with_whole_multiples(Array<4>& x, Random& random) {
  const Shape<4>& n = x.size();
  for (int64_t h = 0; h < n[1]; ++h)
    for (int64_t t = 0; t < n[2]; ++t)
      for (int64_t d = 0; d < n[3]; ++d) {
        const double code = d == t % n[3] ? 127 : std::floor(255 * random.uniform()) - 127;
        x.set({0, h, t, d}, std::ldexp(t % 3 == 0 ? -code : code, -6 - static_cast<int>(t % 2)));
      }
}

struct Call {
  Dims dims;
  std::string option;
  int64_t page_size = 64;
};

/// The last Lq of Lk tokens are the queries.
Case case_of(const Call& call, DType dtype) {
  Case c = make_case(feature_named("none"), call.dims, dtype, 90);
  c.feature = "8-bit cache " + call.option;
  c.scalars.causal = true;
  c.scalars.alignment = Alignment::bottom_right;
  Random random(91);
  fill_with_whole_multiples(c.k, random);
  fill_with_whole_multiples(c.v, random);
  const int64_t H = call.dims.H;
  for (int64_t h = 0; h < H; ++h) {
    if (call.option == "alibi") c.alibi_slopes.push_back(0.125F * static_cast<float>(h + 1));
    if (call.option == "sink") c.sink.push_back(static_cast<float>(h % 3) - 1);
  }
  if (call.option == "window") c.scalars.window = {20, -1};
  if (call.option == "softcap") c.scalars.softcap = 2;
  if (call.option == "invariant") c.scalars.batch_invariant = true;
  if (call.option == "bias") c.bias = Array<4>(dtype, {1, H, call.dims.Lq, call.dims.Lk}).fill_normal(random);
  return c;
}

KVCacheConfig config_of(const Case& c, KVStorage storage, int64_t page_size = 64, const Streaming& streaming = {}) {
  return {.kv_heads = c.dims.Hk,
          .head_dim = c.dims.D,
          .value_dim = c.dims.Dv,
          .dtype = c.dtype,
          .page_size = page_size,
          .streaming = streaming,
          .storage = storage};
}

Results attend(const KVCache& cache, int64_t sequence, const Case& c) {
  Results r;
  r.out = Array<4>(c.dtype, {1, c.dims.H, c.dims.Lq, c.dims.Dv}).fill_with_nan();
  r.lse = Array<3>(lse_type(c.dtype), {1, c.dims.H, c.dims.Lq}).fill_with_nan();
  const std::vector<int64_t> sequences = {sequence}, starts = {0, c.dims.Lq};
  cache.attend(sequences, starts, c.q.view(), r.out.view(), r.lse.view(), c.options());
  return r;
}

Results attend_all(const Case& c, KVStorage storage, int64_t page_size = 64) {
  KVCache cache(config_of(c, storage, page_size));
  const int64_t sequence = cache.add();
  cache.append(sequence, c.k.view(), c.v.view());
  return attend(cache, sequence, c);
}

const Call kCalls[] = {
    {{.H = 4, .Hk = 4, .Lq = 1, .Lk = 300, .D = 64, .Dv = 64}, "plain"},
    {{.H = 2, .Hk = 1, .Lq = 1, .Lk = 2300, .D = 128, .Dv = 128}, "plain"},
    {{.H = 1, .Hk = 1, .Lq = 1, .Lk = 4500, .D = 32, .Dv = 20}, "plain", 16},
    {{.H = 6, .Hk = 2, .Lq = 1, .Lk = 129, .D = 64, .Dv = 40}, "window"},
    {{.H = 8, .Hk = 1, .Lq = 1, .Lk = 70, .D = 80, .Dv = 17}, "softcap", 7},
    {{.H = 3, .Hk = 1, .Lq = 2, .Lk = 65, .D = 48, .Dv = 1}, "alibi"},
    {{.H = 4, .Hk = 2, .Lq = 4, .Lk = 64, .D = 40, .Dv = 33}, "bias", 1},
    {{.H = 2, .Hk = 2, .Lq = 1, .Lk = 63, .D = 17, .Dv = 64}, "sink"},
    {{.H = 2, .Hk = 2, .Lq = 1, .Lk = 1, .D = 1, .Dv = 1}, "plain"},
    {{.H = 4, .Hk = 2, .Lq = 60, .Lk = 300, .D = 64, .Dv = 64}, "plain"},
    {{.H = 4, .Hk = 2, .Lq = 130, .Lk = 130, .D = 24, .Dv = 16}, "softcap", 16},
    {{.H = 3, .Hk = 1, .Lq = 100, .Lk = 270, .D = 128, .Dv = 8}, "window", 5},
    {{.H = 4, .Hk = 2, .Lq = 2, .Lk = 290, .D = 64, .Dv = 64}, "invariant"},
    {{.H = 4, .Hk = 2, .Lq = 50, .Lk = 290, .D = 32, .Dv = 64}, "invariant", 16},
};

TEST(Int8Cache, WholeMultiplesOfTheirScaleLoseNothing) {
  for (const DType dtype : kTypes)
    for (const Call& call : kCalls) {
      const Case c = case_of(call, dtype);
      const Oracle oracle(c, false);
      for_each_isa([&](const std::string& isa) {
        const Results actual = attend_all(c, KVStorage::int8, call.page_size);
        oracle.expect(actual, isa);
        if (call.option == "invariant") {
          EXPECT_TRUE(same_results(actual, attend_all(c, KVStorage::exact))) << c.name() << " on " << isa;
        }
      });
    }
}

/// A row as it is stored, by the formula.
void round_row(Array<4>& x, int64_t h, int64_t t) {
  const int64_t n = x.size()[3];
  float largest = 0;
  for (int64_t d = 0; d < n; ++d) largest = std::max(largest, std::abs(static_cast<float>(x.get({0, h, t, d}))));
  const float scale = largest / 127;
  for (int64_t d = 0; d < n; ++d) {
    const auto number = static_cast<float>(x.get({0, h, t, d}));
    const float stored = scale * (scale > 0 ? std::nearbyint(number / scale) : 0);
    EXPECT_LE(std::abs(stored - number), largest * (1 / 254.0 + kRoundings * kUnit32));
    x.set({0, h, t, d}, stored);
  }
}

TEST(Int8Cache, RowsAreRoundedToMultiplesOfTheLargestOverOneHundredTwentySeven) {
  for (const Call& call : kCalls) {
    Case c = case_of(call, DType::float64);
    Random random(7);
    for (Array<4>* x : {&c.k, &c.v}) {
      *x = Array<4>(DType::float64, x->size()).fill_normal(random);
      for (int64_t d = 0; d < x->size()[3]; ++d) x->set({0, 0, 0, d}, 0);  // a row of zeros
    }
    const Results actual = attend_all(c, KVStorage::int8, call.page_size);
    for (int64_t h = 0; h < c.dims.Hk; ++h)
      for (int64_t t = 0; t < c.dims.Lk; ++t) round_row(c.k, h, t), round_row(c.v, h, t);
    Oracle(c, false).expect(actual, active_isa());
  }
}

/// However the tokens come, in whatever pages, and after a fork.
TEST(Int8Cache, BitsDoNotDependOnPagesAppendsAndForks) {
  const Call call = {{.H = 6, .Hk = 2, .Lq = 1, .Lk = 150, .D = 64, .Dv = 24}, "plain"};
  for (const DType dtype : kTypes) {
    const Case c = case_of(call, dtype);
    for_each_isa([&](const std::string& isa) {
      const Results whole = attend_all(c, KVStorage::int8);
      for (const int64_t page_size : {1, 7, 64, 1000}) {
        KVCache cache(config_of(c, KVStorage::int8, page_size));
        const int64_t first = cache.add();
        const auto append = [&](int64_t sequence, int64_t begin, int64_t count) {
          cache.append(sequence, part_of(c.k.view(), 2, begin, count), part_of(c.v.view(), 2, begin, count));
        };
        for (int64_t t = 0; t < 100; ++t) append(first, t, 1);
        const int64_t second = cache.fork(first, 90);
        append(first, 0, 50);  // other tokens
        append(second, 90, 60);
        EXPECT_TRUE(same_results(attend(cache, second, c), whole)) << c.name() << " on " << isa;
        EXPECT_FALSE(same_results(attend(cache, first, c), whole)) << c.name() << " on " << isa;
      }
    });
  }
}

TEST(Int8Cache, StreamsAsAnExactOneDoes) {
  const Call call = {{.H = 4, .Hk = 2, .Lq = 1, .Lk = 90, .D = 32, .Dv = 16}, "invariant"};
  for (const DType dtype : kTypes) {
    const Case c = case_of(call, dtype);
    std::vector<Results> results;
    for (const KVStorage storage : {KVStorage::exact, KVStorage::int8}) {
      KVCache cache(config_of(c, storage, 4, {.sink_tokens = 3, .window = 20}));
      const int64_t sequence = cache.add();
      cache.append(sequence, c.k.view(), c.v.view());
      results.push_back(attend(cache, sequence, c));
    }
    EXPECT_TRUE(same_results(results[0], results[1])) << c.name();
  }
}

/// A key or value with a number that is not finite is NaN as a whole, and reaches those who attend to it alone.
TEST(Int8Cache, NonFiniteNumbersStayWhereTheyAre) {
  for (const DType dtype : kTypes)
    for (const int64_t queries : {1, 3, 40})
      for (const double bad : {kNaN, kInf, -kInf})
        for (const bool in_keys : {true, false}) {
          Case c = case_of({{.H = 2, .Hk = 2, .Lq = queries, .Lk = 100, .D = 32, .Dv = 32}, "window"}, dtype);
          const Case good = c;
          (in_keys ? c.k : c.v).set({0, 1, 75, 5}, bad);
          for_each_isa([&](const std::string& isa) {
            const Results actual = attend_all(c, KVStorage::int8), clean = attend_all(good, KVStorage::int8);
            for (int64_t h = 0; h < 2; ++h)
              for (int64_t i = 0; i < queries; ++i) {
                const int64_t place = 100 - queries + i;
                const bool reached = h == 1 && place >= 75 && place - 20 <= 75;
                for (int64_t d = 0; d < 32; ++d) {
                  const double x = actual.out.get({0, h, i, d});
                  if (reached) ASSERT_TRUE(std::isnan(x)) << c.name() << ", query " << i << " on " << isa;
                  else ASSERT_EQ(x, clean.out.get({0, h, i, d})) << c.name() << ", query " << i << " on " << isa;
                }
              }
          });
        }
}

TEST(Int8Cache, HasTheStatisticsOfItsRows) {
  for (const DType dtype : kTypes) {
    const Case c = case_of({{.H = 4, .Hk = 2, .Lq = 30, .Lk = 300, .D = 32, .Dv = 16}, "invariant"}, dtype);
    std::vector<Array<3>> entropies;
    for (const KVStorage storage : {KVStorage::exact, KVStorage::int8}) {
      KVCache cache(config_of(c, storage, 16));
      const std::vector<int64_t> sequences = {cache.add()}, starts = {0, c.dims.Lq};
      cache.append(sequences[0], c.k.view(), c.v.view());
      const Results r = attend(cache, sequences[0], c);
      entropies.emplace_back(lse_type(dtype), Shape<3>{1, 4, 30});
      cache.statistics(sequences, starts, c.q.view(), r.lse.view(), {.rows = {.entropy = entropies.back().view()}},
                       c.options());
    }
    EXPECT_TRUE(same_bits(entropies[0], entropies[1])) << c.name();
  }
}

TEST(Int8Cache, HoldsWhatItIsSaidToHold) {
  const Case c = case_of({{.H = 2, .Hk = 2, .Lq = 1, .Lk = 100, .D = 64, .Dv = 64}, "plain"}, DType::float32);
  KVCache cache(config_of(c, KVStorage::int8));
  EXPECT_EQ(cache.config().page_bytes(), 64 * 2 * 2 * (64 + 4));
  EXPECT_EQ(config_of(c, KVStorage::exact).page_bytes(), 64 * 2 * 2 * 64 * 4);
}

}  // namespace
}  // namespace attn::test
