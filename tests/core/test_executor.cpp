// Threads of a host: what the library makes of an Executor that says or does something odd.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>

#include "support/arrays.h"
#include "support/errors.h"

namespace attn::test {
namespace {

/// Runs its tasks on the caller, each as often as `times` says, and says by `threads_said` how many threads it has.
class Odd final : public Executor {
 public:
  explicit Odd(std::function<int()> threads_said, std::function<int(int64_t)> times = nullptr)
      : threads_said_(std::move(threads_said)), times_(std::move(times)) {}
  void run(int64_t tasks, TaskRef body) override {
    for (int64_t task = 0; task < tasks; ++task)
      for (int n = times_ ? times_(task) : 1; n > 0; --n) body(task);
  }
  int threads() const override { return threads_said_(); }

 private:
  std::function<int()> threads_said_;
  std::function<int(int64_t)> times_;
};

/// The Error of a call has all these texts.
template <class Call>
void expect_error(const char* name, const Call& call, const std::vector<std::string>& texts) {
  const std::string error = error_of(call);
  for (const std::string& text : texts) EXPECT_NE(error.find(text), std::string::npos) << name << ": " << error;
}

class HostExecutor : public testing::Test {
 protected:
  void TearDown() override { set_executor(nullptr); }
};

/// The bits of a forward and backward whose plans ask for the number of threads: many heads, packed keys, and one row.
std::vector<std::vector<std::byte>> results() {
  Random random(3);
  std::vector<std::vector<std::byte>> bytes;
  for (const int64_t queries : {int64_t{1}, int64_t{70}}) {
    const Shape<4> size = {2, 6, queries, 16}, keys = {2, 3, 300, 16};
    Array<4> q(DType::float32, size), k(DType::float32, keys), v(DType::float32, keys), out = q, dq = q, dk = k, dv = v;
    for (Array<4>* x : {&q, &k, &v}) x->fill_normal(random);
    Array<3> lse(DType::float32, {2, 6, queries});
    attention(q.view(), k.view(), v.view(), out.view(), lse.view());
    attention_backward(q.view(), k.view(), v.view(), out.view(), lse.view(), q.view(),
                       {.dq = dq.view(), .dk = dk.view(), .dv = dv.view()});
    EXPECT_GT(explain(q.view(), k.view(), v.view()).scratch_bytes, 0);
    for (const Array<4>* x : {&out, &dq, &dk, &dv}) bytes.push_back(x->bytes());
  }
  return bytes;
}

TEST_F(HostExecutor, AnyNumberOfThreadsIsTaken) {
  const auto expected = results();
  int call = 0;
  const std::vector<std::function<int()>> said = {
      [] { return 0; },
      [] { return -3; },
      [] { return INT_MIN; },
      [] { return INT_MAX; },
      [&] { return ++call % 5 - 1; },  // another one at each call
  };
  for (size_t n = 0; n < said.size(); ++n) {
    Odd host(said[n]);
    set_executor(&host);
    EXPECT_GE(thread_count(), 1) << n;
    EXPECT_LE(thread_count(), kMaxThreads) << n;
    EXPECT_TRUE(results() == expected) << n;
    set_executor(nullptr);
  }
}

#ifndef NDEBUG
TEST_F(HostExecutor, ATaskThatIsLeftOutOrRunTwiceIsFound) {
  Odd lazy([] { return 2; }, [](int64_t task) { return task == 3 ? 0 : 1; });
  set_executor(&lazy);
  expect_error("a task is left out", [] { parallel_for(5, [](int64_t) {}); },
               {"[parallel_for]", "did not run task 3 of 5"});
  EXPECT_THROW(results(), Error);
  Odd eager([] { return 2; }, [](int64_t task) { return task == 2 ? 3 : 1; });
  set_executor(&eager);
  int runs = 0;
  expect_error("a task is run again", [&] { parallel_for(5, [&](int64_t) { ++runs; }); }, {"ran 3 times task 2 of 5"});
  EXPECT_EQ(runs, 5) << "its second run would race";
  class Beyond final : public Executor {
    void run(int64_t tasks, TaskRef body) override {
      for (int64_t task = 0; task <= tasks; ++task) body(task);
    }
    int threads() const override { return 1; }
  } beyond;
  set_executor(&beyond);
  expect_error("a task that there is not", [] { parallel_for(5, [](int64_t) {}); }, {"ran task 5 of 5"});
}
#endif

TEST(PoolSize, WhatIsBeyondTheLimitIsRefused) {
  set_thread_count(kMaxThreads);
  EXPECT_EQ(thread_count(), kMaxThreads);
  for (const int wrong : {-1, kMaxThreads + 1, 5000})
    expect_error("threads", [&] { set_thread_count(wrong); },
                 {"[set_thread_count] the number of threads is " + std::to_string(wrong),
                  "must be from 0 (one for each processor) to 1024"});
  EXPECT_EQ(thread_count(), kMaxThreads) << "as before";
  set_thread_count(0);
}

// --------------------------------------------------------------------------------------------- random numbers in views

TEST(FillNormal, IsTheStreamInTheOrderOfTheIndices) {
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
    Array<3> x(dtype, {3, 4, 5});
    const View<3> view = x.view();
    const View<3> exchanged(view.data, dtype, {4, 5, 3}, {5, 1, 20});
    Random random(7, 2), same(7, 2);
    fill_normal(exchanged, random, 0.5);
    for (int64_t i = 0; i < 4; ++i)
      for (int64_t d = 0; d < 5; ++d)
        for (int64_t h = 0; h < 3; ++h) EXPECT_EQ(x.get({h, i, d}), rounded(0.5 * same.normal(), dtype));
    EXPECT_EQ(random.drawn(), 4u * 60);
  }
  Tensor<float, 1> line({3});
  Random random(1);
  fill_normal(line, random);
  EXPECT_EQ(line[0], static_cast<float>(Random(1).normal()));
  fill_normal(View<2>(nullptr, DType::float32, {0, 5}), random);
  EXPECT_EQ(random.drawn(), 12u);
}

TEST(FillNormal, RefusesWhatIsNoFloatingArray) {
  Random random(1);
  int32_t whole[2] = {5, 5};
  expect_error("integers", [&] { fill_normal(View<1>(whole, {2}), random); },
               {"[fill_normal] x is int32, must be a floating type"});
  EXPECT_EQ(whole[0], 5);
  float x = 0;
  expect_error("no data and a deviation", [&] { fill_normal(View<1>(nullptr, DType::float32, {2}), random, NAN); },
               {"x has no data", "the deviation is nan"});
  expect_error("a negative size", [&] { fill_normal(View<1>(&x, DType::float32, {-2}, {1}), random); },
               {"x has a negative size"});
  EXPECT_EQ(random.drawn(), 0u);
}

TEST(FillNormal, AStreamContinuesWhereItWas) {
  Random whole(9, 4);
  for (int n = 0; n < 11; ++n) {
    Random rest(9, 4, whole.drawn());
    EXPECT_EQ(rest.next(), Random(whole).next()) << n;
    whole.next();
  }
}

}  // namespace
}  // namespace attn::test
