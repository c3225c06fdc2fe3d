// core: element types, shapes and errors, memory, random numbers, and the pool under every use a host may put it to.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <type_traits>
#include <vector>

#include "attn/core.h"
#include "core/checker.h"
#include "core/scratch.h"

// Options of the sanitizers before main(): an impossible allocation fails as it does without them, and a forked
// child may start threads.
extern "C" const char* __asan_default_options();
extern "C" const char* __tsan_default_options();
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1:die_after_fork=0"; }

namespace attn {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// ---------------------------------------------------------------------------------------------------- element types

TEST(Dtype, SizesAndNames) {
  const std::vector<std::tuple<DType, int64_t, std::string_view, bool>> expected = {
      {DType::float32, 4, "float32", true},   {DType::float64, 8, "float64", true},
      {DType::bfloat16, 2, "bfloat16", true}, {DType::float16, 2, "float16", true},
      {DType::boolean, 1, "boolean", false},  {DType::int32, 4, "int32", false},
      {DType::int64, 8, "int64", false}};
  for (const auto& [dtype, size, name, floating] : expected) {
    EXPECT_EQ(size_of(dtype), size);
    EXPECT_EQ(name_of(dtype), name);
    EXPECT_EQ(is_floating(dtype), floating) << name;
  }
}

// The value of a 16-bit pattern by the definition of its format: an oracle that shares nothing with the library.
double value_of(uint16_t bits, int fraction_bits, int bias) {
  const int exponent_bits = 15 - fraction_bits;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

template <class Half>
struct Format {
  static constexpr int fraction_bits = std::is_same_v<Half, float16> ? 10 : 7;
  static constexpr int bias = std::is_same_v<Half, float16> ? 15 : 127;
  static constexpr int infinity = 0x7fff >> fraction_bits << fraction_bits;
  static constexpr int quiet_bit = 1 << (fraction_bits - 1);

  static Half pattern(int bits) {
    Half half;
    half.bits = static_cast<uint16_t>(bits);
    return half;
  }
  static double value(int bits) { return value_of(static_cast<uint16_t>(bits), fraction_bits, bias); }
};

template <class Half>
void expect_every_pattern_comes_back() {
  using F = Format<Half>;
  for (int bits = 0; bits < 65536; ++bits) {
    const float wide = F::pattern(bits);
    const int back = Half(wide).bits;
    const double expected = F::value(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << std::hex << bits;
      ASSERT_EQ(back | F::quiet_bit, bits | F::quiet_bit) << std::hex << bits;  // sign and payload survive
    } else {
      ASSERT_EQ(static_cast<double>(wide), expected) << std::hex << bits;
      ASSERT_EQ(std::signbit(wide), bits >= 0x8000) << std::hex << bits;
      ASSERT_EQ(back, bits) << std::hex << bits;
    }
  }
}

TEST(Dtype, EveryPatternWidensExactlyAndComesBack) {
  expect_every_pattern_comes_back<bfloat16>();
  expect_every_pattern_comes_back<float16>();
}

// Between every two neighbours: the midpoint goes to the even one, a float32 step off the midpoint to the nearer one.
template <class Half>
void expect_nearest_even() {
  using F = Format<Half>;
  for (int bits = 0; bits < F::infinity; ++bits) {
    // Above the greatest finite value is the power of two that the format no longer has.
    const double above = bits + 1 < F::infinity ? F::value(bits + 1) : 2 * F::value(bits) - F::value(bits - 1);
    const double middle = (F::value(bits) + above) / 2;
    const float tie = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(tie), middle) << "the midpoint is a float32";
    const int even = bits % 2 == 0 ? bits : bits + 1;
    for (int sign : {0, 0x8000}) {
      const float s = sign ? -1.0f : 1.0f;
      ASSERT_EQ(Half(s * tie).bits, even | sign) << std::hex << bits;
      ASSERT_EQ(Half(s * std::nextafter(tie, 0.0f)).bits, bits | sign) << std::hex << bits;
      ASSERT_EQ(Half(s * std::nextafter(tie, kInfinity)).bits, (bits + 1) | sign) << std::hex << bits;
    }
  }
}

TEST(Dtype, RoundsToNearestEvenBetweenAllNeighbours) {
  expect_nearest_even<bfloat16>();
  expect_nearest_even<float16>();
}

template <class Half>
void expect_right_extremes() {
  EXPECT_EQ(Half(kInfinity).bits, Format<Half>::infinity);
  EXPECT_EQ(Half(-kInfinity).bits, Format<Half>::infinity | 0x8000);
  EXPECT_EQ(Half(std::numeric_limits<float>::max()).bits, Format<Half>::infinity);
  EXPECT_EQ(Half(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(Half(-0.0f).bits, 0x8000);
  // A NaN whose payload is in the bits that are cut off must not turn into infinity.
  for (uint32_t nan : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7fc00000u}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(Half(std::bit_cast<float>(nan))))) << std::hex << nan;
  }
}

TEST(Dtype, Float16OverflowsToInfinity) {
  EXPECT_EQ(float16(65519.0f).bits, 0x7bff);
  for (float value : {65520.0f, 65536.0f, 98304.0f, 131008.0f, 131072.0f, 1e6f}) {
    EXPECT_EQ(float16(value).bits, 0x7c00) << value;
  }
}

TEST(Dtype, ExtremesOfFloat32) {
  expect_right_extremes<bfloat16>();
  expect_right_extremes<float16>();
}

// ------------------------------------------------------------------------------------------- shapes, views and errors

TEST(Shape, PrintsAndStrides) {
  EXPECT_EQ(to_string(Shape<4>{2, 8, 1024, 64}), "[2, 8, 1024, 64]");
  EXPECT_EQ(to_string(Shape<1>{-3}), "[-3]");
  EXPECT_EQ(to_string(nullptr, 0), "[]");
  EXPECT_EQ(contiguous_strides<3>({2, 3, 4}), (Shape<3>{12, 4, 1}));
}

TEST(Tensor, IsZeroAtBirthAndViewsItsOwnMemory) {
  Tensor<float, 2> tensor({3, 4});
  EXPECT_EQ(tensor.count(), 12);
  EXPECT_EQ(std::accumulate(tensor.data(), tensor.data() + 12, 0.0f), 0.0f);
  View<2> view = tensor;
  EXPECT_TRUE(view);
  EXPECT_EQ(view.data, tensor.data());
  EXPECT_EQ(view.dtype, DType::float32);
  EXPECT_EQ(view.stride, (Shape<2>{4, 1}));
  EXPECT_FALSE(View<2>{});
  EXPECT_EQ(ConstView<2>(view).count(), 12);
}

TEST(Error, NamesTheOperationAndEveryReason) {
  Checker check("matmul");
  EXPECT_TRUE(check.require(true, "not recorded"));
  EXPECT_NO_THROW(check.done());
  EXPECT_FALSE(check.require(false, "a is [2, 3]"));
  EXPECT_FALSE(check.require(false, "b is [4, 5]"));
  EXPECT_FALSE(check.ok());
  try {
    check.done();
    FAIL() << "done() did not throw";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[matmul] a is [2, 3]; b is [4, 5]");
    EXPECT_EQ(error.operation(), "matmul");
    EXPECT_EQ(error.reasons(), (std::vector<std::string>{"a is [2, 3]", "b is [4, 5]"}));
  }
}

// ----------------------------------------------------------------------------------------------------------- memory

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 64 == 0; }

TEST(Buffer, IsAlignedAndZeroOnRequest) {
  mallopt(M_PERTURB, 0x5a);  // malloc fills what it hands out
  for (int64_t bytes : {int64_t{1}, int64_t{63}, int64_t{4096}, (int64_t{4} << 20) - 1, (int64_t{4} << 20) + 1}) {
    Buffer buffer(bytes, true);
    EXPECT_TRUE(aligned(buffer.data())) << bytes;
    EXPECT_EQ(buffer.bytes(), bytes);
    const auto* first = static_cast<const uint8_t*>(buffer.data());
    EXPECT_EQ(std::count(first, first + bytes, 0), bytes);
    std::memset(buffer.data(), 0xff, static_cast<size_t>(bytes));  // the sanitizers see every byte written
  }
  mallopt(M_PERTURB, 0);
}

TEST(Buffer, EmptyMovedAndImpossible) {
  EXPECT_EQ(Buffer().data(), nullptr);
  EXPECT_EQ(Buffer(0).bytes(), 0);
  Buffer first(100);
  void* memory = first.data();
  Buffer second = std::move(first);
  EXPECT_EQ(second.data(), memory);
  EXPECT_THROW(Buffer(-1), Error);
  EXPECT_THROW(Buffer(int64_t{1} << 60), std::bad_alloc);
}

TEST(Scratch, GrowsAndIsReused) {
  std::thread([] {
    void* small = thread_scratch(1000);
    EXPECT_TRUE(aligned(small));
    EXPECT_EQ(thread_scratch(1000), small);
    EXPECT_EQ(thread_scratch(10), small);
    void* large = thread_scratch(int64_t{8} << 20);
    EXPECT_TRUE(aligned(large));
    std::memset(large, 1, size_t{8} << 20);
    EXPECT_EQ(thread_scratch(1000), large) << "it never shrinks";
  }).join();
}

TEST(Scratch, BelongsToOneThread) {
  void* mine = thread_scratch(64);
  void* other = nullptr;
  std::thread([&] { other = thread_scratch(64); }).join();
  EXPECT_NE(mine, other);
}

// --------------------------------------------------------------------------------------------------- random numbers

TEST(Philox, KnownAnswersOfRandom123) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox(0, {0, 0, 0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~uint64_t{0}, {~0u, ~0u, ~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, IsAStreamOverPhilox) {
  Random random(7, 0x0000000500000003);
  for (uint32_t block = 0; block < 3; ++block) {
    for (uint32_t word : philox(7, {block, 0, 3, 5})) EXPECT_EQ(random.next(), word);
  }
}

TEST(Random, StreamsAndSeedsDiffer) {
  EXPECT_EQ(Random(1).next(), Random(1).next());
  EXPECT_NE(Random(1).next(), Random(2).next());
  EXPECT_NE(Random(1, 0).next(), Random(1, 1).next());
}

// Statistics of n draws have standard error sigma / sqrt(n); a fair stream does not stray by five of those.
TEST(Random, MomentsAreRight) {
  constexpr int n = 100000;
  const double five_sigma = 5 / std::sqrt(n);
  Random random(42);
  double sum = 0, squares = 0, normal_sum = 0, normal_squares = 0;
  for (int i = 0; i < n; ++i) {
    const double u = random.uniform();
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    squares += u * u;
    const double z = random.normal();
    ASSERT_TRUE(std::isfinite(z));
    normal_sum += z;
    normal_squares += z * z;
  }
  EXPECT_NEAR(sum / n, 1.0 / 2, five_sigma * std::sqrt(1.0 / 12));
  EXPECT_NEAR(squares / n, 1.0 / 3, five_sigma * std::sqrt(4.0 / 45));
  EXPECT_NEAR(normal_sum / n, 0, five_sigma);
  EXPECT_NEAR(normal_squares / n, 1, five_sigma * std::sqrt(2.0));
}

TEST(Random, BelowIsUniformAndInRange) {
  constexpr int n = 70000, bound = 7;
  Random random(3);
  std::array<int, bound> seen{};
  for (int i = 0; i < n; ++i) {
    const int64_t value = random.below(bound);
    ASSERT_GE(value, 0);
    ASSERT_LT(value, bound);
    ++seen[static_cast<size_t>(value)];
  }
  const double p = 1.0 / bound;
  for (int count : seen) EXPECT_NEAR(count, n * p, 5 * std::sqrt(n * p * (1 - p)));
  EXPECT_EQ(random.below(1), 0);
  EXPECT_LT(random.below(INT64_MAX), INT64_MAX);
}

// --------------------------------------------------------------------------------------------------------- the pool

// Leaves the pool as a program finds it.
class Pool : public testing::Test {
 protected:
  void TearDown() override {
    set_executor(nullptr);
    set_thread_count(0);
  }
};

// Enough work that workers have time to join in.
int64_t some_work(int64_t task) {
  int64_t value = task;
  for (int i = 0; i < 200; ++i) value = value * 48271 % 2147483647 + i;
  return value;
}

// Runs `tasks` tasks and checks that each ran exactly once.
void expect_each_once(int64_t tasks) {
  std::vector<int> runs(static_cast<size_t>(tasks), 0);
  std::vector<int64_t> results(static_cast<size_t>(tasks), 0);
  parallel_for(tasks, [&](int64_t task) {
    ++runs[static_cast<size_t>(task)];  // not atomic: the thread sanitizer would report a task that runs twice
    results[static_cast<size_t>(task)] = some_work(task);
  });
  for (int64_t task = 0; task < tasks; ++task) {
    ASSERT_EQ(runs[static_cast<size_t>(task)], 1) << task;
    ASSERT_EQ(results[static_cast<size_t>(task)], some_work(task)) << task;
  }
}

// Tasks that wait for one another: they all arrive only if as many threads run them.
bool run_side_by_side(int tasks) {
  std::atomic<int> arrived{0};
  std::atomic<bool> late{false};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  parallel_for(tasks, [&](int64_t) {
    ++arrived;
    while (arrived < tasks && !late) {
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() > deadline) late = true;
    }
  });
  return !late;
}

TEST_F(Pool, EachTaskRunsOnceForAnyThreadCount) {
  for (int threads = 1; threads <= 16; ++threads) {
    set_thread_count(threads);
    EXPECT_EQ(thread_count(), threads);
    for (int64_t tasks : {0, 1, 2, 3, 15, 16, 17, 1000}) {
      for (int again = 0; again < 20; ++again) expect_each_once(tasks);
    }
  }
}

TEST_F(Pool, DefaultsToTheHardware) {
  set_thread_count(5);
  set_thread_count(0);
  EXPECT_GE(thread_count(), 1);
  EXPECT_LE(thread_count(), static_cast<int>(std::thread::hardware_concurrency()));
}

TEST_F(Pool, OneTaskOrOneThreadStaysOnTheCaller) {
  const auto caller = std::this_thread::get_id();
  const auto expect_here = [&](int64_t) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    std::this_thread::sleep_for(std::chrono::microseconds(50));  // time for others to step in
  };
  set_thread_count(8);
  parallel_for(1, expect_here);
  set_thread_count(1);
  parallel_for(100, expect_here);
}

TEST_F(Pool, ASingleTaskLeavesThePoolToItsOwnCalls) {
  set_thread_count(4);
  parallel_for(1, [](int64_t) { EXPECT_TRUE(run_side_by_side(4)); });
}

TEST_F(Pool, ACallInsideATaskRunsInline) {
  set_thread_count(4);
  std::atomic<int> inner{0};
  parallel_for(16, [&](int64_t) {
    const auto here = std::this_thread::get_id();
    parallel_for(16, [&](int64_t) {
      EXPECT_EQ(std::this_thread::get_id(), here);
      parallel_for(2, [&](int64_t) { ++inner; });
    });
  });
  EXPECT_EQ(inner, 16 * 16 * 2);
}

TEST_F(Pool, SixtyFourCallersAtOnce) {
  set_thread_count(4);
  std::vector<std::thread> callers;
  for (int i = 0; i < 64; ++i)
    callers.emplace_back([] {
      for (int call = 0; call < 50; ++call) expect_each_once(1 + call);
    });
  for (std::thread& caller : callers) caller.join();
}

TEST_F(Pool, UsesAllItsThreads) {
  for (int threads : {4, 7, 2}) {
    set_thread_count(threads);
    for (int again = 0; again < 10; ++again) EXPECT_TRUE(run_side_by_side(threads));
  }
}

TEST_F(Pool, SleepingWorkersWakeUp) {
  set_thread_count(4);
  for (int tasks : {4, 2, 3, 4}) {
    EXPECT_TRUE(run_side_by_side(4));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(run_side_by_side(tasks));
  }
}

TEST_F(Pool, TheFirstExceptionArrivesAfterAllTasksEnded) {
  for (int threads : {1, 4}) {
    set_thread_count(threads);
    for (int again = 0; again < 50; ++again) {
      std::atomic<int> ended{0};
      try {
        parallel_for(32, [&](int64_t task) {
          ++ended;
          if (task % 8 == 3) throw std::runtime_error("task " + std::to_string(task % 8));
        });
        FAIL() << "the exception was lost";
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "task 3");
      }
      EXPECT_EQ(ended, 32);
    }
    expect_each_once(100);  // and the pool is as good as before
  }
}

TEST_F(Pool, ThreadCountChangesDuringUse) {
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    for (int i = 0; !stop; ++i) {
      set_thread_count(1 + i % 6);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([] {
      for (int call = 0; call < 300; ++call) expect_each_once(40);
    });
  }
  for (std::thread& caller : callers) caller.join();
  stop = true;
  changer.join();
  // From inside a task as well: it takes effect with the next call.
  parallel_for(8, [](int64_t task) { set_thread_count(static_cast<int>(task) + 1); });
  expect_each_once(40);
}

class CountingExecutor : public Executor {
 public:
  void run(int64_t tasks, TaskRef body) override {
    ++calls;
    for (int64_t task = tasks - 1; task >= 0; --task) body(task);
  }
  int threads() const override { return 3; }
  int calls = 0;
};

TEST_F(Pool, AHostMayBringItsOwnExecutor) {
  CountingExecutor host;
  set_executor(&host);
  EXPECT_EQ(thread_count(), 3);
  expect_each_once(10);
  EXPECT_EQ(host.calls, 1);
  EXPECT_THROW(parallel_for(2, [](int64_t) { throw std::runtime_error("task"); }), std::runtime_error);
  set_executor(nullptr);
  expect_each_once(10);
  EXPECT_EQ(host.calls, 2);
}

class WrappingExecutor : public Executor {
 public:
  void run(int64_t tasks, TaskRef body) override {
    own_executor().run(tasks, [&](int64_t task) {
      ++counted;
      body(task);
    });
    if (fails) throw std::runtime_error("host");
  }
  int threads() const override { return own_executor().threads(); }
  std::atomic<int> counted{0};
  bool fails = false;
};

TEST_F(Pool, AHostMayWrapTheLibrarysPool) {
  const int before = thread_count();
  WrappingExecutor host;
  set_executor(&host);
  EXPECT_EQ(thread_count(), before);
  expect_each_once(40);
  EXPECT_EQ(host.counted, 40);
  host.fails = true;  // as one does that was interrupted
  EXPECT_THROW(parallel_for(2, [](int64_t) {}), std::runtime_error);
  set_executor(nullptr);
}

// ------------------------------------------------------------------------------------------------------------- fork

// Forks; the child computes on four threads of its own and ends.
void expect_child_computes() {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a child that hangs is killed
    std::atomic<int64_t> sum{0};
    for (int call = 0; call < 3; ++call) parallel_for(64, [&](int64_t task) { sum += task; });
    _exit(sum == 3 * 63 * 64 / 2 && run_side_by_side(4) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

// Locks of the address sanitizer do not survive a fork: by then all threads have started, and allocate nothing.
TEST_F(Pool, AForkedChildComputes) {
  set_thread_count(4);
  ASSERT_TRUE(run_side_by_side(4));
  for (int i = 0; i < 100; ++i) {
    expect_each_once(16);
    ASSERT_NO_FATAL_FAILURE(expect_child_computes());
  }
}

TEST_F(Pool, AForkWhileOthersComputeDoesNotHangTheChild) {
  set_thread_count(4);
  ASSERT_TRUE(run_side_by_side(4));
  std::atomic<bool> stop{false};
  std::atomic<int> started{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i)
    callers.emplace_back([&] {
      for (++started; !stop;) parallel_for(32, [](int64_t task) { EXPECT_GE(some_work(task), 0); });
    });
  while (started < 2) std::this_thread::yield();
  for (int i = 0; i < 100 && !HasFatalFailure(); ++i) expect_child_computes();
  stop = true;
  for (std::thread& caller : callers) caller.join();
}

int threads_of_process() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
}

// Runs when all static objects are gone: no worker may be left that could touch them, or code that is being unloaded.
int threads_before_pool = 0;
__attribute__((destructor)) void expect_no_workers_at_exit() {
  if (threads_before_pool == 0) return;
  for (int i = 0; i < 1000; ++i) {  // a thread that was joined stays listed for a moment
    if (threads_of_process() == threads_before_pool) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  _exit(3);
}

// The body runs in a new process, so that its static destructors meet the pool as those of any program do.
TEST_F(Pool, AProcessExitsCleanlyWithoutWorkers) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto use_and_exit = [] {
    alarm(20);
    std::thread([] {}).join();  // a sanitizer starts a thread of its own beside the first one
    threads_before_pool = threads_of_process();
    set_thread_count(4);
    std::exit(run_side_by_side(4) ? 0 : 1);
  };
  EXPECT_EXIT(use_and_exit(), testing::ExitedWithCode(0), "");
}

// From inside a task, too, where the pool cannot wait for its workers.
TEST_F(Pool, AProcessMayExitInsideATask) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto exit_inside = [] {
    alarm(20);
    set_thread_count(4);
    std::atomic<bool> leaving{false};
    parallel_for(64, [&](int64_t) {
      if (!leaving.exchange(true)) std::exit(0);
      std::this_thread::sleep_for(std::chrono::seconds(10));
    });
  };
  EXPECT_EXIT(exit_inside(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace attn
