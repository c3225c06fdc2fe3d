// What explain() says of a call is what the call does.
#include <gtest/gtest.h>

#include "ranks.h"
#include "sharded_case.h"

namespace attn::test {
namespace {

TEST(ClusterExplain, CountsTheBytesThatAreSent) {
  const cluster::ClusterShape shape = {.B = 1, .H = 4, .Hk = 2, .D = 16, .Dv = 8, .dtype = DType::bfloat16};
  AttentionOptions causal, window, all;
  causal.causal = true;
  window.window = {40, 0};
  for (int kind = 0; kind < 3; ++kind)
    for (const AttentionOptions& options : {all, causal, window}) {
      const cluster::Placement placement = placement_of(kind, 500, world().size(), 20);
      const int64_t n = placement.tokens(world().rank());
      Random random(5);
      Array<4> q(DType::bfloat16, {1, 4, n, 16}), k(DType::bfloat16, {1, 2, n, 16}), v(DType::bfloat16, {1, 2, n, 8});
      Array<4> out(DType::bfloat16, {1, 4, n, 8}), dq = q, dk = k, dv = v;
      Array<3> lse(DType::float32, {1, 4, n});
      for (Array<4>* x : {&q, &k, &v}) x->fill_normal(random);
      for (const cluster::Schedule schedule : {cluster::Schedule::ring, cluster::Schedule::gather}) {
        Counting forward(world()), backward(world());
        cluster::attention(forward, placement, q.view(), k.view(), v.view(), out.view(), lse.view(), options, schedule);
        cluster::attention_backward(backward, placement, q.view(), k.view(), v.view(), out.view(), lse.view(),
                                    out.view(), {.dq = dq.view(), .dk = dk.view(), .dv = dv.view()}, options, {},
                                    schedule);
        const int rank = world().rank();
        EXPECT_EQ(cluster::explain(placement, shape, options, false, schedule).bytes_sent[rank], forward.bytes);
        EXPECT_EQ(cluster::explain(placement, shape, options, true, schedule).bytes_sent[rank], backward.bytes);
      }
    }
}

/// By the formula: without a mask every rank sends its keys and values to all others, and as many gradients in float32.
TEST(ClusterExplain, BytesByTheFormula) {
  const int64_t L = 4096, ranks = 4, Hk = 2, D = 32;
  const auto placement = cluster::Placement::zigzag(L, ranks, 256);
  const cluster::ClusterShape shape = {.H = 4, .Hk = Hk, .D = D, .Dv = D, .dtype = DType::bfloat16};
  const int64_t elements = (ranks - 1) * (L / ranks) * Hk * 2 * D;
  const cluster::ClusterPlan forward = cluster::explain(placement, shape);
  const cluster::ClusterPlan backward = cluster::explain(placement, shape, {}, true);
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(forward.bytes_sent[rank], 2 * elements);
    EXPECT_EQ(backward.bytes_sent[rank], 2 * elements + 4 * elements);
  }
  EXPECT_EQ(forward.buffer_bytes, 2 * (2 * elements / (ranks - 1)));  // of two ranks
  EXPECT_EQ(cluster::explain(placement, shape, {}, false, cluster::Schedule::gather).buffer_bytes, 2 * elements);
}

/// A window needs the neighbours alone, however many ranks there are.
TEST(ClusterExplain, WindowsTalkToNeighbours) {
  const auto placement = cluster::Placement::contiguous(64 * 1024, 64, 1024);
  AttentionOptions window;
  window.window = {1000, 0};
  const cluster::ClusterPlan plan = cluster::explain(placement, {.D = 8, .Dv = 8}, window);
  const int64_t chunk = 1024 * 2 * 8 * int64_t{sizeof(float)};
  for (int rank = 0; rank < 64; ++rank) EXPECT_EQ(plan.bytes_sent[rank], rank < 63 ? chunk : 0);
}

TEST(ClusterExplain, FlopsAreThoseOfTheWhole) {
  AttentionOptions options;
  options.causal = true;
  Array<4> q(DType::float32, {1, 2, 300, 8});
  const auto placement = cluster::Placement::striped(300, 3, 32);
  for (const bool backward : {false, true}) {
    const AttentionPlan whole = backward ? explain_backward(q.view(), q.view(), q.view(), options)
                                         : explain(q.view(), q.view(), q.view(), options);
    double sum = 0;
    for (const double flops : cluster::explain(placement, {.H = 2, .Hk = 2, .D = 8, .Dv = 8}, options, backward).flops)
      sum += flops;
    EXPECT_EQ(sum, whole.flops);
  }
}

}  // namespace
}  // namespace attn::test
