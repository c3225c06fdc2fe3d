// The streaming cache: every query against the oracle over the tokens that it keeps, gathered into plain arrays.
#include <gtest/gtest.h>

#include "support/checks.h"
#include "support/errors.h"

namespace attn::test {
namespace {

constexpr int64_t kTokens = 26;

/// A text and options whose bias is [1, H, kTokens, kept]: rows of queries, columns of cache positions.
Case text_with(const std::string& option, DType dtype, const Streaming& streaming) {
  const Dims dims = {.H = 6, .Hk = 2, .Lq = kTokens, .Lk = kTokens, .D = 16, .Dv = 12};
  Case c = make_case(feature_named("none"), dims, dtype, 80);
  c.feature = "streaming " + option;
  c.scalars.causal = true;
  c.scalars.alignment = Alignment::bottom_right;
  c.scalars.batch_invariant = true;
  Random random(81);
  if (option == "alibi") c.alibi_slopes = {0.5F, 0.25F, 1, 0.1F, 2, 0.7F};
  if (option == "window") c.scalars.window = {streaming.kept() - 2, -1};
  if (option == "sink") c.sink = {1, -1, 0, 2, 0.5F, 3};
  if (option == "bias") c.bias = Array<4>(dtype, {1, 6, kTokens, streaming.kept()}).fill_normal(random);
  if (option == "softcap") c.scalars.softcap = 2;
  return c;
}

/// The tokens that query `t` attends to.
std::vector<int64_t> kept_tokens(const Streaming& streaming, int64_t t) {
  std::vector<int64_t> tokens;
  for (int64_t j = 0; j <= t; ++j)
    if (j < streaming.sink_tokens || j > t - streaming.window || t < streaming.kept()) tokens.push_back(j);
  return tokens;
}

/// The call of query `t` over its tokens alone.
Case gathered(const Case& text, const Streaming& streaming, int64_t t) {
  const std::vector<int64_t> tokens = kept_tokens(streaming, t);
  const auto n = static_cast<int64_t>(tokens.size());
  Case c = text;
  c.dims.Lq = 1;
  c.dims.Lk = n;
  const auto rows_of = [](const Array<4>& x, const std::vector<int64_t>& rows) {
    Array<4> some(x.dtype(), {1, x.size()[1], static_cast<int64_t>(rows.size()), x.size()[3]});
    for (int64_t h = 0; h < x.size()[1]; ++h)
      for (size_t r = 0; r < rows.size(); ++r)
        for (int64_t d = 0; d < x.size()[3]; ++d)
          some.set({0, h, static_cast<int64_t>(r), d}, x.get({0, h, rows[r], d}));
    return some;
  };
  c.q = rows_of(text.q, {t});
  c.k = rows_of(text.k, tokens);
  c.v = rows_of(text.v, tokens);
  c.dout = rows_of(text.dout, {t});
  c.dlse = Array<3>(text.dlse.dtype(), {1, c.dims.H, 1});
  if (!text.bias.given()) return c;
  c.bias = Array<4>(text.dtype, {1, 6, 1, n});
  for (int64_t h = 0; h < 6; ++h)
    for (int64_t j = 0; j < n; ++j) c.bias.set({0, h, 0, j}, text.bias.get({0, h, t, j}));
  return c;
}

KVCacheConfig config_of(const Case& c, int64_t page_size, const Streaming& streaming) {
  return {.kv_heads = c.dims.Hk,
          .head_dim = c.dims.D,
          .value_dim = c.dims.Dv,
          .dtype = c.dtype,
          .page_size = page_size,
          .streaming = streaming};
}

void append(KVCache& cache, int64_t sequence, const Case& c, int64_t first, int64_t count) {
  cache.append(sequence, part_of(c.k.view(), 2, first, count), part_of(c.v.view(), 2, first, count));
}

/// Appends the tokens first .. first + count and attends with their queries; one result per token.
std::vector<Results> go_on(KVCache& cache, int64_t sequence, const Case& c, int64_t first, int64_t count) {
  append(cache, sequence, c, first, count);
  AttentionOptions options = c.options();
  if (options.bias) {
    const int64_t longest = std::min(first + count, c.bias.size()[3]);
    options.bias = part_of(part_of(options.bias, 2, first, count), 3, 0, longest);
  }
  Array<4> out = Array<4>(c.dtype, {1, c.dims.H, count, c.dims.Dv}).fill_with_nan(), without_lse = out;
  Array<3> lse = Array<3>(lse_type(c.dtype), {1, c.dims.H, count}).fill_with_nan();
  const std::vector<int64_t> one = {sequence}, starts = {0, count};
  const ConstView<4> q = part_of(c.q.view(), 2, first, count);
  cache.attend(one, starts, q, out.view(), lse.view(), options);
  cache.attend(one, starts, q, without_lse.view(), options);
  EXPECT_TRUE(same_bits(out, without_lse)) << c.name();
  std::vector<Results> all(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    Results& r = all[static_cast<size_t>(i)];
    r.out = Array<4>(c.dtype, {1, c.dims.H, 1, c.dims.Dv});
    r.lse = Array<3>(lse.dtype(), {1, c.dims.H, 1});
    for (int64_t h = 0; h < c.dims.H; ++h) {
      r.lse.set({0, h, 0}, lse.get({0, h, i}));
      for (int64_t d = 0; d < c.dims.Dv; ++d) r.out.set({0, h, 0, d}, out.get({0, h, i, d}));
    }
  }
  return all;
}

/// The text in appends of these sizes, the last one repeated.
std::vector<Results> in_appends(KVCache& cache, const Case& c, const std::vector<int64_t>& sizes) {
  const int64_t sequence = cache.add();
  std::vector<Results> all;
  for (size_t n = 0; all.size() < kTokens; ++n) {
    const auto first = static_cast<int64_t>(all.size());
    const int64_t count = std::min(sizes[std::min(n, sizes.size() - 1)], kTokens - first);
    for (Results& each : go_on(cache, sequence, c, first, count)) all.push_back(std::move(each));
  }
  return all;
}

TEST(Streaming, AQueryAttendsToTheTokensThatAreKept) {
  const std::pair<const char*, Streaming> calls[] = {{"plain", {2, 5}},   {"plain", {0, 4}}, {"plain", {1, 1}},
                                                     {"alibi", {2, 5}},   {"bias", {3, 6}},  {"window", {2, 5}},
                                                     {"softcap", {4, 9}}, {"sink", {4, 9}}};
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    for (const auto& [option, streaming] : calls) {
      const Case text = text_with(option, dtype, streaming);
      std::vector<Oracle> oracles;
      for (int64_t t = 0; t < kTokens; ++t) oracles.emplace_back(gathered(text, streaming, t), false);
      for_each_isa([&, streaming = streaming](const std::string& isa) {
        std::vector<Results> first;
        for (const int64_t page_size : {1, 4, 7, 64})
          for (const std::vector<int64_t>& appends : std::vector<std::vector<int64_t>>{{1}, {3, 9, 1, 2}, {kTokens}}) {
            KVCache cache(config_of(text, page_size, streaming));
            const std::vector<Results> all = in_appends(cache, text, appends);
            for (int64_t t = 0; t < kTokens && first.empty(); ++t)
              oracles[static_cast<size_t>(t)].expect(all[static_cast<size_t>(t)], isa);
            if (first.empty()) first = all;
            for (size_t t = 0; t < all.size(); ++t)
              ASSERT_TRUE(same_results(all[t], first[t]))
                  << text.name() << ", token " << t << " in pages of " << page_size << " on " << isa;
          }
      });
    }
  }
}

TEST(Streaming, WithoutEvictionItIsTheOrdinaryCache) {
  for_each_isa([](const std::string& isa) {
    const Streaming streaming = {.sink_tokens = 4, .window = kTokens - 4};
    for (const char* option : {"plain", "alibi", "bias", "window"}) {
      const Case text = text_with(option, DType::float32, streaming);
      KVCache keeps(config_of(text, 7, {})), streams(config_of(text, 7, streaming));
      const std::vector<Results> ordinary = in_appends(keeps, text, {5, 1}), same = in_appends(streams, text, {5, 1});
      for (size_t t = 0; t < same.size(); ++t)
        EXPECT_TRUE(same_results(same[t], ordinary[t])) << option << ", token " << t << " on " << isa;
    }
  });
}

TEST(Streaming, SequencesOfABatchAreOnTheirOwn) {
  const Streaming streaming = {.sink_tokens = 2, .window = 5};
  const Case text = text_with("plain", DType::float32, streaming);
  KVCache cache(config_of(text, 4, streaming));
  std::vector<int64_t> sequences, starts = {0};
  std::vector<std::pair<int64_t, int64_t>> tokens;  // first and count of each sequence's queries
  const std::pair<int64_t, int64_t> appends[] = {{20, 1}, {3, 2}, {5, 6}, {0, 20}, {18, 0}};
  for (const auto& [before, count] : appends) {
    sequences.push_back(cache.add());
    append(cache, sequences.back(), text, 0, before);
    append(cache, sequences.back(), text, before, count);
    tokens.emplace_back(before, count);
    starts.push_back(starts.back() + count);
  }
  const int64_t total = starts.back();
  Array<4> q(DType::float32, {1, 6, total, 16}), out(DType::float32, {1, 6, total, 12});
  for (size_t s = 0; s < tokens.size(); ++s)
    for (int64_t h = 0; h < 6; ++h)
      for (int64_t i = 0; i < tokens[s].second; ++i)
        for (int64_t d = 0; d < 16; ++d) q.set({0, h, starts[s] + i, d}, text.q.get({0, h, tokens[s].first + i, d}));
  cache.attend(sequences, starts, q.view(), out.view(), text.options());
  KVCache alone(config_of(text, 4, streaming));
  const std::vector<Results> expected = in_appends(alone, text, {1});
  for (size_t s = 0; s < tokens.size(); ++s)
    for (int64_t i = 0; i < tokens[s].second; ++i)
      for (int64_t h = 0; h < 6; ++h)
        for (int64_t d = 0; d < 12; ++d)
          ASSERT_EQ(out.get({0, h, starts[s] + i, d}),
                    expected[static_cast<size_t>(tokens[s].first + i)].out.get({0, h, 0, d}))
              << "sequence " << s << ", query " << i;
}

/// Keys of two halves: one that queries of sink tokens see, and one that those of the last tokens see.
TEST(Streaming, SinkTokensHaveQueriesOfTheirOwn) {
  const Streaming streaming = {.sink_tokens = 3, .window = 6};
  Case text = text_with("plain", DType::float32, streaming);
  Array<4> sink_q = text.q;
  const Array<4> both = text.q;
  for (int64_t h = 0; h < 6; ++h)
    for (int64_t t = 0; t < kTokens; ++t)
      for (int64_t d = 0; d < 16; ++d) (d < 8 ? text.q : sink_q).set({0, h, t, d}, 0);
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t t = 0; t < kTokens; ++t)
      for (int64_t d = 0; d < 16; ++d)
        if ((t < streaming.sink_tokens) != (d < 8)) text.k.set({0, h, t, d}, 0);
  KVCache with_own(config_of(text, 4, streaming)), with_one(config_of(text, 4, streaming));
  Case whole = text;
  whole.q = both;
  const std::vector<Results> expected = in_appends(with_one, whole, {1});
  const int64_t sequence = with_own.add();
  append(with_own, sequence, text, 0, kTokens - 4);
  append(with_own, sequence, text, kTokens - 4, 4);
  Array<4> out(DType::float32, {1, 6, 4, 12});
  const std::vector<int64_t> one = {sequence}, starts = {0, 4};
  with_own.attend(one, starts, part_of(text.q.view(), 2, kTokens - 4, 4), out.view(), {}, text.options(),
                  part_of(sink_q.view(), 2, kTokens - 4, 4));
  for (int64_t h = 0; h < 6; ++h)
    for (int64_t i = 0; i < 4; ++i)
      for (int64_t d = 0; d < 12; ++d)
        EXPECT_EQ(out.get({0, h, i, d}), expected[static_cast<size_t>(kTokens - 4 + i)].out.get({0, h, 0, d}));
}

TEST(Streaming, MemoryIsBounded) {
  const Streaming streaming = {.sink_tokens = 4, .window = 100};
  const Case text = text_with("plain", DType::float32, streaming);
  for (const int64_t page_size : {1, 16, 64}) {
    KVCacheConfig config = config_of(text, page_size, streaming);
    const int64_t most = (4 + page_size - 1) / page_size + (100 + page_size - 1) / page_size + 1;
    config.max_pages = most;
    KVCache cache(config);
    const int64_t sequence = cache.add();
    int64_t largest = 0;
    for (int64_t t = 0; t < 10000; ++t) {
      append(cache, sequence, text, t % kTokens, 1);
      largest = std::max(largest, cache.pages_in_use());
    }
    EXPECT_EQ(cache.length(sequence), 10000);
    EXPECT_LE(largest, most) << page_size;
    const int64_t fork = cache.fork(sequence, 10000);
    cache.remove(sequence);
    EXPECT_EQ(cache.length(fork), 10000);
    cache.truncate(fork, 0);
    EXPECT_EQ(cache.pages_in_use(), 0);
  }
}

/// A fork goes on as its parent would, and neither sees the other.
TEST(Streaming, ForksContinueIndependently) {
  const Streaming streaming = {.sink_tokens = 2, .window = 5};
  const Case text = text_with("plain", DType::float32, streaming);
  for (const int64_t page_size : {1, 4, 7}) {
    KVCache cache(config_of(text, page_size, streaming));
    const std::vector<Results> expected = in_appends(cache, text, {1});
    const int64_t parent = cache.add();
    append(cache, parent, text, 0, 16);
    const int64_t child = cache.fork(parent, 16);
    EXPECT_TRUE(same_results(go_on(cache, child, text, 16, 1)[0], expected[16]));
    append(cache, parent, text, 3, 9);  // other tokens
    EXPECT_TRUE(same_results(go_on(cache, child, text, 17, 5)[0], expected[17]));
    cache.truncate(child, 0);
    EXPECT_TRUE(same_results(go_on(cache, child, text, 0, 12)[11], expected[11])) << "an emptied sequence is a new one";
  }
}

TEST(Streaming, Refuses) {
  const auto make = [](const Streaming& streaming) {
    return reasons_of([&] { KVCache cache({.kv_heads = 1, .head_dim = 8, .streaming = streaming}); });
  };
  using Reasons = std::vector<std::string>;
  EXPECT_EQ(make({-1, 5}), Reasons{"sink_tokens is -1, must be in [0, 2^40]"});
  EXPECT_EQ(make({0, -1}), Reasons{"window is -1, must be in [0, 2^40]"});
  EXPECT_EQ(make({4, 0}), Reasons{"window is 0, must be in [1, 2^40] with sink_tokens = 4"});

  const Case text = text_with("plain", DType::float32, {2, 5});
  KVCache cache(config_of(text, 4, {2, 5})), keeps(config_of(text, 4, {}));
  const int64_t sequence = cache.add(), other = keeps.add();
  append(cache, sequence, text, 0, 20);
  append(cache, sequence, text, 20, 2);
  append(keeps, other, text, 0, 3);
  EXPECT_EQ(reasons_of([&] { cache.truncate(sequence, 21); }),
            Reasons{"length is 21, must be 0 or 22: tokens have been evicted"});
  EXPECT_EQ(reasons_of([&] { cache.fork(sequence, 3); }),
            Reasons{"length is 3, must be 0 or 22: tokens have been evicted"});
  const auto attend = [&](KVCache& with, int64_t queries, const AttentionOptions& options, ConstView<4> sink_q = {}) {
    Array<4> out(DType::float32, {1, 6, queries, 12});
    const std::vector<int64_t> one = {0}, starts = {0, queries};
    return reasons_of(
        [&] { with.attend(one, starts, part_of(text.q.view(), 2, 0, queries), out.view(), {}, options, sink_q); });
  };
  const AttentionOptions usual = {.causal = true, .alignment = Alignment::bottom_right};
  const Reasons causal = {"the options of a streaming cache must be causal with bottom_right alignment"};
  EXPECT_EQ(attend(cache, 2, usual), Reasons());
  EXPECT_EQ(attend(cache, 2, {.alignment = Alignment::bottom_right}), causal);
  EXPECT_EQ(attend(cache, 2, {.causal = true, .alignment = Alignment::top_left}), causal);
  EXPECT_EQ(attend(cache, 3, usual), Reasons{"sequence 0 has 3 queries, must have at most 2, the tokens of its last "
                                             "append: earlier tokens have been evicted"});
  EXPECT_EQ(attend(cache, 2, usual, part_of(text.q.view(), 2, 0, 1)),
            Reasons{"sink_queries has size [1, 6, 1, 16], must be [1, 6, 2, 16]"});
  EXPECT_EQ(attend(keeps, 2, usual, part_of(text.q.view(), 2, 0, 2)),
            Reasons{"sink_queries are for a streaming cache"});
  const Array<3> lse(DType::float32, {1, 6, 2});
  const std::vector<int64_t> one = {0}, starts = {0, 2};
  EXPECT_EQ(reasons_of([&] { cache.statistics(one, starts, part_of(text.q.view(), 2, 0, 2), lse.view(), {}); }).front(),
            "statistics of a streaming cache are not supported");
}

}  // namespace
}  // namespace attn::test
