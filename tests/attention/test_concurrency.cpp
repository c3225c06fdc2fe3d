// Many callers at once, calls from inside tasks, and children of a fork.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "support/checks.h"

namespace attn::test {
namespace {

/// Mixed shapes with the results of a serial run.
struct Expected {
  Case c;
  Results results;
};

const std::vector<Expected>& mixed_calls() {
  static const std::vector<Expected> calls = [] {
    std::vector<Expected> all;
    for (const char* name : {"none", "causal bottom_right", "everything", "packed causal", "mask padding"})
      for (const Dims& dims : small_dims()) {
        Case c =
            make_case(feature_named(name), dims, all.size() % 2 == 0 ? DType::float32 : DType::bfloat16, all.size());
        Results results = run(c);
        all.push_back({std::move(c), std::move(results)});
      }
    return all;
  }();
  return calls;
}

TEST(Callers, ManyThreadsAtOnce) {
  const int64_t threads = by_effort(8, 64, 64), calls = by_effort(10, 60, 300);
  const std::vector<Expected>& mixed = mixed_calls();
  std::atomic<int64_t> right = 0;
  std::vector<std::thread> callers;
  for (int64_t t = 0; t < threads; ++t)
    callers.emplace_back([&, t] {
      Random random(run_seed(), t);
      for (int64_t n = 0; n < calls; ++n) {
        const Expected& expected = mixed[random.below(static_cast<int64_t>(mixed.size()))];
        right += bool(same_results(run(expected.c), expected.results));
      }
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(right, threads * calls);
}

TEST(Callers, FromInsideATask) {
  const std::vector<Expected>& mixed = mixed_calls();
  std::atomic<int64_t> right = 0;
  const auto tasks = static_cast<int64_t>(mixed.size());
  parallel_for(tasks, [&](int64_t outer) {
    parallel_for(3, [&](int64_t inner) {
      const Expected& expected = mixed[(outer + inner) % tasks];
      right += bool(same_results(run(expected.c), expected.results));
    });
  });
  EXPECT_EQ(right, 3 * tasks);
}

/// One cache read by many, while others come and go.
TEST(Callers, ReadOneCache) {
  KVCache cache({.kv_heads = 2, .head_dim = 16, .page_size = 7});
  const Case c =
      make_case(feature_named("none"), {.H = 4, .Hk = 2, .Lq = 3, .Lk = 50, .D = 16, .Dv = 16}, DType::float32, 41);
  const int64_t sequence = cache.add();
  cache.append(sequence, c.k.view(), c.v.view());
  const std::vector<int64_t> sequences = {sequence}, starts = {0, 3};
  const auto attend = [&] {
    Array<4> out(DType::float32, c.q.size());
    cache.attend(sequences, starts, c.q.view(), out.view());
    return out;
  };
  const Array<4> expected = attend();
  std::atomic<int64_t> right = 0;
  std::vector<std::thread> readers;
  for (int t = 0; t < 16; ++t)
    readers.emplace_back([&] {
      for (int n = 0; n < 20; ++n) {
        KVCache other({.kv_heads = 2, .head_dim = 16, .page_size = 5});
        other.append(other.add(), c.k.view(), c.v.view());
        right += same_bits(attend(), expected);
      }
    });
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(right, 16 * 20);
}

/// The number of threads changes under calls that run.
TEST(Callers, WhileThePoolIsResized) {
  const std::vector<Expected>& mixed = mixed_calls();
  std::atomic<bool> done = false;
  std::thread resizer([&] {
    for (int n = 0; !done; ++n) set_thread_count(1 + n % 4);
  });
  int64_t right = 0;
  const int64_t calls = by_effort(20, 200, 1000);
  for (int64_t n = 0; n < calls; ++n) {
    const Expected& expected = mixed[n % mixed.size()];
    right += bool(same_results(run(expected.c), expected.results));
  }
  done = true;
  resizer.join();
  set_thread_count(0);
  EXPECT_EQ(right, calls);
}

/// The parent computes, forks, and the child computes the same; an alarm ends a child that hangs.
TEST(Fork, ChildrenCompute) {
  const int64_t forks = by_effort(5, 100, 100);
  const Expected& expected = mixed_calls().front();
  ASSERT_TRUE(same_results(run(expected.c), expected.results));
  for (int64_t n = 0; n < forks; ++n) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(10);
      _exit(same_results(run(expected.c), expected.results) ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "the child was ended by signal " << WTERMSIG(status);
    ASSERT_EQ(WEXITSTATUS(status), 0);
    ASSERT_TRUE(same_results(run(expected.c), expected.results)) << "the parent after fork " << n;
  }
}

/// A fork while other threads are in the middle of calls.
TEST(Fork, WhileOthersCompute) {
  std::atomic<bool> done = false;
  const Expected& expected = mixed_calls().front();
  std::thread other([&] {
    while (!done) run(expected.c);
  });
  for (int64_t n = 0; n < by_effort(3, 30, 100); ++n) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      _exit(same_results(run(expected.c), expected.results) ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "fork " << n;
  }
  done = true;
  other.join();
}

}  // namespace
}  // namespace attn::test
