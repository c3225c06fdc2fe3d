// explain(): what a call will do, without running it; and the choice of instruction set.
#include <gtest/gtest.h>

#include "support/checks.h"

namespace attn::test {
namespace {

AttentionPlan plan(const Case& c) { return explain(c.q.view(), c.k.view(), c.v.view(), c.options()); }
AttentionPlan backward_plan(const Case& c) { return explain_backward(c.q.view(), c.k.view(), c.v.view(), c.options()); }

TEST(Explain, NamesTheInstructionSetThatRuns) {
  for_each_isa([](const std::string& isa) {
    EXPECT_EQ(active_isa(), isa);
    const AttentionPlan p = plan(make_case(feature_named("none"), small_dims()[0], DType::float32, 1));
    EXPECT_EQ(p.isa, isa);
    EXPECT_EQ(p.path.rfind(isa + ":", 0), 0) << p.path;
    EXPECT_GT(p.tasks, 0);
  });
}

TEST(Explain, TheBestComesFirstAndTheBaselineIsThere) {
  std::vector<std::string> isas = available_isas();
  ASSERT_FALSE(isas.empty());
  std::erase_if(isas, [](const std::string& isa) { return isa.starts_with("amx_emulated"); });  // the tests' own
#if defined(__aarch64__)
  EXPECT_EQ(isas.back(), "neon");  // which every 64-bit ARM has
#else
  if (!kSanitized) {  // ThreadSanitizer's build has only the sets that this machine prefers
    EXPECT_EQ(isas.back(), "baseline");
  }
#endif
  for (const std::string& isa : isas) EXPECT_EQ(std::count(isas.begin(), isas.end(), isa), 1);
}

/// Two flops for each multiply-add on an allowed pair.
TEST(Explain, CountsFlopsOnAllowedPairs) {
  uint64_t seed = 900;
  for (const Feature& feature : features())
    for (const Dims& dims : small_dims()) {
      const Case c = make_case(feature, dims, DType::float32, seed++);
      const Values biases = c.bias.values();  // one of -infinity is found while computing, not while planning
      if (std::count(biases.begin(), biases.end(), -kInf) > 0) continue;
      const std::vector<bool> allowed = allowed_pairs(c);
      const auto pairs = static_cast<double>(std::count(allowed.begin(), allowed.end(), true));
      EXPECT_EQ(plan(c).flops, 2 * pairs * static_cast<double>(c.dims.D + c.dims.Dv)) << c.name();
      const AttentionPlan backward = backward_plan(c);
      EXPECT_EQ(backward.flops, 2 * pairs * static_cast<double>(3 * c.dims.D + 2 * c.dims.Dv)) << c.name();
    }
}

/// The unit that multiplies, and how many of its products one takes: where tiles are, six of bfloat16 for one of
/// float32, four or three for one of float16; elsewhere one.
TEST(Explain, CountsWhatTheUnitMultiplies) {
  for_each_isa([](const std::string& isa) {
    if (isa.find("fp16") != std::string::npos) return;  // whole products of float16, in the forward alone
    const bool tiles = isa.starts_with("amx");
    for (DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64}) {
      const Case c =
          make_case(feature_named("none"), {.H = 2, .Hk = 1, .Lq = 300, .Lk = 300, .D = 16, .Dv = 16}, dtype, 4);
      const AttentionPlan forward = plan(c);
      const AttentionPlan backward = backward_plan(c);
      const bool half_tiles = tiles && size_of(dtype) == 2 && forward.unit_type == DType::bfloat16;
      double once = 1, again = 1;
      if (tiles && dtype == DType::float32) once = again = 6;
      if (half_tiles && dtype == DType::float16) once = 3.5, again = 3.4;  // scores take four, two of five products
      EXPECT_EQ(forward.unit_flops, once * forward.flops) << forward.path;
      EXPECT_EQ(backward.unit_flops, again * backward.flops) << backward.path;
      EXPECT_TRUE(dtype != DType::float32 || forward.unit_type == (tiles ? DType::bfloat16 : DType::float32));
      EXPECT_EQ(forward.unit_type == DType::float64, dtype == DType::float64);
    }
  });
}

/// Extra memory is for tiles, not for the matrix: sixteen times the pairs take no more than four times the scratch.
TEST(Explain, ScratchIsLinearInTheLengths) {
  for (const char* name : {"none", "mask padding", "bias shared", "dropout", "causal top_left"}) {
    const auto square = [&](int64_t length) {
      return make_case(feature_named(name), {.H = 2, .Hk = 2, .Lq = length, .Lk = length, .D = 4, .Dv = 4},
                       DType::float32, 2);
    };
    const Case of_500 = square(500), of_2000 = square(2000);
    for_each_isa([&](const std::string& isa) {
      EXPECT_LE(plan(of_2000).scratch_bytes, 4 * plan(of_500).scratch_bytes) << name << " on " << isa;
      EXPECT_LE(backward_plan(of_2000).scratch_bytes, 4 * backward_plan(of_500).scratch_bytes) << name << " on " << isa;
    });
  }
}

/// Nothing depends on how many threads there are, except the scratch, which is theirs.
TEST(Explain, WorkIsCutByShape) {
  const Case c =
      make_case(feature_named("none"), {.H = 2, .Hk = 1, .Lq = 3, .Lk = 9000, .D = 8, .Dv = 8}, DType::float32, 3);
  set_thread_count(1);
  const AttentionPlan one = plan(c);
  set_thread_count(8);
  const AttentionPlan eight = plan(c);
  set_thread_count(0);
  EXPECT_EQ(one.tasks, eight.tasks);
  EXPECT_EQ(one.path, eight.path);
  EXPECT_LE(one.scratch_bytes, eight.scratch_bytes);
}

}  // namespace
}  // namespace attn::test
