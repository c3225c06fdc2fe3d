// Who may see whom: rows that see nothing, poison after the mask, NaN in front of it, and the alignment of causal
// masks.
#include <gtest/gtest.h>

#include "support/checks.h"

namespace attn::test {
namespace {

/// Which pairs of a Case are allowed, by query row and by key/value row.
struct Visibility {
  const Dims d;
  const std::vector<bool> allowed;

  explicit Visibility(const Case& c) : d(c.dims), allowed(allowed_pairs(c)) {}

  bool pair(int64_t b, int64_t h, int64_t i, int64_t j) const { return allowed[((b * d.H + h) * d.Lq + i) * d.Lk + j]; }
  bool query_sees_something(int64_t b, int64_t h, int64_t i) const {
    for (int64_t j = 0; j < d.Lk; ++j)
      if (pair(b, h, i, j)) return true;
    return false;
  }
  bool key_is_seen(int64_t b, int64_t kv_head, int64_t j) const {
    const int64_t group = d.H / d.Hk;
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h)
      for (int64_t i = 0; i < d.Lq; ++i)
        if (pair(b, h, i, j)) return true;
    return false;
  }
};

template <class Body>
void for_each_row(int64_t batch, int64_t heads, int64_t rows, Body body) {
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t r = 0; r < rows; ++r) body(b, h, r);
}

void fill_row(Array<4>& array, int64_t b, int64_t h, int64_t r, double value) {
  for (int64_t d = 0; d < array.size()[3]; ++d) array.set({b, h, r, d}, value);
}

bool row_is_zero(const Array<4>& array, int64_t b, int64_t h, int64_t r) {
  for (int64_t d = 0; d < array.size()[3]; ++d)
    if (array.get({b, h, r, d}) != 0) return false;
  return true;
}

/// Small shapes and a few that reach over several tiles of any kernel.
std::vector<Dims> mask_dims() {
  std::vector<Dims> dims = small_dims();
  dims.push_back({.B = 1, .H = 2, .Hk = 1, .Lq = 150, .Lk = 530, .D = 16, .Dv = 8});
  return dims;
}

// --------------------------------------------------------------------------------------------------- rows without keys

/// A row that sees nothing is exactly 0 with lse -infinity (or the sink), and takes and gives no gradient.
TEST(MaskedRows, AreExactlyZero) {
  const std::vector<Dims> dims = mask_dims();
  const int64_t each = 2 * static_cast<int64_t>(dims.size()), grid = feature_count() * each;
  sample(grid, {.quick = grid / 6, .normal = grid / 3, .seconds = 60}, [&](int64_t n) {
    const DType dtype = n % 2 == 0 ? DType::float32 : DType::bfloat16;
    const Case c = make_case(features()[n / each], dims[n % each / 2], dtype, 400 + n);
    const Visibility visible(c);
    for_each_isa([&](const std::string& isa) {
      const Results r = run(c);
      const std::string where = c.name() + " on " + isa;
      for_each_row(c.dims.B, c.dims.H, c.dims.Lq, [&](int64_t b, int64_t h, int64_t i) {
        if (visible.query_sees_something(b, h, i)) return;
        EXPECT_TRUE(row_is_zero(r.out, b, h, i)) << where;
        EXPECT_TRUE(row_is_zero(r.dq, b, h, i)) << where;
        EXPECT_EQ(r.lse.get({b, h, i}), c.sink.empty() ? -kInf : double{c.sink[h]}) << where;
      });
      for_each_row(c.dims.B, c.dims.Hk, c.dims.Lk, [&](int64_t b, int64_t h, int64_t j) {
        if (visible.key_is_seen(b, h, j)) return;
        EXPECT_TRUE(row_is_zero(r.dk, b, h, j)) << where;
        EXPECT_TRUE(row_is_zero(r.dv, b, h, j)) << where;
      });
    });
  });
}

/// Ways to hide keys [first, end) from the queries that `hides` names; everything else sees everything.
struct Hiding {
  const char* name;
  int64_t first, end;                              // keys
  bool (*hides)(int64_t b, int64_t h, int64_t i);  // queries
};

const Hiding kHidings[] = {
    {"whole rows", 0, 600, [](int64_t, int64_t, int64_t i) { return i % 5 == 1; }},
    {"first tile", 0, 64, [](int64_t, int64_t, int64_t) { return true; }},
    {"first tile of some rows", 0, 256, [](int64_t, int64_t, int64_t i) { return i % 2 == 0; }},
    {"last tile", 512, 600, [](int64_t, int64_t, int64_t) { return true; }},
    {"a tile in the middle", 256, 512, [](int64_t, int64_t, int64_t i) { return i >= 48 && i < 96; }},
    {"whole batch row", 0, 600, [](int64_t b, int64_t, int64_t) { return b == 0; }},
    {"one head", 0, 600, [](int64_t, int64_t h, int64_t) { return h == 1; }},
    {"all but the last key", 0, 599, [](int64_t, int64_t, int64_t) { return true; }},
};

TEST(MaskedRows, TilesThatAreHidden) {
  for (const Hiding& hiding : kHidings)
    for (bool as_bias : {false, true}) {
      Case c = make_case(feature_named("none"), {.B = 2, .H = 2, .Hk = 1, .Lq = 100, .Lk = 600, .D = 16, .Dv = 16},
                         DType::float32, 11);
      c.feature = hiding.name;
      const Shape<4> pairs = {2, 2, 100, 600};
      c.mask = Array<4>(DType::boolean, pairs).fill(1);
      c.bias = Array<4>(DType::float32, pairs);
      for_each_row(2, 2, 100, [&](int64_t b, int64_t h, int64_t i) {
        for (int64_t j = hiding.first; j < hiding.end; ++j) {
          if (!hiding.hides(b, h, i)) continue;
          c.mask.set({b, h, i, j}, 0);
          c.bias.set({b, h, i, j}, -kInf);
        }
      });
      (as_bias ? c.mask : c.bias) = {};
      Oracle(std::move(c)).expect_on_every_isa();
    }
}

/// Hiding everything from some rows changes no bit of the others.
TEST(MaskedRows, OthersKeepTheirBits) {
  for_each_isa([](const std::string& isa) {
    Case c = make_case(feature_named("mask"), {.B = 2, .H = 2, .Hk = 1, .Lq = 60, .Lk = 300, .D = 16, .Dv = 16},
                       DType::float32, 12);
    const Results before = run(c, false);
    const auto is_hidden = [](int64_t i) { return i % 7 == 2; };
    for_each_row(2, 2, 60, [&](int64_t b, int64_t h, int64_t i) {
      if (is_hidden(i)) fill_row(c.mask, b, h, i, 0);
    });
    Results expected = before;
    for_each_row(2, 2, 60, [&](int64_t b, int64_t h, int64_t i) {
      if (!is_hidden(i)) return;
      fill_row(expected.out, b, h, i, 0);
      expected.lse.set({b, h, i}, -kInf);
    });
    EXPECT_TRUE(same_results(run(c, false), expected)) << isa;
  });
}

// -------------------------------------------------------------------------------------------------------------- poison

/// Writes `value` wherever nobody may look: unseen keys and values, queries that see nothing, biases of hidden pairs.
Case poisoned(Case c, const Visibility& visible, double value) {
  for_each_row(c.dims.B, c.dims.Hk, c.dims.Lk, [&](int64_t b, int64_t h, int64_t j) {
    if (visible.key_is_seen(b, h, j)) return;
    fill_row(c.k, b, h, j, value);
    fill_row(c.v, b, h, j, value);
  });
  for_each_row(c.dims.B, c.dims.H, c.dims.Lq, [&](int64_t b, int64_t h, int64_t i) {
    if (!visible.query_sees_something(b, h, i)) fill_row(c.q, b, h, i, value);
  });
  const bool bias_is_per_pair = c.bias.given() && c.bias.size() == Shape<4>{c.dims.B, c.dims.H, c.dims.Lq, c.dims.Lk};
  if (bias_is_per_pair)
    for (int64_t n = 0; n < c.bias.count(); ++n)
      if (!visible.allowed[n] && c.bias.get(n) != -kInf) c.bias.set(n, value);
  return c;
}

TEST(Poison, MaskedKeysChangeNoBit) {
  const std::vector<Dims> dims = mask_dims();
  const DType dtypes[] = {DType::float32, DType::bfloat16, DType::float16};
  const int64_t each = 3 * static_cast<int64_t>(dims.size()), grid = feature_count() * each;
  sample(grid, {.quick = grid / 9, .normal = grid / 4, .seconds = 60}, [&](int64_t n) {
    const DType dtype = dtypes[n % 3];
    Case c = make_case(features()[n / each], dims[n % each / 3], dtype, 500 + n);
    if (c.bias.given()) {  // per pair, so that some biases are hidden
      c.bias = Array<4>(DType::float32, {c.dims.B, c.dims.H, c.dims.Lq, c.dims.Lk});
      Random random(501 + n);
      c.bias.fill_normal(random);
    }
    const Visibility visible(c);
    const double large = dtype == DType::float16 ? 6e4 : 1e38;
    for_each_isa([&](const std::string& isa) {
      const Results clean = run(poisoned(c, visible, 0));
      for (double poison : {kNaN, kInf, -kInf, large})
        EXPECT_TRUE(same_results(run(poisoned(c, visible, poison)), clean))
            << poison << " in " << c.name() << " on " << isa;
    });
  });
}

// -------------------------------------------------------------------------------------------------- NaN in plain sight

/// One NaN in q, k, v or dout that somebody may see: NaN where the oracle has it, numbers everywhere else.
TEST(NaNVisible, InExactlyTheRowsThatSeeIt) {
  uint64_t seed = 600;
  for (const char* name :
       {"none", "causal top_left", "causal bottom_right", "window both", "key_length", "mask", "mask padding",
        "documents", "packed causal", "blocks", "bias -inf", "softcap", "everything"})
    for (const Dims& dims : mask_dims())
      for (DType dtype : {DType::float32, DType::bfloat16}) {
        const Case clean = make_case(feature_named(name), dims, dtype, seed++);
        for (Array<4> Case::*input : {&Case::q, &Case::k, &Case::v, &Case::dout}) {
          Case c = clean;
          Random random(seed, 2);
          (c.*input).set(random.below((c.*input).count()), kNaN);
          const Results reference = run_reference(c);
          for_each_isa([&](const std::string& isa) {
            const Results actual = run(c);
            const std::string where = c.name() + " on " + isa;
            EXPECT_TRUE(same_nans(actual.out.values(), reference.out.values())) << "out of " << where;
            EXPECT_TRUE(same_nans(actual.lse.values(), reference.lse.values())) << "lse of " << where;
            EXPECT_TRUE(same_nans(actual.dq.values(), reference.dq.values())) << "dq of " << where;
            EXPECT_TRUE(same_nans(actual.dk.values(), reference.dk.values())) << "dk of " << where;
            EXPECT_TRUE(same_nans(actual.dv.values(), reference.dv.values())) << "dv of " << where;
          });
        }
      }
}

TEST(NaNVisible, InABiasOrASink) {
  for_each_isa([](const std::string& isa) {
    Case c = make_case(feature_named("bias full"), small_dims()[0], DType::float32, 13);
    c.bias.set({1, 2, 5, 7}, kNaN);
    EXPECT_TRUE(same_nans(run(c, false).out.values(), run_reference(c, false).out.values())) << isa;
    Case s = make_case(feature_named("sink"), small_dims()[0], DType::float32, 14);
    s.sink[1] = static_cast<float>(kNaN);
    EXPECT_TRUE(same_nans(run(s, false).out.values(), run_reference(s, false).out.values())) << isa;
  });
}

// --------------------------------------------------------------------------------------------------- the literal masks

/// With q = 0 and the identity as values, out is the matrix of weights: who sees whom.
Values seen(int64_t Lq, int64_t Lk, const AttentionOptions& options) {
  Array<4> q(DType::float32, {1, 1, Lq, 1}), k(DType::float32, {1, 1, Lk, 1}), v(DType::float32, {1, 1, Lk, Lk});
  Array<4> out(DType::float32, {1, 1, Lq, Lk});
  for (int64_t j = 0; j < Lk; ++j) v.set({0, 0, j, j}, 1);
  attention(q.view(), k.view(), v.view(), out.view(), options);
  Values pairs = out.values();
  for (double& pair : pairs) pair = pair > 0;
  return pairs;
}

TEST(Causal, AlignmentsOfUnequalLengths) {
  const AttentionOptions top_left = {.causal = true, .alignment = Alignment::top_left};
  const AttentionOptions bottom_right = {.causal = true, .alignment = Alignment::bottom_right};
  for_each_isa([&](const std::string&) {
    EXPECT_EQ(seen(2, 5, top_left), (Values{1, 0, 0, 0, 0,  //
                                            1, 1, 0, 0, 0}));
    EXPECT_EQ(seen(2, 5, bottom_right), (Values{1, 1, 1, 1, 0,  //
                                                1, 1, 1, 1, 1}));
    EXPECT_EQ(seen(5, 2, top_left), (Values{1, 0, 1, 1, 1, 1, 1, 1, 1, 1}));
    EXPECT_EQ(seen(5, 2, bottom_right), (Values{0, 0, 0, 0, 0, 0, 1, 0, 1, 1}));
  });
}

TEST(Causal, WindowsCountKeysBesidesSelf) {
  const AttentionOptions window = {.window = {1, 2}, .alignment = Alignment::top_left};
  const int64_t offset = 2;
  const AttentionOptions shifted = {
      .causal = true, .window = {0, 3}, .alignment = Alignment::offset, .offset = {&offset, 1}};
  for_each_isa([&](const std::string&) {
    EXPECT_EQ(seen(3, 5, window), (Values{1, 1, 1, 0, 0,  //
                                          1, 1, 1, 1, 0,  //
                                          0, 1, 1, 1, 1}));
    EXPECT_EQ(seen(2, 5, shifted), (Values{0, 0, 1, 0, 0,  //
                                           0, 0, 0, 1, 0}));
  });
}

/// The same mask said in two ways gives the same bits where both become key intervals.
TEST(Causal, IsAWindow) {
  for_each_isa([](const std::string& isa) {
    for (const Dims& dims : mask_dims()) {
      Case causal = make_case(feature_named("causal bottom_right"), dims, DType::float32, 15), window = causal;
      window.scalars.causal = false;
      window.scalars.window.right = 0;
      EXPECT_TRUE(same_results(run(causal), run(window))) << isa;
    }
  });
}

}  // namespace
}  // namespace attn::test
