// The paged cache and decoding: pages against contiguous keys, one token at a time against all at once.
#include <gtest/gtest.h>

#include "support/checks.h"

namespace attn::test {
namespace {

/// Keys, values and queries of a sequence of tokens.
Case tokens(int64_t length, DType dtype, uint64_t seed) {
  Case c = make_case(feature_named("causal top_left"), {.H = 6, .Hk = 2, .Lq = length, .Lk = length, .D = 16, .Dv = 12},
                     dtype, seed);
  c.scalars.batch_invariant = true;
  return c;
}

KVCacheConfig config_for(const Case& c, int64_t page_size, int64_t max_pages = 0) {
  return {.kv_heads = c.dims.Hk,
          .head_dim = c.dims.D,
          .value_dim = c.dims.Dv,
          .dtype = c.dtype,
          .page_size = page_size,
          .max_pages = max_pages};
}

void append(KVCache& cache, int64_t sequence, const Case& c, int64_t first, int64_t count) {
  cache.append(sequence, part_of(c.k.view(), 2, first, count), part_of(c.v.view(), 2, first, count));
}

/// Attends with the queries first .. first + count of one sequence.
Results attend(const KVCache& cache, int64_t sequence, const Case& c, int64_t first, int64_t count) {
  Results r;
  r.out = Array<4>(c.dtype, {1, c.dims.H, count, c.dims.Dv}).fill_with_nan();
  r.lse = Array<3>(lse_type(c.dtype), {1, c.dims.H, count}).fill_with_nan();
  const std::vector<int64_t> sequences = {sequence}, starts = {0, count};
  cache.attend(sequences, starts, part_of(c.q.view(), 2, first, count), r.out.view(), r.lse.view(),
               {.causal = true, .alignment = Alignment::bottom_right, .batch_invariant = true});
  return r;
}

/// The rows of `whole` from `first` on.
Results rows_of(const Results& whole, int64_t first, int64_t count) {
  Results part;
  Shape<4> size = whole.out.size();
  size[2] = count;
  part.out = Array<4>(whole.out.dtype(), size);
  part.lse = Array<3>(whole.lse.dtype(), {size[0], size[1], count});
  for (int64_t b = 0; b < size[0]; ++b)
    for (int64_t h = 0; h < size[1]; ++h)
      for (int64_t i = 0; i < count; ++i) {
        part.lse.set({b, h, i}, whole.lse.get({b, h, first + i}));
        for (int64_t d = 0; d < size[3]; ++d) part.out.set({b, h, i, d}, whole.out.get({b, h, first + i, d}));
      }
  return part;
}

const DType kTypes[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16};
const int64_t kPageSizes[] = {1, 7, 16, 64};

/// Scores that leap above all before them, at key `at`.
void raise_scores(Case& c, int64_t at) {
  for (int64_t h = 0; h < c.dims.Hk; ++h)
    for (int64_t d = 0; d < c.dims.D; ++d)
      c.k.set({0, h, at, d}, 4 * c.q.get({0, h * c.dims.H / c.dims.Hk, c.dims.Lq - 1, d}));
}

TEST(Decode, AScoreMayLeapInAnyPageOfALaterBlock) {
  for_each_isa([](const std::string& isa) {
    for (DType dtype : kTypes) {
      for (int64_t leap : {260, 300, 399}) {
        Case c = tokens(400, dtype, 77);
        raise_scores(c, leap);
        KVCache cache(config_for(c, 16));
        const int64_t sequence = cache.add();
        append(cache, sequence, c, 0, 400);
        const Results paged = attend(cache, sequence, c, 399, 1);
        EXPECT_TRUE(same_results(paged, rows_of(run(c, false), 399, 1)))
            << name_of(dtype) << " at " << leap << ", " << isa;
      }
    }
  });
}

TEST(Decode, PagesAreLikeContiguousKeys) {
  for_each_isa([](const std::string& isa) {
    for (DType dtype : kTypes)
      for (int64_t page_size : kPageSizes)
        for (int64_t length : {1, 15, 64, 300}) {
          const Case c = tokens(length, dtype, length);
          KVCache cache(config_for(c, page_size));
          const int64_t sequence = cache.add();
          append(cache, sequence, c, 0, length);
          EXPECT_EQ(cache.length(sequence), length);
          EXPECT_EQ(cache.pages_in_use(), (length + page_size - 1) / page_size);
          EXPECT_TRUE(same_results(attend(cache, sequence, c, 0, length), run(c, false)))
              << c.name() << " in pages of " << page_size << " on " << isa;
        }
  });
}

/// A token computed when it is the newest has the bits that it has in the prefill of the whole.
TEST(Decode, OneByOneIsThePrefillBitwise) {
  for_each_isa([](const std::string& isa) {
    for (DType dtype : kTypes)
      for (int64_t page_size : kPageSizes) {
        const int64_t length = by_effort(20, 150, 400);
        const Case c = tokens(length, dtype, 51);
        const Results prefill = run(c, false);
        KVCache cache(config_for(c, page_size));
        const int64_t sequence = cache.add();
        for (int64_t t = 0; t < length; ++t) {
          append(cache, sequence, c, t, 1);
          ASSERT_TRUE(same_results(attend(cache, sequence, c, t, 1), rows_of(prefill, t, 1)))
              << "token " << t << " of " << c.name() << " in pages of " << page_size << " on " << isa;
        }
      }
  });
}

/// The same without a cache: one query at the bottom right of its prefix.
TEST(Decode, PrefixesWithoutACache) {
  for_each_isa([](const std::string& isa) {
    for (DType dtype : kTypes) {
      const Case c = tokens(270, dtype, 52);
      const Results prefill = run(c, false);
      for (int64_t t : {0, 1, 62, 63, 64, 65, 255, 256, 257, 269}) {
        Results r = rows_of(prefill, t, 1);
        r.out.fill_with_nan();
        attention(part_of(c.q.view(), 2, t, 1), part_of(c.k.view(), 2, 0, t + 1), part_of(c.v.view(), 2, 0, t + 1),
                  r.out.view(), r.lse.view(),
                  {.causal = true, .alignment = Alignment::bottom_right, .batch_invariant = true});
        EXPECT_TRUE(same_results(r, rows_of(prefill, t, 1))) << "token " << t << " of " << c.name() << " on " << isa;
      }
    }
  });
}

/// Sequences of different lengths and numbers of queries in one call, in any order.
TEST(Decode, RaggedBatch) {
  for_each_isa([](const std::string& isa) {
    for (DType dtype : kTypes) {
      struct Entry {
        int64_t length, queries;
      };
      const std::vector<Entry> entries = {{1, 1}, {90, 5}, {300, 1}, {64, 64}, {17, 0}, {0, 2}, {33, 7}};
      std::vector<Case> cases;
      KVCache cache({.kv_heads = 2, .head_dim = 16, .value_dim = 12, .dtype = dtype, .page_size = 16});
      std::vector<int64_t> sequences, starts = {0};
      for (const Entry& entry : entries) {
        cases.push_back(tokens(entry.length, dtype, 60 + cases.size()));
        sequences.push_back(cache.add());
        append(cache, sequences.back(), cases.back(), 0, entry.length);
        starts.push_back(starts.back() + entry.queries);
      }
      Random random(61);
      const int64_t total = starts.back();
      const Array<4> q = Array<4>(dtype, {1, 6, total, 16}).fill_normal(random);
      Results all;
      all.out = Array<4>(dtype, {1, 6, total, 12}).fill_with_nan();
      all.lse = Array<3>(lse_type(dtype), {1, 6, total}).fill_with_nan();
      cache.attend(sequences, starts, q.view(), all.out.view(), all.lse.view());
      for (size_t s = 0; s < entries.size(); ++s) {
        const auto [length, queries] = entries[s];
        if (queries == 0) continue;
        Results alone = rows_of(all, starts[s], queries);
        const Results together = alone;
        attention(part_of(q.view(), 2, starts[s], queries), cases[s].k.view(), cases[s].v.view(), alone.out.view(),
                  alone.lse.view(), {.causal = true, .alignment = Alignment::bottom_right});
        EXPECT_TRUE(same_results(alone, together)) << "sequence " << s << ", " << name_of(dtype) << " on " << isa;
      }
    }
  });
}

TEST(Decode, OptionsCountSequences) {
  for_each_isa([](const std::string& isa) {
    KVCache cache({.kv_heads = 1, .head_dim = 8, .page_size = 7});
    const Dims dims = {.H = 2, .Hk = 1, .Lq = 30, .Lk = 30, .D = 8, .Dv = 8};
    const Case c = make_case(feature_named("none"), dims, DType::float32, 53);
    const std::vector<int64_t> sequences = {cache.add(), cache.add()}, starts = {0, 10, 30}, offset = {3, 9};
    append(cache, sequences[0], c, 0, 30);
    append(cache, sequences[1], c, 5, 20);
    const std::vector<float> slopes = {0.5F, 0.25F}, sink = {1, -1};
    AttentionOptions options = {.scale = 0.2,
                                .softcap = 4,
                                .window = {6, 2},
                                .alignment = Alignment::offset,
                                .offset = offset,
                                .alibi_slopes = slopes,
                                .sink = sink};
    Random random(54);
    const Array<4> bias =
        Array<4>(DType::float32, {1, 2, 30, 30}).fill_normal(random);  // keys of each sequence from 0 on
    options.bias = bias.view();
    Array<4> out(DType::float32, {1, 2, 30, 8}), expected = out;
    cache.attend(sequences, starts, c.q.view(), out.view(), options);
    for (int s = 0; s < 2; ++s) {
      const int64_t first = starts[s], count = starts[s + 1] - first, keys = s == 0 ? 30 : 20, from = s == 0 ? 0 : 5;
      options.offset = {&offset[s], 1};
      options.bias = part_of(part_of(bias.view(), 2, first, count), 3, 0, keys);
      attention(part_of(c.q.view(), 2, first, count), part_of(c.k.view(), 2, from, keys),
                part_of(c.v.view(), 2, from, keys), part_of(expected.view(), 2, first, count), options);
    }
    EXPECT_TRUE(same_bits(out, expected)) << isa;
  });
}

// ---------------------------------------------------------------------------------------------------- the cache itself

TEST(Cache, ForksShareAndThenPart) {
  const Case c = tokens(100, DType::float32, 54);
  for (int64_t page_size : kPageSizes) {
    KVCache cache(config_for(c, page_size));
    const int64_t parent = cache.add();
    append(cache, parent, c, 0, 60);
    const int64_t pages = cache.pages_in_use();
    for (int64_t shared : {0, 1, 33, 60}) {
      const int64_t child = cache.fork(parent, shared);
      EXPECT_EQ(cache.length(child), shared);
      EXPECT_LE(cache.pages_in_use(), pages + 1) << "whole pages are shared";
      append(cache, child, c, 70, 20);   // its own continuation
      append(cache, parent, c, 60, 10);  // and the parent's
      Case alone = tokens(shared + 20, DType::float32, 55);
      KVCache plain(config_for(c, page_size));
      const int64_t sequence = plain.add();
      append(plain, sequence, c, 0, shared);
      append(plain, sequence, c, 70, 20);
      EXPECT_TRUE(same_results(attend(cache, child, alone, 0, 5), attend(plain, sequence, alone, 0, 5))) << shared;
      cache.remove(child);
      EXPECT_TRUE(
          same_results(attend(cache, parent, c, 60, 10), rows_of(run(tokens(100, DType::float32, 54), false), 60, 10)))
          << "the parent does not see its child";
      cache.truncate(parent, 60);
    }
    EXPECT_EQ(cache.pages_in_use(), pages);
    cache.remove(parent);
    EXPECT_EQ(cache.pages_in_use(), 0);
  }
}

TEST(Cache, TruncateForgets) {
  const Case c = tokens(80, DType::float32, 56), other = tokens(80, DType::float32, 57);
  for (int64_t page_size : kPageSizes) {
    KVCache cache(config_for(c, page_size));
    const int64_t sequence = cache.add();
    append(cache, sequence, c, 0, 50);
    append(cache, sequence, other, 50, 30);
    cache.truncate(sequence, 50);
    EXPECT_EQ(cache.length(sequence), 50);
    EXPECT_EQ(cache.pages_in_use(), (50 + page_size - 1) / page_size);
    append(cache, sequence, c, 50, 30);
    EXPECT_TRUE(same_results(attend(cache, sequence, c, 0, 80), run(c, false))) << page_size;
  }
}

/// A fork keeps what its parent forgets.
TEST(Cache, TruncatingTheParentLeavesTheFork) {
  const Case c = tokens(40, DType::float32, 58), other = tokens(40, DType::float32, 59);
  for (int64_t page_size : kPageSizes) {
    KVCache cache(config_for(c, page_size));
    const int64_t parent = cache.add();
    append(cache, parent, c, 0, 40);
    const int64_t child = cache.fork(parent, 40);
    cache.truncate(parent, 10);
    append(cache, parent, other, 10, 30);
    EXPECT_TRUE(same_results(attend(cache, child, c, 0, 40), run(c, false))) << page_size;
  }
}

/// Append is all or nothing: over the limit, or with wrong shapes, nothing has changed.
TEST(Cache, AppendIsAllOrNothing) {
  const Case c = tokens(64, DType::float32, 70);
  KVCache cache(config_for(c, 16, 3));
  const int64_t sequence = cache.add();
  append(cache, sequence, c, 0, 40);
  const Results before = attend(cache, sequence, c, 0, 40);
  EXPECT_THROW(append(cache, sequence, c, 40, 24), Error) << "a fourth page";
  EXPECT_THROW(cache.append(sequence, part_of(c.k.view(), 2, 40, 2), part_of(c.v.view(), 2, 40, 3)), Error);
  EXPECT_THROW(cache.append(sequence, part_of(c.k.view(), 3, 0, 15), c.v.view()), Error);
  EXPECT_THROW(append(cache, sequence + 1, c, 40, 1), Error) << "no such sequence";
  EXPECT_EQ(cache.length(sequence), 40);
  EXPECT_EQ(cache.pages_in_use(), 3);
  EXPECT_TRUE(same_results(attend(cache, sequence, c, 0, 40), before));
  append(cache, sequence, c, 40, 8);
  EXPECT_EQ(cache.length(sequence), 48) << "and the room that is left can be used";
}

TEST(Cache, AppendReadsAnyStrides) {
  const Case c = tokens(30, DType::bfloat16, 71);
  Array<4> k(DType::bfloat16, {1, 30, 2, 16});  // tokens first, as projections leave them
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t t = 0; t < 30; ++t)
      for (int64_t d = 0; d < 16; ++d) k.set({0, t, h, d}, c.k.get({0, h, t, d}));
  KVCache cache(config_for(c, 7));
  const int64_t sequence = cache.add();
  cache.append(sequence, {k.view().data, DType::bfloat16, {1, 2, 30, 16}, {960, 16, 32, 1}}, c.v.view());
  EXPECT_TRUE(same_results(attend(cache, sequence, c, 0, 30), run(c, false)));
}

TEST(Cache, MovesWithItsSequences) {
  const Case c = tokens(20, DType::float32, 72);
  KVCache cache(config_for(c, 7));
  const int64_t sequence = cache.add();
  append(cache, sequence, c, 0, 20);
  KVCache moved = std::move(cache);
  EXPECT_EQ(moved.length(sequence), 20);
  EXPECT_TRUE(same_results(attend(moved, sequence, c, 0, 20), run(c, false)));
  KVCache assigned(config_for(c, 3));
  assigned = std::move(moved);
  assigned.remove(sequence);
  EXPECT_EQ(assigned.pages_in_use(), 0);
}

}  // namespace
}  // namespace attn::test
