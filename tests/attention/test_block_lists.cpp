// Block layouts as lists of key blocks: the bits of the boolean layout, at the cost of the listed blocks.
#include <gtest/gtest.h>

#include "support/checks.h"
#include "support/statistics.h"

namespace attn::test {
namespace {

struct Form {
  Dims dims;
  DType dtype;
  int64_t query_block, key_block;
  bool by_head;
  double density;
  void (*change)(Case&);  // further options
};

void no_change(Case&) {}
void be_causal(Case& c) {
  c.scalars.causal = true;
  c.scalars.alignment = Alignment::bottom_right;
}

/// Panels of one and of many lists; tiles, blocks and chunks of keys of which none is listed; few rows; packed keys.
const std::vector<Form>& forms() {
  static const std::vector<Form> all = {
      {{.B = 2, .H = 4, .Hk = 2, .Lq = 130, .Lk = 700, .D = 16, .Dv = 12},
       DType::float32,
       16,
       32,
       true,
       0.1,
       be_causal},
      {{.B = 1, .H = 4, .Hk = 1, .Lq = 70, .Lk = 600, .D = 8, .Dv = 8}, DType::float64, 1, 1, true, 0.01, no_change},
      {{.B = 1, .H = 2, .Hk = 2, .Lq = 100, .Lk = 900, .D = 32, .Dv = 32},
       DType::bfloat16,
       7,
       300,
       false,
       0.4,
       no_change},
      {{.B = 1, .H = 2, .Hk = 1, .Lq = 150, .Lk = 530, .D = 16, .Dv = 8},
       DType::float16,
       64,
       64,
       false,
       0.3,
       [](Case& c) {
         c.scalars.window = {200, -1}, c.scalars.alignment = Alignment::bottom_right;
       }},
      {{.B = 1, .H = 20, .Hk = 20, .Lq = 5, .Lk = 5000, .D = 8, .Dv = 8}, DType::float32, 4, 50, true, 0.01, be_causal},
      {{.B = 1, .H = 4, .Hk = 2, .Lq = 1, .Lk = 7000, .D = 16, .Dv = 16}, DType::float32, 1, 64, true, 0.05, be_causal},
      {{.B = 1, .H = 3, .Hk = 1, .Lq = 90, .Lk = 400, .D = 8, .Dv = 8},
       DType::float32,
       5,
       9,
       false,
       0.2,
       [](Case& c) {
         Random random(3);
         c.scalars.dropout = 0.3;
         c.scalars.softcap = 2;
         c.cu_seqlens_q = {0, 11, 11, 90};
         c.cu_seqlens_k = {3, 103, 250, 397};
         c.sink = {0.5f, -1.0f, 2.0f};
         add_bias(c, random, {1, 1, 1, c.dims.Lk});
       }},
  };
  return all;
}

/// A call with a random layout, as a boolean array.
Case with_blocks(const Form& form, uint64_t seed) {
  Case c = make_case(feature_named("none"), form.dims, form.dtype, seed);
  form.change(c);
  const auto blocks = [](int64_t length, int64_t block) { return (length + block - 1) / block; };
  Random random(seed + 1);
  c.scalars.blocks = {{}, form.query_block, form.key_block};
  c.blocks = random_mask(random,
                         {form.by_head ? c.dims.B : 1, form.by_head ? c.dims.H : 1, blocks(c.dims.Lq, form.query_block),
                          blocks(c.dims.Lk, form.key_block)},
                         form.density);
  return c;
}

Array<4> weights_of(const Case& c, const Array<3>& lse) {
  const int64_t rows = c.dims.Lq / 2 + 1, columns = c.dims.Lk / 2;  // a rectangle in the middle
  Array<4> weights = Array<4>(lse_type(c.dtype), {c.dims.B, c.dims.H, rows, columns}).fill_with_nan();
  attention_weights(c.q.view(), c.k.view(), lse.view(), weights.view(), c.dims.Lq - rows, c.dims.Lk / 3, c.options());
  return weights;
}

TEST(BlockLists, HaveTheBitsOfABooleanLayout) {
  for (size_t n = 0; n < forms().size(); ++n) {
    const Case boolean = with_blocks(forms()[n], 500 + n);
    Case lists = boolean;
    list_blocks(lists);
    for_each_isa([&](const std::string& isa) {
      const std::string where = "form " + std::to_string(n) + " on " + isa;
      const Results expected = run(boolean), actual = run(lists);
      EXPECT_TRUE(same_results(actual, expected)) << where;
      EXPECT_TRUE(same_bits(weights_of(lists, actual.lse), weights_of(boolean, expected.lse))) << where;
      EXPECT_TRUE(ask(make_question(lists, 600 + n)) == ask(make_question(boolean, 600 + n))) << where;
      const auto plan = [](const Case& c) { return explain(c.q.view(), c.k.view(), c.v.view(), c.options()); };
      EXPECT_EQ(plan(lists).flops, plan(boolean).flops) << where;
      EXPECT_EQ(plan(lists).scratch_bytes, plan(boolean).scratch_bytes) << where;
    });
  }
}

/// Heads and batch elements may share entries, and views may have any strides.
TEST(BlockLists, AnyStrides) {
  Case dense = with_blocks(forms()[0], 510);
  const Dims d = dense.dims;
  for (int64_t b = 0; b < d.B; ++b)  // one layout for all
    for (int64_t h = 0; h < d.H; ++h)
      for (int64_t n = 0; n < dense.blocks.size()[2]; ++n)
        for (int64_t m = 0; m < dense.blocks.size()[3]; ++m)
          dense.blocks.set({b, h, n, m}, dense.blocks.get({0, 0, n, m}));
  Case lists = dense;
  list_blocks(lists);
  const int64_t rows = lists.block_offsets.size()[2], count = lists.block_indices.size()[0];
  std::vector<int64_t> offsets(2 * rows), indices(3 * count);
  for (int64_t n = 0; n < rows; ++n) offsets[2 * (rows - 1 - n)] = static_cast<int64_t>(lists.block_offsets.get(n));
  for (int64_t t = 0; t < count; ++t) indices[3 * t] = static_cast<int64_t>(lists.block_indices.get(t));
  AttentionOptions options = lists.options();
  options.blocks.offsets = {&offsets[2 * (rows - 1)], DType::int64, {d.B, d.H, rows}, {0, 0, -2}};
  options.blocks.indices = {indices.data(), DType::int64, {count}, {3}};
  Results actual = empty_results(lists, lists.dtype, false);
  attention(lists.q.view(), lists.k.view(), lists.v.view(), actual.out.view(), actual.lse.view(), options);
  EXPECT_TRUE(same_results(actual, run(dense, false)));
}

/// Lists of no block at all are legal: every row is empty.
TEST(BlockLists, OfNothing) {
  for_each_isa([](const std::string& isa) {
    Case c = with_blocks(forms()[0], 520);
    c.blocks.fill(0);
    list_blocks(c);
    const Results r = run(c);
    for (const double x : r.out.values()) ASSERT_EQ(x, 0) << isa;
    for (const double x : r.lse.values()) ASSERT_EQ(x, -kInf) << isa;
    for (const double x : r.dk.values()) ASSERT_EQ(x, 0) << isa;
  });
}

/// 2^36 keys, of which each query attends to three blocks of 64: a visit to the others would take hours.
TEST(BlockLists, VisitNoOtherBlocks) {
  constexpr int64_t Lk = int64_t{1} << 36, H = 20;
  const Tensor<double, 4> q({1, H, 3, 8});
  Tensor<double, 4> out({1, H, 3, 8}), weights({1, H, 3, 192});
  Tensor<double, 3> lse({1, H, 3});
  const std::vector<double> key(8, 0.5);
  const ConstView<4> keys(key.data(), DType::float64, {1, H, Lk, 8}, {0, 0, 0, 1});
  const std::vector<int64_t> offsets = {0, 3, 6, 9};
  std::vector<int64_t> indices;
  for (int64_t n = 0; n < 3; ++n) indices.insert(indices.end(), {7 + n, Lk / 128, Lk / 64 - 1 - n});
  AttentionOptions options;
  options.blocks = {{}, 1, 64, {offsets.data(), {1, 1, 4}}, {indices.data(), {9}}};
  Values last_blocks(3 * 192);  // of the first head: query n attends to the last block but n
  for (int64_t n = 0; n < 3; ++n) std::fill_n(last_blocks.begin() + n * 192 + (2 - n) * 64, 64, 1 / 192.0);
  for_each_isa([&](const std::string& isa) {
    attention(q, keys, keys, out, lse, options);
    EXPECT_TRUE(close_float64({lse.begin(), lse.end()}, Values(H * 3, std::log(192.0)))) << isa;
    EXPECT_TRUE(close_float64({out.begin(), out.end()}, Values(H * 3 * 8, 0.5))) << isa;
    attention_weights(q, keys, lse, weights, 0, Lk - 192, options);
    EXPECT_TRUE(close_float64({weights.begin(), weights.begin() + 3 * 192}, last_blocks)) << isa;
    EXPECT_EQ(explain(q, keys, keys, options).flops, H * 3 * 192 * 2 * 16.0) << isa;
  });
}

}  // namespace
}  // namespace attn::test
