// One row and few rows of the same keys have kernels of their own: the same results within the same bounds, from any
// memory, and for any cut into pages the same bits.
#include <gtest/gtest.h>

#include "support/checks.h"

namespace attn::test {
namespace {

const DType kTypes[] = {DType::float32, DType::bfloat16, DType::float16};

// Queries that share their keys: each is a path of the kernels, or is between two.
const int64_t kGroups[] = {1, 2, 3, 4, 7, 8};

/// One query a head, `group` heads for every head of keys.
Case one_token(const char* feature, int64_t group, int64_t keys, int64_t D, int64_t Dv, DType dtype,
               double q_scale = 1) {
  return make_case(feature_named(feature), {.B = 2, .H = 3 * group, .Hk = 3, .Lq = 1, .Lk = keys, .D = D, .Dv = Dv},
                   dtype, static_cast<uint64_t>(keys * 1000 + D), q_scale);
}

/// body(x, y, z) for a sample of all combinations.
template <class X, class Y, class Z, class Body>
void sample_combinations(const Share& share, const X& xs, const Y& ys, const Z& zs, const Body& body) {
  const auto ny = static_cast<int64_t>(std::size(ys)), nz = static_cast<int64_t>(std::size(zs));
  const int64_t grid = static_cast<int64_t>(std::size(xs)) * ny * nz;
  sample(grid, share,
         [&](int64_t i) { body(std::data(xs)[i / (ny * nz)], std::data(ys)[i / nz % ny], std::data(zs)[i % nz]); });
}

/// Every number of keys left over, of a vector and of a block,
TEST(FewRows, IsWithinTheBoundsOfTheReference) {
  const int64_t counts[] = {1, 2, 7, 15, 16, 17, 31, 33, 64, 100, 255, 256, 257, 300, 513, 2049};
  sample_combinations({.quick = 30, .normal = 144, .seconds = 60}, kTypes, kGroups, counts,
                      [](DType dtype, int64_t group, int64_t keys) {
                        Oracle(one_token("none", group, keys, 24, 20, dtype), false).expect_on_every_isa();
                      });
}

/// and every width of a head.
TEST(FewRows, OfEveryWidth) {
  const int64_t widths[] = {1, 3, 8, 15, 16, 17, 32, 40, 64, 65, 100, 128, 144, 200, 256};
  sample_combinations({.quick = 30, .normal = 135, .seconds = 60}, kTypes, kGroups, widths,
                      [](DType dtype, int64_t group, int64_t width) {
                        Oracle(one_token("none", group, 37, width, 257 - width, dtype), false).expect_on_every_isa();
                      });
}

/// Sharp distributions, whose reference moves in every block.
TEST(FewRows, FollowsItsMaximum) {
  const double scales[] = {8, 100};
  sample_combinations({.quick = 9, .normal = 36, .seconds = 60}, kTypes, kGroups, scales,
                      [](DType dtype, int64_t group, double q_scale) {
                        Oracle(one_token("none", group, 900, 32, 32, dtype, q_scale), false).expect_on_every_isa();
                      });
}

/// The intervals of a window, a length and an alignment begin and end anywhere; other options have other kernels.
TEST(FewRows, WithEveryOption) {
  const int64_t groups[] = {1, 4};
  sample_combinations({.quick = 40, .normal = 132, .seconds = 60}, features(), kTypes, groups,
                      [](const Feature& feature, DType dtype, int64_t group) {
                        if (std::string(feature.name).find("packed") != std::string::npos)
                          return;  // packs several sequences
                        Oracle(one_token(feature.name, group, 331, 32, 48, dtype), false).expect_on_every_isa();
                      });
}

/// Keys and values of one sequence in pages, attended to by its last query.
Results from_pages(const Case& c, int64_t page_size) {
  KVCache cache(
      {.kv_heads = c.dims.Hk, .head_dim = c.dims.D, .value_dim = c.dims.Dv, .dtype = c.dtype, .page_size = page_size});
  const int64_t sequence = cache.add();
  cache.append(sequence, c.k.view(), c.v.view());
  Results r;
  r.out = Array<4>(c.dtype, {1, c.dims.H, 1, c.dims.Dv}).fill_with_nan();
  r.lse = Array<3>(lse_type(c.dtype), {1, c.dims.H, 1}).fill_with_nan();
  const std::vector<int64_t> sequences = {sequence}, starts = {0, 1};
  cache.attend(sequences, starts, c.q.view(), r.out.view(), r.lse.view(),
               {.causal = true, .alignment = Alignment::bottom_right});
  return r;
}

TEST(FewRows, PagesDoNotChangeItsBits) {
  const int64_t counts[] = {1, 15, 33, 300, 700};
  sample_combinations({.quick = 20, .normal = 90, .seconds = 60}, kTypes, kGroups, counts,
                      [](DType dtype, int64_t group, int64_t keys) {
                        const Dims dims = {.B = 1, .H = 2 * group, .Hk = 2, .Lq = 1, .Lk = keys, .D = 16, .Dv = 12};
                        const Case c = make_case(feature_named("none"), dims, dtype, static_cast<uint64_t>(keys));
                        for_each_isa([&](const std::string& isa) {
                          const Results whole = run(c, false);
                          for (int64_t page_size : {1, 7, 16, 64})
                            EXPECT_TRUE(same_results(from_pages(c, page_size), whole))
                                << c.name() << " in pages of " << page_size << " on " << isa;
                        });
                      });
}

/// x [B, H, L, n] in the memory of models, [B, L, H, n].
Array<4> of_models(const Array<4>& x) {
  const Shape<4> size = x.size();
  Array<4> y(x.dtype(), {size[0], size[2], size[1], size[3]});
  for (int64_t b = 0; b < size[0]; ++b)
    for (int64_t h = 0; h < size[1]; ++h)
      for (int64_t i = 0; i < size[2]; ++i)
        for (int64_t d = 0; d < size[3]; ++d) y.set({b, i, h, d}, x.get({b, h, i, d}));
  return y;
}

ConstView<4> as_heads(const Array<4>& y) {
  const ConstView<4> v = y.view();
  return {v.data, v.dtype, {v.size[0], v.size[2], v.size[1], v.size[3]}, {v.stride[0], v.stride[2], v.stride[1], 1}};
}

/// Rows far apart, and a head and a sequence without the others.
TEST(FewRows, MemoryAndNeighboursDoNotChangeItsBits) {
  const int64_t counts[] = {37, 300};
  sample_combinations({.quick = 6, .normal = 18, .seconds = 60}, kTypes, kGroups, counts,
                      [](DType dtype, int64_t group, int64_t keys) {
                        const Case c = one_token("none", group, keys, 64, 64, dtype);
                        const Array<4> k = of_models(c.k), v = of_models(c.v);
                        for_each_isa([&](const std::string& isa) {
                          const Results whole = run(c, false);
                          for (int64_t i = 0; i < c.dims.B * c.dims.Hk; ++i) {
                            const int64_t b = i / c.dims.Hk, h = i % c.dims.Hk;
                            const auto alone = [&](const ConstView<4>& x, int64_t heads) {
                              return part_of(part_of(x, 0, b, 1), 1, h * heads, heads);
                            };
                            Array<4> out(dtype, {1, group, 1, c.dims.Dv});
                            attention(alone(c.q.view(), group), alone(as_heads(k), 1), alone(as_heads(v), 1),
                                      out.fill_with_nan().view());
                            for (int64_t g = 0; g < group; ++g)
                              for (int64_t d = 0; d < c.dims.Dv; ++d)
                                EXPECT_EQ(out.get({0, g, 0, d}), whole.out.get({b, h * group + g, 0, d}))
                                    << name_of(dtype) << ", " << group << " rows, on " << isa;
                          }
                        });
                      });
}

/// On every instruction set, heads whose keys are between each other against the same heads apart.
void expect_bits_of_heads_apart(const Case& c, std::initializer_list<int> thread_counts) {
  const Array<4> k = of_models(c.k), v = of_models(c.v);
  for_each_isa([&](const std::string& isa) {
    const Results apart = run(c, false);
    for (int threads : thread_counts) {
      set_thread_count(threads);
      Results r = empty_results(c, c.dtype, false);
      attention(c.q.view(), as_heads(k), as_heads(v), r.out.view(), r.lse.view(), c.options());
      EXPECT_TRUE(same_results(r, apart)) << c.name() << ", " << threads << " threads, on " << isa;
    }
    set_thread_count(0);
  });
}

const DType kAllTypes[] = {DType::float32, DType::bfloat16, DType::float16, DType::float64};

/// Such heads are walked together, by one thread or several: every number of heads and keys left over, more heads than
/// a walk takes,
TEST(FewRows, InterleavedHeadsHaveTheBitsOfHeadsApart) {
  const int64_t groups[] = {1, 4, 8, 60};  // 60 rows have other kernels
  const Dims shapes[] = {{.B = 2, .Hk = 3, .Lk = 37, .D = 24, .Dv = 20},
                         {.B = 1, .Hk = 70, .Lk = 60, .D = 32, .Dv = 32},
                         {.B = 1, .Hk = 2, .Lk = 4200, .D = 17, .Dv = 40}};
  sample_combinations(
      {.quick = 12, .normal = 48, .seconds = 60}, kAllTypes, groups, shapes, [](DType dtype, int64_t group, Dims dims) {
        if (group > 4 && dims.Hk > 3) return;
        dims.H = dims.Hk * group;
        expect_bits_of_heads_apart(make_case(feature_named("none"), dims, dtype, static_cast<uint64_t>(group)), {1, 3});
      });
}

/// every option,
TEST(FewRows, InterleavedHeadsWithEveryOption) {
  const int64_t groups[] = {2, 20};
  sample_combinations({.quick = 40, .normal = 120, .seconds = 60}, features(), kAllTypes, groups,
                      [](const Feature& feature, DType dtype, int64_t group) {
                        expect_bits_of_heads_apart(one_token(feature.name, group, 331, 32, 48, dtype), {1});
                      });
}

/// and what is not finite, or outgrows its references, of some heads and in some blocks.
TEST(FewRows, InterleavedHeadsOfDifferentNumbers) {
  for (DType dtype : kAllTypes) {
    expect_bits_of_heads_apart(one_token("none", 4, 1900, 32, 32, dtype, 100), {1});
    Case c = one_token("none", 2, 300, 16, 16, dtype, 100);
    c.v.set({0, 0, 7, 3}, kNaN);
    c.v.set({0, 1, 299, 5}, kInf);
    c.k.set({1, 2, 40, 0}, -kInf);
    expect_bits_of_heads_apart(c, {1});
  }
}

/// As above, with more keys than the caches of a core hold, and than those of all.
TEST(FewRows, InterleavedHeadsFromMemory) {
  for (int64_t keys : {1200, 2100}) {  // 9.4 and 16.4 MiB
    const Dims dims = {.B = 1, .H = 8, .Hk = 8, .Lq = 1, .Lk = keys, .D = 128, .Dv = 128};
    expect_bits_of_heads_apart(make_case(feature_named("none"), dims, DType::float32, 1), {2});
  }
  const Dims dims = {.B = 1, .H = 16, .Hk = 8, .Lq = 1, .Lk = 2100, .D = 128, .Dv = 128};
  expect_bits_of_heads_apart(make_case(feature_named("none"), dims, DType::float32, 1), {2});
}

/// A score of +infinity wins alone, NaN stays NaN in its own feature or row; `at` is a key and g a row of a group.
void expect_infinities_and_nan(DType dtype, int64_t group, int64_t at, const std::string& isa) {
  const auto make = [&] { return one_token("none", group, 300, 16, 16, dtype); };
  Case c = make();
  c.v.set({0, 0, at, 3}, kNaN);
  Results r = run(c, false);
  for (int64_t g = 0; g < group; ++g)
    for (int64_t d = 0; d < 16; ++d) EXPECT_EQ(std::isnan(r.out.get({0, g, 0, d})), d == 3) << isa;
  c = make();
  c.k.set({0, 1, at, 2}, kNaN);
  r = run(c, false);
  for (int64_t g = 0; g < group; ++g) {
    EXPECT_TRUE(std::isnan(r.out.get({0, group + g, 0, 0}))) << isa;
    EXPECT_FALSE(std::isnan(r.out.get({0, g, 0, 0}))) << isa;
  }
  c = make();
  c.k.set({0, 2, at, 0}, kInf);
  for (int64_t g = 0; g < group; ++g) c.q.set({0, 2 * group + g, 0, 0}, 1);
  r = run(c, false);
  for (int64_t g = 0; g < group; ++g)
    for (int64_t d = 0; d < 16; ++d) EXPECT_EQ(r.out.get({0, 2 * group + g, 0, d}), c.v.get({0, 2, at, d})) << isa;
}

TEST(FewRows, MeetsInfinitiesAndNaN) {
  const int64_t keys[] = {0, 5, 299};
  sample_combinations({.quick = 12, .normal = 27, .seconds = 60}, kTypes, kGroups, keys,
                      [](DType dtype, int64_t group, int64_t at) {
                        for_each_isa([&](const std::string& isa) { expect_infinities_and_nan(dtype, group, at, isa); });
                      });
}

TEST(FewRows, AreNamed) {
  const auto path = [](int64_t group, const AttentionOptions& options) {
    const Case c = one_token("none", group, 300, 16, 16, DType::float32);
    return explain(c.q.view(), c.k.view(), c.v.view(), options).path;
  };
  EXPECT_NE(path(1, {}).find("one row"), std::string::npos) << path(1, {});
  EXPECT_EQ(path(1, {.batch_invariant = true}).find("one row"), std::string::npos);
  EXPECT_EQ(path(1, {.softcap = 3}).find("one row"), std::string::npos);
  if (active_isa() != "avx2") return;  // float32 has an order of its own for few rows there
  EXPECT_NE(path(4, {}).find("any order"), std::string::npos) << path(4, {});
  EXPECT_EQ(path(4, {.batch_invariant = true}).find("any order"), std::string::npos);
}

}  // namespace
}  // namespace attn::test
