// Matrix tiles: float32 in parts and its three precisions, numbers out of range, and, on a CPU that has tiles, the
// instructions beside their twin and what else lives on their thread.
#include <gtest/gtest.h>

#include <cmath>

#if defined(__x86_64__) && defined(__linux__)
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#endif

#include "support/checks.h"

namespace attn::test {
namespace {

bool has(const std::string& isa) {
  const std::vector<std::string> isas = available_isas();
  return std::find(isas.begin(), isas.end(), isa) != isas.end();
}

/// Brings back the instruction set that was in use.
class WithIsa {
 public:
  explicit WithIsa(const std::string& isa) : before_(active_isa()) { set_isa(isa); }
  ~WithIsa() { set_isa(before_); }

 private:
  std::string before_;
};

Case float32_case(int64_t length, uint64_t seed, const char* feature = "none") {
  return make_case(feature_named(feature), {.H = 2, .Hk = 1, .Lq = length, .Lk = length, .D = 64, .Dv = 64},
                   DType::float32, seed);
}

double rms_error(const Array<4>& actual, const Array<4>& expected) {
  double sum = 0;
  for (int64_t n = 0; n < actual.count(); ++n) sum += std::pow(actual.get(n) - expected.get(n), 2);
  return std::sqrt(sum / static_cast<double>(actual.count()));
}

struct Errors {
  double out, dq, dk, dv;
};

Errors errors_of(Case c, const Results& exact, const std::string& isa, Float32Precision precision) {
  const WithIsa with(isa);
  c.scalars.float32_precision = precision;
  const Results r = run(c);
  return {rms_error(r.out, exact.out), rms_error(r.dq, exact.dq), rms_error(r.dk, exact.dk), rms_error(r.dv, exact.dv)};
}

/// Three parts: no error above that of multiply-adds, whose rms is near 2^-24. Two parts lose 2^-17 of a number at
/// most, one 2^-9. Each is what it says, no better and no worse.
TEST(TilePrecision, EachIsAsAccurateAsItsParts) {
  if (!has("amx_emulated")) GTEST_SKIP() << "needs AVX-512";
  for (const char* feature : {"none", "causal top_left", "softcap"}) {
    const Case c = float32_case(by_effort(256, 320, 1024), 21, feature);
    const Results exact = run_reference(c);
    const Errors plain = errors_of(c, exact, "avx512", Float32Precision::full);
    const Errors full = errors_of(c, exact, "amx_emulated", Float32Precision::full);
    const Errors high = errors_of(c, exact, "amx_emulated", Float32Precision::high);
    const Errors fast = errors_of(c, exact, "amx_emulated", Float32Precision::fast);
    for (double Errors::*what : {&Errors::out, &Errors::dq, &Errors::dk, &Errors::dv}) {
      EXPECT_LE(full.*what, plain.*what) << feature;
      EXPECT_GT(high.*what, 2 * full.*what) << feature;
      EXPECT_LT(high.*what, 0x1p7 * plain.*what) << feature;
      EXPECT_GT(fast.*what, 32 * high.*what) << feature;
      EXPECT_LT(fast.*what, 0x1p16 * plain.*what) << feature;
    }
  }
}

/// Fewer rows than it takes to pay for the parts, and rows that shall have the same bits however many they are, are
/// plain float32.
TEST(TilePrecision, FewRowsAndBatchInvarianceUseMultiplyAdds) {
  if (!has("amx_emulated")) GTEST_SKIP() << "needs AVX-512";
  const auto on = [](const std::string& isa, const Case& c) {
    const WithIsa with(isa);
    return run(c);
  };
  const Case few = float32_case(120, 22);
  EXPECT_TRUE(same_results(on("amx_emulated", few), on("avx512", few)));
  Case many = float32_case(300, 23);
  EXPECT_FALSE(same_results(on("amx_emulated", many), on("avx512", many)));
  many.scalars.batch_invariant = true;
  EXPECT_TRUE(same_results(on("amx_emulated", many), on("avx512", many)));
}

/// Rows that are too few for tiles of 16-bit numbers go to AVX-512, but for those that shall have the same bits.
TEST(TilePrecision, ShortSequencesAreWidened) {
  if (!has("amx_emulated")) GTEST_SKIP() << "needs AVX-512";
  const auto gradients_are_widened = [](Case c, bool batch_invariant) {
    const WithIsa with("amx_emulated");
    c.scalars.batch_invariant = batch_invariant;
    const std::string path = explain_backward(c.q.view(), c.k.view(), c.v.view(), c.options()).path;
    return path.find("fused, float32 multiply-adds of") != std::string::npos;
  };
  const auto on = [](const std::string& isa, const Case& c) {
    const WithIsa with(isa);
    return run(c);
  };
  for (auto [dtype, rows] : {std::pair{DType::bfloat16, 16}, {DType::float16, 48}}) {
    const auto of_length = [&](int64_t length) {
      return make_case(feature_named("none"), {.H = 2, .Hk = 2, .Lq = length, .Lk = 40, .D = 64, .Dv = 64}, dtype, 32);
    };
    EXPECT_TRUE(gradients_are_widened(of_length(rows), false)) << name_of(dtype);
    EXPECT_FALSE(gradients_are_widened(of_length(rows), true)) << name_of(dtype);
    EXPECT_FALSE(gradients_are_widened(of_length(rows + 1), false)) << name_of(dtype);
    const bool forward_too = dtype == DType::float16;
    EXPECT_EQ(same_results(on("amx_emulated", of_length(rows)), on("avx512", of_length(rows))), forward_too);
  }
}

/// Powers of two on the inputs, which leave the exact result as it is, or multiply it: beyond the range of parts, at
/// its edges, inside.
TEST(TileRange, AnyMagnitudeIsRight) {
  struct Magnitudes {
    int query, key, value;
  };
  for (const Magnitudes& m : {Magnitudes{-70, 70, 0},
                              {61, -50, 0},
                              {58, 58, 0},
                              {-47, -47, 0},
                              {-52, -52, 0},
                              {-60, 20, 0},
                              {-60, -60, 0},
                              {64, 56, 0},
                              {0, 0, -80},
                              {0, 0, -88},
                              {0, 0, -95},
                              {0, 0, -100},
                              {0, 0, 57},
                              {0, 0, 70},
                              {0, 0, 120}}) {
    Case c = make_case(feature_named("causal top_left"), {.H = 2, .Hk = 1, .Lq = 70, .Lk = 70, .D = 40, .Dv = 24},
                       DType::float32, 24);
    for (int64_t n = 0; n < c.q.count(); ++n) c.q.set(n, std::ldexp(c.q.get(n), m.query));
    for (int64_t n = 0; n < c.k.count(); ++n) c.k.set(n, std::ldexp(c.k.get(n), m.key));
    for (int64_t n = 0; n < c.v.count(); ++n) c.v.set(n, std::ldexp(c.v.get(n), m.value));
    c.scalars.scale = std::ldexp(0.15, -m.query - m.key);
    SCOPED_TRACE(testing::Message() << "2^" << m.query << ", 2^" << m.key << ", 2^" << m.value);
    Oracle(std::move(c), false).expect_on_every_isa();
  }
}

/// Rows and elements out of range among others that are not: their own results are right, and no others change a bit.
TEST(TileRange, WhatIsOutOfRangeStaysByItself) {
  if (!has("amx_emulated_parts")) GTEST_SKIP() << "needs AVX-512";
  const WithIsa with("amx_emulated_parts");
  const Case clean =
      make_case(feature_named("none"), {.H = 1, .Hk = 1, .Lq = 70, .Lk = 100, .D = 48, .Dv = 32}, DType::float32, 25);
  const Results before = run(clean, false);
  Case queries = clean;
  for (int64_t i : {0, 17, 33, 69}) queries.q.set({0, 0, i, 5}, 0x1p62);
  const Results after = run(queries, false);
  for (int64_t i = 0; i < 70; ++i) {
    if (i == 0 || i == 17 || i == 33 || i == 69) continue;
    for (int64_t d = 0; d < 32; ++d) EXPECT_EQ(after.out.get({0, 0, i, d}), before.out.get({0, 0, i, d})) << i;
  }
  Oracle(queries, false).expect(after, "amx_emulated_parts");
  Case mixed = clean;  // large and tiny elements: each column of values by itself
  for (int64_t j = 0; j < 100; j += 7) {
    mixed.v.set({0, 0, j, 3}, 0x1p70);
    mixed.v.set({0, 0, j, 4}, 0x1p-120);
  }
  const Results wide = run(mixed, false);
  for (int64_t d = 0; d < 32; ++d) {
    if (d == 3 || d == 4) continue;
    for (int64_t i = 0; i < 70; ++i)
      EXPECT_EQ(wide.out.get({0, 0, i, d}), before.out.get({0, 0, i, d})) << i << ", " << d;
  }
}

/// Two keys, in two blocks, whose scores are so large that twice their reference is no number: each has half the
/// weight.
TEST(TileRange, ReferencesMayBeHuge) {
  if (!has("amx_emulated")) GTEST_SKIP() << "needs AVX-512";
  Case c =
      make_case(feature_named("none"), {.H = 1, .Hk = 1, .Lq = 40, .Lk = 300, .D = 32, .Dv = 32}, DType::bfloat16, 29);
  for (int64_t n = 0; n < c.q.count(); ++n) c.q.set(n, 0x1p60);
  for (int64_t j : {5, 290})
    for (int64_t d = 0; d < 32; ++d) c.k.set({0, 0, j, d}, 0x1.c4p61);
  c.scalars.scale = 2;
  Results r[2];
  for (int n = 0; n < 2; ++n) {
    const WithIsa with(n == 0 ? "avx512" : "amx_emulated");
    r[n] = run(c, false);
  }
  EXPECT_TRUE(std::isfinite(r[0].lse.get({0, 0, 7})));
  for (int64_t n = 0; n < r[0].out.count(); ++n) EXPECT_EQ(r[0].out.get(n), r[1].out.get(n));
}

Results float16_on(const std::string& isa, const Case& c) {
  const WithIsa with(isa);
  return run(c, false);
}

/// Tiles of float16 take the forward; weights that dropout may make larger than float16 has go through two parts.
TEST(Float16Tiles, TakeTheForwardWhereWeightsFit) {
  if (!has("amx_emulated_fp16")) GTEST_SKIP() << "needs AVX-512";
  Case c = make_case(feature_named("dropout"), {.H = 2, .Hk = 1, .Lq = 200, .Lk = 300, .D = 64, .Dv = 64},
                     DType::float16, 27);
  EXPECT_FALSE(same_results(float16_on("amx_emulated_fp16", c), float16_on("amx_emulated", c)));
  c.scalars.dropout = 0.9999;
  EXPECT_TRUE(same_results(float16_on("amx_emulated_fp16", c), float16_on("amx_emulated", c)));
}

/// Subnormal numbers count.
TEST(Float16Tiles, TinyQueriesAreRight) {
  if (!has("amx_emulated_fp16")) GTEST_SKIP() << "needs AVX-512";
  Case c =
      make_case(feature_named("none"), {.H = 1, .Hk = 1, .Lq = 40, .Lk = 70, .D = 64, .Dv = 32}, DType::float16, 28);
  for (int64_t n = 0; n < c.q.count(); ++n) c.q.set(n, std::ldexp(c.q.get(n), -17));
  c.scalars.scale = std::ldexp(0.125, 17);
  Oracle(c, false).expect(float16_on("amx_emulated_fp16", c), "amx_emulated_fp16");
}

/// A product with values waits for the scores of the next panel, if there is one: rows in a call of many panels and of
/// one have the same bits. With documents, some panels have masked tiles and some not; 44 dims and 300 keys are not
/// whole tiles; the last panel is narrower.
TEST(LateValues, NoBitTellsWhenTheyWereAdded) {
  if (!has("amx_emulated_parts")) GTEST_SKIP() << "needs AVX-512";
  const WithIsa with("amx_emulated_parts");
  for (DType dtype : {DType::bfloat16, DType::float16, DType::float32}) {
    for (int64_t Dv : {64, 44}) {
      for (const char* feature : {"none", "documents"}) {
        const Case c =
            make_case(feature_named(feature), {.H = 1, .Hk = 1, .Lq = 140, .Lk = 556, .D = 64, .Dv = Dv}, dtype, 26);
        const Results together = run(c, false);
        for (int64_t first = 0; first < 140; first += 32) {
          const int64_t rows = std::min<int64_t>(32, 140 - first);
          Array<4> out(dtype, {1, 1, rows, Dv});
          AttentionOptions options = c.options();
          if (options.query_segment_ids) options.query_segment_ids = part_of(options.query_segment_ids, 1, first, rows);
          attention(part_of(c.q.view(), 2, first, rows), c.k.view(), c.v.view(), out.view(), options);
          for (int64_t n = 0; n < out.count(); ++n)
            EXPECT_EQ(out.get(n), together.out.get({0, 0, first + n / Dv, n % Dv}))
                << name_of(dtype) << ", " << feature;
        }
      }
    }
  }
}

/// Rows that see their first key in slices of their own, and whose scores then rise until sums outgrow their limit: a
/// row's references are its own, whatever shares its panel, and it is right.
TEST(TileReferences, AreARowsOwn) {
  if (!has("amx_emulated_parts")) GTEST_SKIP() << "needs AVX-512";
  const WithIsa with("amx_emulated_parts");
  const int64_t queries = 64, keys = 700;
  for (DType dtype : {DType::bfloat16, DType::float16, DType::float32}) {
    Case c = make_case(feature_named("none"), {.H = 1, .Hk = 1, .Lq = queries, .Lk = keys, .D = 8, .Dv = 8}, dtype, 30);
    c.scalars.batch_invariant = true;
    c.mask = Array<4>(DType::boolean, {1, 1, queries, keys});
    for (int64_t i = 0; i < queries; ++i) {
      c.q.set({0, 0, i, 0}, 1);
      for (int64_t j = 0; j < keys; ++j) c.mask.set({0, 0, i, j}, j >= i * 37 % 300 && j % 11 != i % 11);
    }
    for (int64_t j = 0; j < keys; ++j) c.k.set({0, 0, j, 0}, static_cast<double>(j) / 8);
    const Results together = run(c, false);
    Oracle(c, false).expect(together, "amx_emulated_parts");
    for (int64_t rows : {1, 5, 32}) {
      for (int64_t first = 0; first + rows <= queries; first += rows) {
        Array<4> out(dtype, {1, 1, rows, 8});
        AttentionOptions options = c.options();
        options.mask = part_of(options.mask, 2, first, rows);
        attention(part_of(c.q.view(), 2, first, rows), c.k.view(), c.v.view(), out.view(), options);
        for (int64_t n = 0; n < out.count(); ++n)
          ASSERT_EQ(out.get(n), together.out.get({0, 0, first + n / 8, n % 8}))
              << rows << " rows from " << first << ", " << name_of(dtype);
      }
    }
  }
}

#if defined(__x86_64__) && defined(__linux__)

Case hardware_case(DType dtype) {
  return make_case(feature_named("causal top_left"), {.H = 2, .Hk = 1, .Lq = 300, .Lk = 300, .D = 72, .Dv = 40}, dtype,
                   31);
}

constexpr DType kTypes[] = {DType::float32, DType::bfloat16, DType::float16};

/// The instructions and their twin, bit for bit.
TEST(Tiles, AreWhatTheirTwinIs) {
  if (!has("amx")) GTEST_SKIP() << "this CPU has no matrix tiles";
  for (DType dtype : kTypes) {
    const Case c = hardware_case(dtype);
    const auto on = [&](const std::string& isa) {
      const WithIsa with(isa);
      return run(c);
    };
    EXPECT_TRUE(same_results(on("amx"), on("amx_emulated"))) << name_of(dtype);
    if (dtype == DType::float16 && has("amx_fp16")) {
      EXPECT_TRUE(same_results(on("amx_fp16"), on("amx_emulated_fp16"))) << "tdpfp16ps";
    }
  }
}

struct TileConfiguration {
  alignas(64) unsigned char bytes[64] = {};
};

/// A host may have configured tiles on this thread: it finds them as they were.
TEST(Tiles, AHostsConfigurationIsPutBack) {
  if (!has("amx")) GTEST_SKIP() << "this CPU has no matrix tiles";
  const WithIsa with("amx");
  const Case c = hardware_case(DType::bfloat16);
  TileConfiguration mine, after, none;
  mine.bytes[0] = 1;
  for (int t = 0; t < 3; ++t) {
    mine.bytes[16 + 2 * t] = 32;
    mine.bytes[48 + t] = 7;
  }
  asm volatile("ldtilecfg %0" ::"m"(mine));
  run(c);
  asm volatile("sttilecfg %0" : "=m"(after));
  asm volatile("ldtilecfg %0" ::"m"(none));
  EXPECT_EQ(std::memcmp(mine.bytes, after.bytes, sizeof mine.bytes), 0);
  run(c);
  asm volatile("sttilecfg %0" : "=m"(after));
  EXPECT_EQ(std::memcmp(none.bytes, after.bytes, sizeof none.bytes), 0) << "and nothing where there was nothing";
}

/// In a forked child, in a thread of the host, and with a signal every 100 us, whose handler computes on vectors.
TEST(Tiles, SurviveForksThreadsAndSignals) {
  if (!has("amx")) GTEST_SKIP() << "this CPU has no matrix tiles";
  const WithIsa with("amx");
  const Case c = hardware_case(DType::bfloat16);
  const Results expected = run(c);
  const pid_t child = fork();
  if (child == 0) _exit(same_results(run(c), expected) ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  std::thread([&] { EXPECT_TRUE(same_results(run(c), expected)); }).join();

  static volatile double sum = 0;
  struct sigaction action = {}, before = {};
  action.sa_handler = [](int) {
    for (int i = 1; i < 100; ++i) sum = sum + 1.0 / i;
  };
  sigaction(SIGALRM, &action, &before);
  const itimerval often = {{0, 100}, {0, 100}}, never = {};
  setitimer(ITIMER_REAL, &often, nullptr);
  for (int n = 0; n < 20; ++n) EXPECT_TRUE(same_results(run(c), expected));
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
}

#endif

}  // namespace
}  // namespace attn::test
