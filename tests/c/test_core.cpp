// Threads of a host and random numbers in C: those of C++.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "attn/c_core.h"
#include "support/c_tensors.h"

namespace attn::test {
namespace {

/// What a host in C would have: jobs that it counts, run backwards on the caller.
struct Host {
  std::atomic<int> jobs{0};
  int32_t threads = 3;

  attn_executor executor() {
    return {sizeof(attn_executor), this,
            [](void* context, int64_t tasks, attn_task body, void* job) {
              ++static_cast<Host*>(context)->jobs;
              while (tasks-- > 0) body(job, tasks);
            },
            [](void* context) { return static_cast<Host*>(context)->threads; }};
  }
};

class CExecutor : public testing::Test {
 protected:
  void TearDown() override { attn_set_executor(nullptr); }
};

TEST_F(CExecutor, RunsTheTasksOfTheLibrary) {
  Array<4> q(DType::float32, {2, 4, 90, 8}), out = q, expected = q;
  Random random(1);
  q.fill_normal(random);
  attention(q.view(), q.view(), q.view(), expected.view());
  Host host;
  const attn_executor executor = host.executor();
  for (const int32_t threads : {3, 0, -7}) {
    host.threads = threads;
    ASSERT_EQ(attn_set_executor(&executor), ATTN_OK) << attn_last_error();
    EXPECT_EQ(attn_thread_count(), std::max(threads, 1));
    out.fill_with_nan();
    const attn_tensor cq = tensor(q), cout = tensor(out);
    const int before = host.jobs;
    ASSERT_EQ(attn_attention(&cq, &cq, &cq, &cout, nullptr, nullptr), ATTN_OK) << attn_last_error();
    EXPECT_GT(host.jobs, before);
    EXPECT_EQ(out.bytes(), expected.bytes());
  }
  std::vector<int> runs(5, 0);
  const auto count = [](void* job, int64_t task) {
    ++(*static_cast<std::vector<int>*>(job))[static_cast<size_t>(task)];
  };
  const int before = host.jobs;
  ASSERT_EQ(attn_parallel_for(5, count, &runs), ATTN_OK);
  EXPECT_EQ(runs, std::vector<int>(5, 1));
  EXPECT_EQ(host.jobs, before + 1);
  ASSERT_EQ(attn_set_executor(nullptr), ATTN_OK);
  ASSERT_EQ(attn_parallel_for(5, count, &runs), ATTN_OK);
  EXPECT_EQ(host.jobs, before + 1);
}

TEST_F(CExecutor, IsRefusedWhole) {
  Host host;
  attn_executor executor = host.executor();
  executor.run = nullptr, executor.threads = nullptr;
  EXPECT_EQ(attn_set_executor(&executor), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(),
               "[attn_set_executor] executor.run is a null pointer; executor.threads is a null pointer");
  executor = host.executor();
  executor.struct_size = 0;
  EXPECT_EQ(attn_set_executor(&executor), ATTN_INVALID_ARGUMENT);
  EXPECT_EQ(attn_parallel_for(2, nullptr, nullptr), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(), "[attn_parallel_for] body is a null pointer");
  EXPECT_EQ(attn_parallel_for(
                -2, [](void*, int64_t) {}, nullptr),
            ATTN_INVALID_ARGUMENT);
  EXPECT_EQ(host.jobs, 0);
}

TEST(CRandom, IsTheStreamOfCpp) {
  attn_random c{5, 3, 0};
  Random cpp(5, 3);
  for (int round = 0; round < 4; ++round) {
    uint32_t word = 0;
    double value = 0;
    int64_t below = 0;
    ASSERT_EQ(attn_random_next(&c, &word), ATTN_OK);
    EXPECT_EQ(word, cpp.next());
    ASSERT_EQ(attn_random_uniform(&c, &value), ATTN_OK);
    EXPECT_EQ(value, cpp.uniform());
    ASSERT_EQ(attn_random_normal(&c, &value), ATTN_OK);
    EXPECT_EQ(value, cpp.normal());
    ASSERT_EQ(attn_random_below(&c, 17, &below), ATTN_OK);
    EXPECT_EQ(below, cpp.below(17));
    EXPECT_EQ(c.drawn, cpp.drawn());
  }
  const std::array<uint32_t, 4> counter = {1, 2, 3, 4};
  std::array<uint32_t, 4> words{};
  ASSERT_EQ(attn_philox(9, counter.data(), words.data()), ATTN_OK);
  EXPECT_EQ(words, philox(9, counter));
  int32_t keeps = -1;
  for (int64_t j = 0; j < 20; ++j) {
    ASSERT_EQ(attn_dropout_keeps(3, 0.5, 0, 1, 2, j, &keeps), ATTN_OK);
    EXPECT_EQ(keeps == 1, dropout_keeps(3, 0.5, 0, 1, 2, j));
  }
}

TEST(CRandom, FillsTensors) {
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
    Array<2> x(dtype, {4, 6}), expected = x;
    attn_random c{2, 0, 0};
    Random cpp(2);
    fill_normal(expected.view(), cpp, 0.1);
    const attn_tensor t = tensor(x);
    ASSERT_EQ(attn_fill_normal(&c, 0.1, &t), ATTN_OK) << attn_last_error();
    EXPECT_EQ(x.bytes(), expected.bytes());
    EXPECT_EQ(c.drawn, cpp.drawn());
  }
}

TEST(CRandom, RefusalsLeaveTheStreamAsItIs) {
  attn_random c{2, 0, 7};
  Array<2> x(DType::int32, {4, 6});
  const attn_tensor t = tensor(x);
  EXPECT_EQ(attn_fill_normal(&c, 1, &t), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(), "[fill_normal] x is int32, must be a floating type");
  EXPECT_EQ(attn_fill_normal(nullptr, 1, nullptr), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(), "[attn_fill_normal] random is a null pointer; x is a null pointer");
  attn_tensor odd = t;
  odd.rank = 5;
  EXPECT_EQ(attn_fill_normal(&c, NAN, &odd), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(),
               "[attn_fill_normal] x has rank 5, must be 1 to 4; the deviation is nan, must be finite");
  int64_t value = 0;
  EXPECT_EQ(attn_random_below(&c, 0, &value), ATTN_INVALID_ARGUMENT);
  EXPECT_EQ(attn_random_normal(nullptr, nullptr), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(), "[attn_random_normal] random is a null pointer; value is a null pointer");
  EXPECT_EQ(attn_philox(1, nullptr, nullptr), ATTN_INVALID_ARGUMENT);
  EXPECT_EQ(attn_dropout_keeps(1, 2, 0, 0, 0, 0, nullptr), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(),
               "[attn_dropout_keeps] keeps is a null pointer; the probability is 2.000000, must be in [0, 1)");
  EXPECT_EQ(c.drawn, 7u);
}

}  // namespace
}  // namespace attn::test
