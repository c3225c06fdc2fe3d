// Shards through the C interface: the bits of the C++ one.
#include <gtest/gtest.h>

#include "attn/c.h"
#include "support/c_tensors.h"

namespace attn::test {
namespace {

TEST(CShard, GivesTheBitsOfCpp) {
  Random random(3);
  Array<4> q(DType::float32, {1, 2, 6, 8}), k(DType::float32, {1, 2, 9, 8});
  for (Array<4>* x : {&q, &k}) x->fill_normal(random);
  const Shard shards[] = {{0, 0, 0, 0, 10, 12}, {0, 0, 3, 1, 10, 12}, {1, 0, 3, 1, 10, 12}, {1, 5, 3, 1, 0, 12}};
  std::vector<std::vector<std::byte>> seen;
  for (const Shard& shard : shards) {
    AttentionOptions cpp;
    cpp.causal = true;
    cpp.alignment = Alignment::bottom_right;
    cpp.dropout = 0.3;
    cpp.shard = shard;
    const attn_shard c_shard = {shard.first_batch, shard.first_head, shard.first_query,
                                shard.first_key,   shard.queries,    shard.keys};
    attn_options c = defaults();
    c.causal = 1;
    c.alignment = ATTN_ALIGNMENT_BOTTOM_RIGHT;
    c.dropout = 0.3;
    c.shard = &c_shard;
    Array<4> out(DType::float32, q.size()), of_c = out;
    attention(q.view(), k.view(), k.view(), out.view(), cpp);
    const attn_tensor c_q = tensor(q), c_k = tensor(k), c_out = tensor(of_c);
    ASSERT_EQ(attn_attention(&c_q, &c_k, &c_k, &c_out, nullptr, &c), ATTN_OK) << attn_last_error();
    EXPECT_TRUE(same_bits(out, of_c));
    EXPECT_EQ(std::count(seen.begin(), seen.end(), out.bytes()), 0) << "a number of the shard has no effect";
    seen.push_back(out.bytes());
  }
}

}  // namespace
}  // namespace attn::test
