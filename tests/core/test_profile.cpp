// core: what a Profiler collects of operations, threads and memory.
#include "attn/profile.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <thread>

#include "attn/attention.h"
#include "support/errors.h"

namespace attn::test {
namespace {

/// One call of attention on q = k = v.
struct Call {
  Tensor<float, 4> q{{1, 4, 96, 32}}, out{{1, 4, 96, 32}};
  Call() {
    Random random(3);
    fill_normal(q, random);
  }
  void run(const AttentionOptions& options = {}) { attention(q, q, q, out, options); }
};

double nanoseconds(const Span& span) { return static_cast<double>(span.end - span.begin); }

TEST(Profile, SpansNest) {
  Call call;
  Profiler profiler;
  {
    const ProfileSpan outer("outer");
    call.run();
    const ProfileSpan inner("inner");
    call.run();
  }
  const std::vector<Span> spans = profiler.take_spans();
  ASSERT_EQ(spans.size(), 4u);  // by their ends
  const Span &first = spans[0], &second = spans[1], &inner = spans[2], &outer = spans[3];
  EXPECT_EQ(first.name, "attention");
  EXPECT_EQ(first.kind, SpanKind::operation);
  EXPECT_EQ(first.work.shape.text(), "1 x 4 x 96 x 96 x 32");
  EXPECT_EQ(first.parent, outer.id);
  EXPECT_EQ(second.parent, inner.id);
  EXPECT_EQ(inner.parent, outer.id);
  EXPECT_EQ(outer.parent, 0);
  EXPECT_LE(outer.begin, first.begin);
  EXPECT_LE(first.end, inner.begin);
  EXPECT_LE(inner.begin, second.begin);
  EXPECT_LE(second.end, inner.end);
  EXPECT_LE(inner.end, outer.end);
  EXPECT_TRUE(profiler.take_spans().empty());
}

TEST(Profile, TheRowsOfASummaryAddUp) {
  Call call;
  Profiler profiler;
  {
    const ProfileSpan outer("outer");
    for (int layer = 0; layer < 3; ++layer) {
      const ProfileSpan inner("block " + std::to_string(layer));
      call.run();
    }
  }
  const std::vector<Span> spans = profiler.take_spans();
  const auto rows = summarize(spans, [](const std::string& name) { return name.substr(0, 5); });
  std::map<std::string, ProfileRow> by_name;
  double seconds = 0;
  for (const ProfileRow& row : rows) {
    by_name[row.scope + " " + row.operation] = row;
    seconds += row.seconds;
  }
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows.front().scope, "outer");
  EXPECT_EQ(by_name["outer/block attention"].calls, 3);
  EXPECT_EQ(by_name["outer/block "].calls, 3);
  EXPECT_NEAR(seconds, 1e-9 * nanoseconds(spans.back()), 1e-9);
  EXPECT_EQ(summarize(spans).size(), 7u);  // each layer in rows of its own
}

TEST(Profile, WorkIsThatOfThePlan) {
  Call call;
  Tensor<float, 3> lse({1, 4, 96});
  Tensor<float, 4> gradient({1, 4, 96, 32});
  for (const AttentionOptions& options : {AttentionOptions{}, AttentionOptions{.causal = true}}) {
    Profiler profiler;
    attention(call.q, call.q, call.q, call.out, lse, options);
    attention_backward(call.q, call.q, call.q, call.out, lse, call.out, {.dq = gradient}, options);
    const std::vector<Span> spans = profiler.take_spans();
    ASSERT_EQ(spans.size(), 2u);
    EXPECT_EQ(spans[0].work.flops, explain(call.q, call.q, call.q, options).flops);
    EXPECT_EQ(spans[1].work.flops, explain_backward(call.q, call.q, call.q, options).flops);
    const double pairs = 4 * (options.causal ? 96 * 97 / 2 : 96 * 96), array = 4 * 96 * 32 * 4;
    EXPECT_EQ(spans[0].work.flops, 2 * pairs * (32 + 32));
    EXPECT_EQ(spans[0].work.bytes, 4 * array + 4 * 96 * 4);  // q, k, v, out, lse
  }
}

TEST(Profile, MemoryIsThatOfBuffers) {
  const int64_t before = memory_in_use();
  Profiler profiler;
  {
    const ProfileSpan span("allocates");
    const Buffer small(1000);
    EXPECT_EQ(memory_in_use(), before + 1024);  // whole cache lines
    { const Buffer large(3 << 20); }            // whole huge pages
  }
  EXPECT_EQ(memory_in_use(), before);
  EXPECT_EQ(profiler.take_spans().at(0).peak, before + 1024 + (4 << 20));
  { const ProfileSpan span("nothing"); }
  EXPECT_EQ(profiler.take_spans().at(0).peak, before);
  EXPECT_EQ(memory_peak(), before + 1024 + (4 << 20));
  reset_memory_peak();
  EXPECT_EQ(memory_peak(), before);
}

/// Sets the number of threads, and brings the old one back.
struct WithThreads {
  const int before = thread_count();
  explicit WithThreads(int threads) { set_thread_count(threads); }
  ~WithThreads() { set_thread_count(before); }
};

TEST(Profile, TasksAreOfNamedThreads) {
  const WithThreads two(2);
  Profiler profiler({.tasks = true});
  std::atomic<int> arrived{0};
  {
    const ProfileSpan span("job");
    parallel_for(2, [&](int64_t) {  // each waits for the other: two threads take part
      for (++arrived; arrived < 2;) std::this_thread::yield();
    });
  }
  const std::vector<Span> spans = profiler.take_spans();
  const std::vector<std::string> threads = profiler.threads();
  ASSERT_EQ(spans.size(), 3u);
  std::map<std::string, int> seen;
  for (const Span& span : spans) {
    EXPECT_EQ(span.name, "job");
    if (span.kind != SpanKind::task) continue;
    ++seen[threads.at(static_cast<size_t>(span.thread))];
    EXPECT_EQ(span.parent, spans.back().id);
  }
  EXPECT_EQ(seen["worker 1"], 1);
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_EQ(summarize(spans).size(), 1u);  // tasks are no rows
}

TEST(Profile, EveryThreadHasItsOwnSpans) {
  Profiler profiler;
  const auto work = [] {
    for (int n = 0; n < 200; ++n) {
      const ProfileSpan outer("outer");
      const ProfileSpan inner("inner");
    }
  };
  std::thread other(work);
  work();
  other.join();
  const std::vector<Span> spans = profiler.take_spans();
  ASSERT_EQ(spans.size(), 800u);
  std::map<int64_t, int32_t> thread_of;
  for (const Span& span : spans) thread_of[span.id] = span.thread;
  for (const Span& span : spans) {
    if (span.parent != 0) {
      EXPECT_EQ(thread_of.at(span.parent), span.thread);
    }
  }
}

TEST(Profile, AnErrorClosesItsSpan) {
  Profiler profiler;
  EXPECT_THROW(
      {
        const ProfileSpan span("fails");
        throw std::runtime_error("no");
      },
      std::runtime_error);
  { const ProfileSpan span("next"); }
  const std::vector<Span> spans = profiler.take_spans();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[1].parent, 0);
}

TEST(Profile, WhatIsOpenWhenTheProfilerStopsIsDropped) {
  {
    Profiler first;
    std::optional<ProfileSpan> span(std::in_place, "of the first");
    first.stop();
    Profiler second;
    span.reset();
    { const ProfileSpan own("of the second"); }
    const std::vector<Span> spans = second.take_spans();
    ASSERT_EQ(spans.size(), 1u);
    EXPECT_EQ(spans[0].name, "of the second");
  }
  EXPECT_FALSE(is_profiling());
  Call().run();  // nobody collects
  Profiler third;
  EXPECT_TRUE(third.take_spans().empty());
}

TEST(Profile, OneAtATime) {
  std::vector<std::string> names;
  Profiler profiler({.on_span = [&](Span&& span) { names.push_back(span.name); }});
  EXPECT_EQ(error_of([] { Profiler second; }), "[Profiler] another Profiler collects already: there is one at a time");
  { const ProfileSpan span("seen"); }
  EXPECT_EQ(names, std::vector<std::string>{"seen"});
  EXPECT_TRUE(profiler.take_spans().empty());
}

}  // namespace
}  // namespace attn::test
