// What explain() says of a call is what the call does.
#include <gtest/gtest.h>

#include "ranks.h"
#include "sharded_case.h"
#include "support/errors.h"

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
      std::vector<cluster::Schedule> schedules = {cluster::Schedule::ring, cluster::Schedule::gather};
      for (int group = 2; group <= world().size(); ++group)
        if (world().size() % group == 0) schedules.push_back(cluster::Schedule::heads(group));
      for (const cluster::Schedule schedule : schedules) {
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

/// With a head for each of four ranks, a rank sends three quarters of its shard and receives as much.
TEST(ClusterExplain, BytesOfHeadsByTheFormula) {
  const int64_t L = 4096, ranks = 4, D = 32;
  const auto placement = cluster::Placement::zigzag(L, ranks, 256);
  const cluster::ClusterShape shape = {.H = 4, .Hk = 4, .D = D, .Dv = D, .dtype = DType::bfloat16};
  const int64_t others = (ranks - 1) * L / ranks;  // rows of a head that come or go
  const cluster::ClusterPlan forward = cluster::explain(placement, shape, {}, false, cluster::Schedule::heads());
  const cluster::ClusterPlan backward = cluster::explain(placement, shape, {}, true, cluster::Schedule::heads());
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(forward.bytes_sent[rank], others * (2 * 4 * D + 4));               // q, k, v and out; lse
    EXPECT_EQ(backward.bytes_sent[rank], others * (2 * 5 * D + 4 + 4 * 3 * D));  // and dout; dq, dk and dv
  }
}

/// A rank of a ring computes while keys come: it waits for the longer of the two. Heads are exchanged before and after.
TEST(ClusterExplain, SecondsOfComputationAndMessages) {
  const auto placement = cluster::Placement::contiguous(4096, 4, 1024);
  const cluster::ClusterShape shape = {.H = 4, .Hk = 4};
  const double flops = 4096 * 1024 * 4 * 64 * 4.0, bytes = 1024 * 4 * 64 * 8;  // of a rank; of a shard of keys
  const auto seconds = [&](const cluster::ClusterCosts& costs, cluster::Schedule schedule, bool backward = false) {
    return cluster::explain(placement, shape, {}, backward, schedule, costs).seconds;
  };
  const cluster::ClusterCosts fast_network = {flops, flops, 1e18, 0}, slow_network = {1e18, 1e18, bytes, 0};
  for (const cluster::Schedule schedule :
       {cluster::Schedule::ring, cluster::Schedule::gather, cluster::Schedule::heads()})
    EXPECT_NEAR(seconds(fast_network, schedule), 1, 1e-6);
  EXPECT_NEAR(seconds(fast_network, cluster::Schedule::ring, true), 2.5, 1e-6);
  EXPECT_NEAR(seconds(slow_network, cluster::Schedule::ring), 3, 1e-6);
  EXPECT_NEAR(seconds(slow_network, cluster::Schedule::ring, true), 6, 1e-6);
  EXPECT_NEAR(seconds(slow_network, cluster::Schedule::heads()), 0.75 * (2 + 0.5 / 64), 1e-6);
  EXPECT_NEAR(seconds({flops, flops, bytes * 4, 0}, cluster::Schedule::ring), 1, 1e-6);  // while it computes
  EXPECT_NEAR(seconds({flops, flops, bytes * 2, 0.125}, cluster::Schedule::ring), 3 * 0.5 + 0.125 + 0.25, 1e-6);
  EXPECT_NEAR(seconds({flops, flops, bytes * 4, 0}, cluster::Schedule::gather), 1, 1e-6);
}

TEST(ClusterExplain, TheScheduleThatIsChosen) {
  const auto placement = cluster::Placement::zigzag(4096, 4, 512);
  const cluster::ClusterShape many = {.H = 4, .Hk = 4}, grouped = {.H = 8, .Hk = 1};
  EXPECT_EQ(cluster::choose(placement, many, {1e12, 1e12, 1e6, 1e-5}), cluster::Schedule::heads(4));  // fewer bytes
  EXPECT_EQ(cluster::choose(placement, many, {1e6, 1e6, 1e9, 1e-5}), cluster::Schedule::ring);        // all hidden
  EXPECT_EQ(cluster::choose(placement, grouped, {1e12, 1e12, 1e6, 1e-5}).heads_group, 1);  // one key head for all
}

TEST(ClusterExplain, CostsAreMeasuredAndTheSameOnAllRanks) {
  const cluster::ClusterCosts costs = cluster::measure_costs(world(), {.H = 2, .Hk = 1, .D = 16, .Dv = 16});
  for (const double x : {costs.forward_flops, costs.backward_flops}) EXPECT_GT(x, 0);
  if (world().size() > 1) {
    EXPECT_GT(costs.bytes_per_second, 0);
    EXPECT_GT(costs.latency, 0);
  }
  cluster::require_same(world(), "the costs", std::to_string(costs.forward_flops + costs.latency));
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

TEST(ClusterExplain, SchedulesByName) {
  for (const char* name : {"ring", "gather", "heads", "heads:4"})
    EXPECT_EQ(cluster::Schedule::named(name).name(), name);
  EXPECT_EQ(cluster::Schedule::named("heads:4"), cluster::Schedule::heads(4));
  for (const char* name : {"", "Ring", "heads:", "heads:0", "heads:-1", "heads:2x", "heads:99999999999", "heads: 2"})
    EXPECT_NE(error_of([&] { cluster::Schedule::named(name); }).find("must be ring, gather, heads, or heads:n"),
              std::string::npos)
        << name;
}

/// Pairs at one distance are counted once; with lengths, even those that hide nothing, each pair is.
TEST(ClusterExplain, PairsAtOneDistanceAreCountedOnce) {
  const cluster::ClusterShape shape = {.H = 6, .Hk = 3, .D = 16, .Dv = 16};
  const cluster::ClusterCosts costs = {1e9, 1e9, 1e9, 1e-5};
  const std::vector<int64_t> whole = {700};
  AttentionOptions causal, window, all;
  causal.causal = true;
  window.window = {150, 60};
  for (int kind = 0; kind < 3; ++kind)
    for (AttentionOptions options : {all, causal, window})
      for (const cluster::Schedule schedule : {cluster::Schedule::ring, cluster::Schedule::heads(2)}) {
        options.alignment = Alignment::top_left;
        const cluster::Placement placement = placement_of(kind, 700, 4, 50);
        const cluster::ClusterPlan once = cluster::explain(placement, shape, options, true, schedule, costs);
        options.key_length = whole;
        const cluster::ClusterPlan each = cluster::explain(placement, shape, options, true, schedule, costs);
        EXPECT_EQ(once.flops, each.flops);
        EXPECT_EQ(once.bytes_sent, each.bytes_sent);
        EXPECT_EQ(once.seconds, each.seconds);
      }
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
