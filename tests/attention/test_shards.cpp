// Shards: a call on some batch elements, heads, queries and keys of a whole, in which every option means what it means
// there.
#include <gtest/gtest.h>

#include <numeric>

#include "support/checks.h"
#include "support/errors.h"

namespace attn::test {
namespace {

/// Consecutive indices of each axis of the whole.
struct Part {
  int64_t first[4], count[4];  // batch, key/value head, query, key
};
enum Axis { kBatch, kHead, kQuery, kKey };

/// Where an axis of n indices is cut: 0, two places, n. A part may be empty.
std::vector<int64_t> random_cuts(Random& random, int64_t n) {
  std::vector<int64_t> cuts = {0, random.below(n + 1), random.below(n + 1), n};
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

template <class View>
View cut(View view, int axis, int64_t first, int64_t count) {
  return !view || view.size[axis] == 1 ? view : part_of(view, axis, first, count);
}

template <class T>
void cut(std::span<const T>& values, int64_t first, int64_t count) {
  if (!values.empty()) values = values.subspan(first, count);
}

/// The options of a part, without the sink: that is a state of its own.
AttentionOptions options_of(const Case& c, const Part& part) {
  AttentionOptions o = c.options();
  const int64_t G = c.dims.H / c.dims.Hk;
  const int64_t first_head = part.first[kHead] * G, heads = part.count[kHead] * G;
  o.shard = {part.first[kBatch], first_head, part.first[kQuery], part.first[kKey], c.dims.Lq, c.dims.Lk};
  for (ConstView<4>* view : {&o.mask, &o.bias, &o.blocks.allowed}) {
    *view = cut(cut(*view, 0, part.first[kBatch], part.count[kBatch]), 1, first_head, heads);
    if (view == &o.blocks.allowed) continue;
    *view = cut(cut(*view, 2, part.first[kQuery], part.count[kQuery]), 3, part.first[kKey], part.count[kKey]);
  }
  o.blocks.offsets = cut(cut(o.blocks.offsets, 0, part.first[kBatch], part.count[kBatch]), 1, first_head, heads);
  const auto ids = [&](ConstView<2>& view, Axis axis) {
    if (view)
      view = part_of(cut(view, 0, part.first[kBatch], part.count[kBatch]), 1, part.first[axis], part.count[axis]);
  };
  ids(o.query_segment_ids, kQuery);
  ids(o.key_segment_ids, kKey);
  if (o.cu_seqlens_q.empty())
    for (std::span<const int64_t>* lengths : {&o.key_length, &o.query_length, &o.offset})
      cut(*lengths, part.first[kBatch], part.count[kBatch]);
  cut(o.alibi_slopes, first_head, heads);
  o.sink = {};
  return o;
}

/// The part of an array [B, H or Hk, Lq or Lk, ...].
template <class Pointer, int Rank>
BasicView<Pointer, Rank> part_of_tensor(BasicView<Pointer, Rank> view, const Case& c, const Part& part, Axis length) {
  const int64_t G = view.size[1] / c.dims.Hk;
  view = part_of(part_of(view, 0, part.first[kBatch], part.count[kBatch]), 1, part.first[kHead] * G,
                 part.count[kHead] * G);
  return part_of(view, 2, part.first[length], part.count[length]);
}

/// sum += the values of `x`, which is the part of `sum` that begins at `first`; an axis of extent 1 has no parts.
void add(Array<4>& sum, const Array<4>& x, const Shape<4>& first) {
  Shape<4> at{};
  for (int64_t n = 0; n < x.count(); ++n) {
    int64_t rest = n;
    for (int axis = 3; axis >= 0; --axis) {
      at[axis] = rest % x.size()[axis] + (sum.size()[axis] == 1 ? 0 : first[axis]);
      rest /= x.size()[axis];
    }
    sum.set(at, sum.get(at) + x.get(n));
  }
}

template <class Body>
void for_each_part(const Case& c, Random& random, const Body& body) {
  const bool packed = !c.cu_seqlens_q.empty();
  const std::vector<int64_t> whole = {0, c.dims.B}, halves = {0, c.dims.B / 2, c.dims.B};
  const std::vector<int64_t> cuts[4] = {packed || c.dims.B < 2 ? whole : halves, random_cuts(random, c.dims.Hk),
                                        random_cuts(random, c.dims.Lq), random_cuts(random, c.dims.Lk)};
  Part part;
  const auto each = [&](auto& self, int axis) -> void {
    if (axis == 4) return body(part);
    for (size_t n = 0; n + 1 < cuts[axis].size(); ++n) {
      part.first[axis] = cuts[axis][n];
      part.count[axis] = cuts[axis][n + 1] - cuts[axis][n];
      self(self, axis + 1);
    }
  };
  each(each, 0);
}

/// The state of all queries that a sink alone gives.
void merge_sink(const Case& c, View<4> out, View<3> lse) {
  Array<4> nothing(out.dtype, out.size);
  Array<3> sinks(lse.dtype, lse.size);
  for (int64_t n = 0; n < sinks.count(); ++n) sinks.set(n, c.sink[n / c.dims.Lq % c.dims.H]);
  merge(out, lse, nothing.view(), sinks.view());
}

/// The forward, part by part: states of float32 where the arrays have 16 bits.
void run_forward_in_parts(const Case& c, Random& random, Array<4>& out, Array<3>& lse) {
  out.fill(0);
  lse.fill(-kInf);
  for_each_part(c, random, [&](const Part& part) {
    const View<4> to = part_of_tensor(out.view(), c, part, kQuery);
    const View<3> to_lse = part_of_tensor(lse.view(), c, part, kQuery);
    Array<4> part_out = Array<4>(out.dtype(), to.size).fill_with_nan();
    Array<3> part_lse = Array<3>(lse.dtype(), to_lse.size).fill_with_nan();
    attention(part_of_tensor(c.q.view(), c, part, kQuery), part_of_tensor(c.k.view(), c, part, kKey),
              part_of_tensor(c.v.view(), c, part, kKey), part_out.view(), part_lse.view(), options_of(c, part));
    merge(to, to_lse, part_out.view(), part_lse.view());
  });
  if (!c.sink.empty()) merge_sink(c, out.view(), lse.view());
}

/// The gradients, part by part, in float32 or float64.
void run_backward_in_parts(const Case& c, Random& random, const Results& forward, Results& sums) {
  for (Array<4>* sum : {&sums.dq, &sums.dk, &sums.dv, &sums.dbias}) sum->fill(0);
  const int64_t G = c.dims.H / c.dims.Hk;
  for_each_part(c, random, [&](const Part& part) {
    const ConstView<4> q = part_of_tensor(c.q.view(), c, part, kQuery), k = part_of_tensor(c.k.view(), c, part, kKey);
    const ConstView<4> v = part_of_tensor(c.v.view(), c, part, kKey);
    const AttentionOptions options = options_of(c, part);
    const DType dtype = lse_type(c.dtype);
    Array<4> dq = Array<4>(dtype, q.size).fill_with_nan(), dk = Array<4>(dtype, k.size).fill_with_nan();
    Array<4> dv = Array<4>(dtype, v.size).fill_with_nan(), dbias;
    if (c.bias.given()) dbias = Array<4>(dtype, options.bias.size).fill_with_nan();
    const auto rows = [&](const auto& array) { return part_of_tensor(array.view(), c, part, kQuery); };
    attention_backward(q, k, v, rows(forward.out), rows(forward.lse), rows(c.dout),
                       {.dq = dq.view(), .dk = dk.view(), .dv = dv.view(), .dbias = dbias.view()}, options,
                       rows(c.dlse));
    add(sums.dq, dq, {part.first[kBatch], part.first[kHead] * G, part.first[kQuery], 0});
    add(sums.dk, dk, {part.first[kBatch], part.first[kHead], part.first[kKey], 0});
    add(sums.dv, dv, {part.first[kBatch], part.first[kHead], part.first[kKey], 0});
    if (c.bias.given())
      add(sums.dbias, dbias, {part.first[kBatch], part.first[kHead] * G, part.first[kQuery], part.first[kKey]});
  });
}

/// out, lse and gradients of a Case from parts of it.
Results run_in_parts(const Case& c, uint64_t seed) {
  Random random(seed);
  Results r = empty_results(c, lse_type(c.dtype), true);
  run_forward_in_parts(c, random, r.out, r.lse);
  r.out = r.out.as(c.dtype);
  run_backward_in_parts(c, random, r, r);
  for (Array<4>* gradient : {&r.dq, &r.dk, &r.dv}) *gradient = gradient->as(c.dtype);
  if (!c.sink.empty()) {  // of the whole rows: without keys, delta and lse say it all
    Case none = c;
    AttentionOptions options;
    options.sink = c.sink;
    const Shape<4> k = {c.dims.B, c.dims.Hk, 0, c.dims.D}, v = {c.dims.B, c.dims.Hk, 0, c.dims.Dv};
    attention_backward(c.q.view(), ConstView<4>(nullptr, c.dtype, k), ConstView<4>(nullptr, c.dtype, v), r.out.view(),
                       r.lse.view(), c.dout.view(), {.dsink = r.dsink.view()}, options, c.dlse.view());
  }
  return r;
}

TEST(Shards, OfEveryOptionMergeToTheWhole) {
  sample_every_option(8100, [](const Case& c) {
    const Oracle oracle(c);
    for_each_isa([&](const std::string& isa) { oracle.expect(run_in_parts(c, 17), isa + ", in parts"); });
  });
}

/// The oracle's own shards, whose masks and positions it finds by itself.
TEST(Shards, OfTheReferenceAreRowsOfTheWhole) {
  for (const Feature& feature : features()) {
    const Case c =
        make_case(feature, {.B = 2, .H = 4, .Hk = 2, .Lq = 12, .Lk = 12, .D = 4, .Dv = 4}, DType::float64, 5);
    const Results whole = run_reference(c, false);
    Part part = {{0, 0, 5, 0}, {c.dims.B, c.dims.Hk, 4, c.dims.Lk}};
    AttentionOptions options = options_of(c, part);
    options.sink = c.sink;
    Array<4> out(DType::float64, {c.dims.B, c.dims.H, 4, c.dims.Dv});
    reference::attention(part_of_tensor(c.q.view(), c, part, kQuery), c.k.view(), c.v.view(), out.view(), options);
    for (int64_t n = 0; n < out.count(); ++n) {
      const int64_t d = n % c.dims.Dv, i = n / c.dims.Dv % 4, h = n / c.dims.Dv / 4 % c.dims.H;
      ASSERT_EQ(out.get(n), whole.out.get({n / c.dims.Dv / 4 / c.dims.H, h, 5 + i, d})) << feature.name;
    }
  }
}

/// A state that is kept in float32 is the result of 16 bits before it is rounded.
TEST(Shards, OutMayBeFloat32) {
  for_each_isa([](const std::string& isa) {
    for (const DType dtype : {DType::bfloat16, DType::float16})
      for (const int64_t Lq : {1, 5, 70}) {  // kernels of one row, of few, and of many
        const Case c = make_case(feature_named("causal bottom_right"),
                                 {.H = 2, .Hk = 1, .Lq = Lq, .Lk = 300, .D = 32, .Dv = 32}, dtype, 6);
        Array<4> wide(DType::float32, c.dout.size()), narrow(dtype, c.dout.size());
        attention(c.q.view(), c.k.view(), c.v.view(), wide.view(), c.options());
        attention(c.q.view(), c.k.view(), c.v.view(), narrow.view(), c.options());
        EXPECT_TRUE(same_bits(wide.as(dtype), narrow)) << name_of(dtype) << " " << Lq << " on " << isa;
      }
  });
}

void expect_error(const std::function<void()>& call, const std::string& reason) {
  const std::string error = error_of(call);
  EXPECT_NE(error.find(reason), std::string::npos) << "\"" << error << "\" does not say: " << reason;
}

TEST(Shards, AreChecked) {
  Array<4> x(DType::float32, {1, 2, 8, 4});
  const auto call = [&](const Shard& shard, AttentionOptions options = {}) {
    options.shard = shard;
    attention(x.view(), x.view(), x.view(), Array<4>(x).view(), options);
  };
  EXPECT_NO_THROW(call({.first_query = 3, .first_key = 3}, {.causal = true}));
  expect_error([&] { call({.first_query = -1}); }, "shard must have numbers in [0, 2^60]");
  expect_error([&] { call({.first_query = 3, .queries = 10}); },
               "shard.first_query + Lq is 11, must be at most 10 = Lq of the whole");
  expect_error([&] { call({.first_key = 3}, {.causal = true}); }, "Lq = 8 differs from Lk = 11");
  expect_error([&] { call({.first_head = 65535}, {.dropout = 0.5}); }, "shard.first_head + H is 65537");
  const int64_t lengths[] = {12};
  EXPECT_NO_THROW(call({.first_key = 4}, {.key_length = lengths}));
  expect_error([&] { call({}, {.key_length = lengths}); }, "key_length[0] is 12, must be in [0, 8]");
  Array<3> lse(DType::float32, {1, 2, 8});
  AttentionOptions sharded;
  sharded.shard.keys = 20;
  expect_error([&] { attention_statistics(x.view(), x.view(), lse.view(), {.rows = {.sum = lse.view()}}, sharded); },
               "shard does not apply to statistics");
}

}  // namespace
}  // namespace attn::test
