// The oracle itself: cases worked out by hand, finite differences, and the naive algorithm as a second opinion.
#include <gtest/gtest.h>

#include <cmath>

#include "support/checks.h"
#include "support/naive.h"
#include "support/sweep.h"
#include "support/tolerance.h"

namespace attn::test {
namespace {

/// One head, float64, values given as literals.
struct Small {
  Array<4> q, k, v, out;
  Array<3> lse;

  Small(const Shape<2>& q_size, const Values& q_values, const Shape<2>& k_size, const Values& k_values, int64_t Dv,
        const Values& v_values)
      : q(filled({1, 1, q_size[0], q_size[1]}, q_values)),
        k(filled({1, 1, k_size[0], k_size[1]}, k_values)),
        v(filled({1, 1, k_size[0], Dv}, v_values)),
        out(DType::float64, {1, 1, q_size[0], Dv}),
        lse(DType::float64, {1, 1, q_size[0]}) {}

  static Array<4> filled(const Shape<4>& size, const Values& values) {
    Array<4> array(DType::float64, size);
    for (int64_t n = 0; n < array.count(); ++n) array.set(n, values[n]);
    return array;
  }
  Values attend(const AttentionOptions& options = {}) {
    reference::attention(q.view(), k.view(), v.view(), out.view(), lse.view(), options);
    return out.values();
  }
};

/// Two keys whose scores are log 1 and log 3 under scale 1: weights 1/4 and 3/4, values 0 and 4.
Small quarters() { return {{1, 1}, {1}, {2, 1}, {0, std::log(3)}, 1, {0, 4}}; }

TEST(ByHand, OneKeyIsItsValue) {
  Small s({1, 2}, {1, 2}, {1, 2}, {3, 4}, 3, {7, 8, 9});
  EXPECT_EQ(s.attend(), (Values{7, 8, 9}));
  EXPECT_TRUE(close_float64(s.lse.values(), {11 / std::sqrt(2)}));
}

TEST(ByHand, WeightsAndLse) {
  Small s = quarters();
  EXPECT_TRUE(close_float64(s.attend(), {3}));
  EXPECT_TRUE(close_float64(s.lse.values(), {std::log(4)}));
}

TEST(ByHand, ScaleDefaultsToInverseRoot) {
  Small s({1, 4}, {1, 1, 1, 1}, {2, 4}, {0, 0, 0, 0, 2, 2, 2, 2}, 1, {0, 1});  // scores 0 and 8 / 2
  EXPECT_TRUE(close_float64(s.attend(), {std::exp(4) / (1 + std::exp(4))}));
}

TEST(ByHand, SoftcapBeforeBias) {
  Small s({1, 1}, {1}, {2, 1}, {0, 3}, 1, {0, 1});
  const Array<4> bias = Small::filled({1, 1, 1, 2}, {0, 5});
  const double score = 2 * std::tanh(1.5) + 5;
  EXPECT_TRUE(close_float64(s.attend({.softcap = 2, .bias = bias.view()}), {std::exp(score) / (1 + std::exp(score))}));
}

TEST(ByHand, AlibiCountsDistance) {
  Small s({3, 1}, {0, 0, 0}, {3, 1}, {0, 0, 0}, 1, {0, 0, 1});
  const float slope = 0.5F;
  const double e1 = std::exp(-0.5), e2 = std::exp(-1);
  const Values expected = {e2 / (1 + e1 + e2), e1 / (1 + 2 * e1), 1 / (1 + e1 + e2)};
  EXPECT_TRUE(close_float64(s.attend({.alibi_slopes = {&slope, 1}}), expected));
}

TEST(ByHand, SinkJoinsTheDenominatorOnly) {
  Small s = quarters();
  const float sink = 0;  // exp(0) = 1 beside 1 and 3
  EXPECT_TRUE(close_float64(s.attend({.sink = {&sink, 1}}), {4 * 3.0 / 5}));
  EXPECT_TRUE(close_float64(s.lse.values(), {std::log(5)}));
}

TEST(ByHand, MinusInfinityInTheBiasForbids) {
  Small s = quarters();
  s.k.set(1, kNaN);  // what is not allowed is not read
  s.v.set(1, kNaN);
  const Array<4> bias = Small::filled({1, 1, 1, 2}, {0, -kInf});
  EXPECT_EQ(s.attend({.bias = bias.view()}), Values{0});
}

TEST(ByHand, NothingAllowed) {
  Small s = quarters();
  const int64_t no_keys = 0;
  EXPECT_EQ(s.attend({.key_length = {&no_keys, 1}}), Values{0});
  EXPECT_EQ(s.lse.get(0), -kInf);
  const float sink = 2;
  EXPECT_EQ(s.attend({.key_length = {&no_keys, 1}, .sink = {&sink, 1}}), Values{0});
  EXPECT_EQ(s.lse.get(0), 2);
}

TEST(ByHand, PlusInfinityTakesAll) {
  Small s({1, 1}, {1}, {4, 1}, {5, kInf, 1e300, kInf}, 1, {1, 2, 3, 4});
  EXPECT_EQ(s.attend(), Values{3});  // two winners share
  EXPECT_EQ(s.lse.get(0), kInf);
}

TEST(ByHand, NaNIsSeen) {
  Small s({2, 1}, {1, 1}, {2, 1}, {0, kNaN}, 1, {1, 2});
  const Values out = s.attend({.causal = true});
  EXPECT_EQ(out[0], 1);
  EXPECT_TRUE(std::isnan(out[1]));
}

TEST(ByHand, DropoutScalesWhatIsKept) {
  Small s({1, 1}, {0}, {8, 1}, Values(8, 0), 8, Values(64, 0));
  for (int64_t j = 0; j < 8; ++j) s.v.set(j * 8 + j, 1);  // out is the row of weights
  const Values weights = s.attend({.dropout = 0.5, .seed = 3});
  for (int64_t j = 0; j < 8; ++j) EXPECT_EQ(weights[j], dropout_keeps(3, 0.5, 0, 0, 0, j) ? 2.0 / 8 : 0);
  EXPECT_TRUE(close_float64(s.lse.values(), {std::log(8)}));
}

TEST(ByHand, QueryHeadsShareKeyHeads) {
  Array<4> q(DType::float64, {1, 4, 1, 1}), k(DType::float64, {1, 2, 1, 1}), v(DType::float64, {1, 2, 1, 1});
  Array<4> out(DType::float64, {1, 4, 1, 1});
  v.set(0, 10);
  v.set(1, 20);
  reference::attention(q.view(), k.view(), v.view(), out.view());
  EXPECT_EQ(out.values(), (Values{10, 10, 20, 20}));
}

TEST(ByHand, PackedSequencesCountFromTheirOwnStart) {
  // Sequences of 2 and 3 tokens; value j = 2^j, so that uniform weights tell who was seen.
  Small s({5, 1}, Values(5, 0), {5, 1}, Values(5, 0), 1, {1, 2, 4, 8, 16});
  const std::vector<int64_t> starts = {0, 2, 5};
  const Values expected = {1, 3 / 2.0, 4, 12 / 2.0, 28 / 3.0};
  EXPECT_TRUE(close_float64(s.attend({.causal = true, .cu_seqlens_q = starts, .cu_seqlens_k = starts}), expected));
}

TEST(ByHand, PackedBottomRight) {
  // One query over three keys sees them all; two queries over two keys see one and two.
  Small s({3, 1}, Values(3, 0), {5, 1}, Values(5, 0), 1, {1, 2, 4, 8, 16});
  const std::vector<int64_t> queries = {0, 1, 3}, keys = {0, 3, 5};
  const Values expected = {7 / 3.0, 8, 24 / 2.0};
  const AttentionOptions options = {
      .causal = true, .alignment = Alignment::bottom_right, .cu_seqlens_q = queries, .cu_seqlens_k = keys};
  EXPECT_TRUE(close_float64(s.attend(options), expected));
}

TEST(ByHand, GradientsOfTwoKeys) {
  // P = (1/4, 3/4), v = (0, 4), dout = 1: delta = 3, ds = (1/4 (0 - 3), 3/4 (4 - 3)) = (-3/4, 3/4).
  Small s = quarters();
  s.attend();
  Array<4> dout = Small::filled({1, 1, 1, 1}, {1}), dq = dout, dk = s.k, dv = s.v;
  reference::attention_backward(s.q.view(), s.k.view(), s.v.view(), s.out.view(), s.lse.view(), dout.view(),
                                {.dq = dq.view(), .dk = dk.view(), .dv = dv.view()});
  EXPECT_TRUE(close_float64(dv.values(), {0.25, 0.75}));
  EXPECT_TRUE(close_float64(dk.values(), {-0.75, 0.75}));
  EXPECT_TRUE(close_float64(dq.values(), {0.75 * std::log(3)}));
}

TEST(ByHand, WeightsOfARectangle) {
  Small s = quarters();
  s.attend();
  Array<4> weights(DType::float64, {1, 1, 1, 1});
  reference::attention_weights(s.q.view(), s.k.view(), s.lse.view(), weights.view(), 0, 1);
  EXPECT_TRUE(close_float64(weights.values(), {0.75}));
}

/// Who sees whom: with q = 0 and lse = 0 every allowed weight is 1.
Values seen(int64_t Lq, int64_t Lk, const AttentionOptions& options) {
  const Array<4> q(DType::float64, {1, 1, Lq, 1}), k(DType::float64, {1, 1, Lk, 1});
  const Array<3> lse(DType::float64, {1, 1, Lq});
  Array<4> weights(DType::float64, {1, 1, Lq, Lk});
  reference::attention_weights(q.view(), k.view(), lse.view(), weights.view(), 0, 0, options);
  return weights.values();
}

TEST(ByHand, WindowsCountKeysBesidesSelf) {
  EXPECT_EQ(seen(3, 5, {.window = {1, 2}, .alignment = Alignment::top_left}), (Values{1, 1, 1, 0, 0,  //
                                                                                      1, 1, 1, 1, 0,  //
                                                                                      0, 1, 1, 1, 1}));
  EXPECT_EQ(seen(3, 3, {.window = {0, -1}}), (Values{1, 1, 1,  //
                                                     0, 1, 1,  //
                                                     0, 0, 1}));
}

TEST(ByHand, AlignmentsOfUnequalLengths) {
  AttentionOptions options = {.causal = true, .alignment = Alignment::top_left};
  EXPECT_EQ(seen(2, 4, options), (Values{1, 0, 0, 0, 1, 1, 0, 0}));
  options.alignment = Alignment::bottom_right;
  EXPECT_EQ(seen(2, 4, options), (Values{1, 1, 1, 0, 1, 1, 1, 1}));
  const int64_t one = 1, two = 2, three = 3;
  options.key_length = {&three, 1};  // the last query sees the last key that exists
  EXPECT_EQ(seen(2, 4, options), (Values{1, 1, 0, 0, 1, 1, 1, 0}));
  options.key_length = {};
  options.query_length = {&two, 1};  // the second query counts as the last
  EXPECT_EQ(seen(3, 3, options), (Values{1, 1, 0, 1, 1, 1, 1, 1, 1}));
  options = {.causal = true, .alignment = Alignment::offset, .offset = {&one, 1}};
  EXPECT_EQ(seen(2, 4, options), (Values{1, 1, 0, 0, 1, 1, 1, 0}));
}

TEST(ByHand, MasksAreBroadcast) {
  Array<4> keys(DType::boolean, {1, 1, 1, 3}), queries(DType::boolean, {1, 1, 2, 1});
  keys.set(0, 1);
  keys.set(2, 1);
  queries.set(1, 1);
  EXPECT_EQ(seen(2, 3, {.mask = keys.view()}), (Values{1, 0, 1, 1, 0, 1}));
  EXPECT_EQ(seen(2, 3, {.mask = queries.view()}), (Values{0, 0, 0, 1, 1, 1}));
}

TEST(ByHand, OnlyEqualSegmentsAttend) {
  Array<2> query(DType::int64, {1, 3}), key(DType::int32, {1, 4});
  const int64_t queries[] = {7, 7, 9}, keys[] = {7, 9, 7, 8};
  for (int64_t i = 0; i < 3; ++i) query.set(i, static_cast<double>(queries[i]));
  for (int64_t j = 0; j < 4; ++j) key.set(j, static_cast<double>(keys[j]));
  EXPECT_EQ(seen(3, 4, {.query_segment_ids = query.view(), .key_segment_ids = key.view()}), (Values{1, 0, 1, 0,  //
                                                                                                    1, 0, 1, 0,  //
                                                                                                    0, 1, 0, 0}));
}

TEST(ByHand, BlocksOfPairs) {
  Array<4> allowed(DType::boolean, {1, 1, 2, 2});  // queries in twos, keys in threes
  allowed.set(0, 1);
  allowed.set(3, 1);
  EXPECT_EQ(seen(3, 4, {.blocks = {allowed.view(), 2, 3}}), (Values{1, 1, 1, 0,  //
                                                                    1, 1, 1, 0,  //
                                                                    0, 0, 0, 1}));
}

TEST(ByHand, ListsOfKeyBlocks) {
  const std::vector<int64_t> offsets = {0, 0, 2}, indices = {0, 2};  // queries in twos, keys in threes
  const BlockLayout lists = {{}, 2, 3, {offsets.data(), {1, 1, 3}}, {indices.data(), {2}}};
  EXPECT_EQ(seen(3, 8, {.blocks = lists}), (Values{0, 0, 0, 0, 0, 0, 0, 0,  //
                                                   0, 0, 0, 0, 0, 0, 0, 0,  //
                                                   1, 1, 1, 0, 0, 0, 1, 1}));
}

// ----------------------------------------------------------------------------------------------------------- gradients

TEST(Reference, FiniteDifferences) {
  const int64_t samples = by_effort(5, 25, 100);
  const Dims shapes[] = {
      {.B = 1, .H = 4, .Hk = 2, .Lq = 6, .Lk = 6, .D = 4, .Dv = 4},
      {.B = 2, .H = 3, .Hk = 1, .Lq = 5, .Lk = 9, .D = 3, .Dv = 5},
      {.B = 1, .H = 2, .Hk = 2, .Lq = 8, .Lk = 3, .D = 2, .Dv = 1},
  };
  const int64_t grid = 3 * feature_count();
  sample(grid, {.quick = grid, .normal = grid, .seconds = 60}, [&](int64_t n) {
    check_gradients(make_case(features()[n / 3], shapes[n % 3], DType::float64, 1 + n), run_reference, samples);
  });
}

// ---------------------------------------------------------------------------------------------------- a second opinion

void expect_agreement(const Values& naive, const Values& reference, const std::string& what) {
  EXPECT_TRUE(normalized_error(naive, reference) <= kSameMeaningNmse) << what;
}

TEST(Reference, AgreesWithTheNaiveAlgorithm) {
  uint64_t seed = 1;
  for (const Feature& feature : features())
    for (const Dims& dims : small_dims())
      for (Way way : {Way::textbook, Way::reversed, Way::odd_even}) {
        const Case c = make_case(feature, dims, DType::float32, seed++);
        const Results naive = run_naive(c, way), reference = run_reference(c);
        expect_agreement(naive.out.values(), reference.out.values(), c.name() + " out");
        expect_agreement(naive.lse.values(), reference.lse.values(), c.name() + " lse");
        expect_agreement(naive.dq.values(), reference.dq.values(), c.name() + " dq");
        expect_agreement(naive.dk.values(), reference.dk.values(), c.name() + " dk");
        expect_agreement(naive.dv.values(), reference.dv.values(), c.name() + " dv");
        expect_agreement(naive.dbias.values(), reference.dbias.values(), c.name() + " dbias");
        expect_agreement(naive.dsink.values(), reference.dsink.values(), c.name() + " dsink");
      }
}

/// Strides make no difference to the oracle.
TEST(Reference, ReadsAndWritesAnyView) {
  const Case c =
      make_case(feature_named("none"), {.B = 2, .H = 2, .Hk = 2, .Lq = 3, .Lk = 4, .D = 5, .Dv = 5}, DType::float64, 1);
  const Results expected = run_reference(c, false);
  Array<4> k_reversed = c.k;  // stored last to first
  for (int64_t n = 0; n < c.k.count(); ++n) k_reversed.set(c.k.count() - 1 - n, c.k.get(n));
  ConstView<4> k = k_reversed.view();
  k.data = static_cast<const double*>(k.data) + c.k.count() - 1;
  for (int64_t& stride : k.stride) stride = -stride;
  Array<4> out(DType::float64, {2, 3, 2, 5});  // stored [B, Lq, H, Dv]
  const View<4> transposed(out.view().data, DType::float64, {2, 2, 3, 5}, {30, 5, 10, 1});
  reference::attention(c.q.view(), k, c.v.view(), transposed);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < 3; ++i)
        for (int64_t d = 0; d < 5; ++d) EXPECT_EQ(out.get({b, i, h, d}), expected.out.get({b, h, i, d}));
}

/// Stored in any type, computed in float64: the result is the exact one, rounded once.
TEST(Reference, RoundsOnlyAtTheEnd) {
  for (DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    const Case c = make_case(feature_named("softcap bias mask"), small_dims()[1], dtype, 1);
    const Results exact = run_reference(c);
    Results stored = empty_results(c, dtype, true);
    reference::attention(c.q.view(), c.k.view(), c.v.view(), stored.out.view(), stored.lse.view(), c.options());
    reference::attention_backward(c.q.view(), c.k.view(), c.v.view(), stored.out.view(), stored.lse.view(),
                                  c.dout.view(), gradients_of(stored), c.options(), c.dlse.view());
    EXPECT_TRUE(same_bits(stored.out, exact.out.as(dtype)));
    EXPECT_TRUE(same_bits(stored.lse, exact.lse.as(DType::float32)));
    EXPECT_TRUE(same_bits(stored.dq, exact.dq.as(dtype)));
    EXPECT_TRUE(same_bits(stored.dk, exact.dk.as(dtype)));
    EXPECT_TRUE(same_bits(stored.dv, exact.dv.as(dtype)));
    EXPECT_TRUE(same_bits(stored.dbias, exact.dbias.as(DType::float32)));
  }
}

}  // namespace
}  // namespace attn::test
