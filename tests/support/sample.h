// sample: how much a run tests. Effort, and samples of grids that are too large to walk.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

namespace attn::test {

#if defined(ATTN_SANITIZED)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// -------------------------------------------------------------------------------------------------------------- effort

enum class Effort { quick, normal, exhaustive };

/// ATTN_EXHAUSTIVE=1 takes as much as fits into each sample's seconds; ATTN_QUICK=1 and the sanitizers take little.
inline Effort effort() {
  const auto is_set = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && std::string(value) == "1";
  };
  if (is_set("ATTN_EXHAUSTIVE")) return Effort::exhaustive;
  return is_set("ATTN_QUICK") || kSanitized ? Effort::quick : Effort::normal;
}

inline int64_t by_effort(int64_t quick, int64_t normal, int64_t exhaustive) {
  switch (effort()) {
    case Effort::quick: return quick;
    case Effort::normal: return normal;
    case Effort::exhaustive: return exhaustive;
  }
  return normal;
}

inline int64_t number_in(const char* variable, int64_t otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::strtoll(value, nullptr, 10);
}

/// ATTN_SEED: another one takes other cases. Without it every run takes the same.
inline uint64_t run_seed() { return static_cast<uint64_t>(number_in("ATTN_SEED", 1)); }

// ------------------------------------------------------------------------------------------------------------- samples

/// How many cases of a grid a run takes; the exhaustive one as many as fit into its seconds.
struct Share {
  int64_t quick, normal;
  double seconds;
};

/// The cases of a grid in an order that spreads evenly: the next one is a golden section further, so that any part of
/// the order sees every part of the grid, and none comes twice. The seed says where it begins.
class Walk {
 public:
  Walk(int64_t grid, uint64_t seed)
      : grid_(grid), step_(std::max<int64_t>(1, static_cast<int64_t>(0.6180339887 * static_cast<double>(grid)))) {
    while (std::gcd(step_, grid_) != 1) ++step_;
    constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;  // 2^64 times the section: consecutive seeds begin far apart
    first_ = static_cast<int64_t>((seed * kGolden >> 32) * static_cast<uint64_t>(grid) >> 32);
  }
  int64_t operator[](int64_t n) const { return (first_ + n) % grid_ * step_ % grid_; }

 private:
  int64_t grid_, step_, first_;
};

/// A crash says which case it was, as a failure does.
inline char case_in_work[64];
inline void name_case_and_die(int number) {
  if (write(STDERR_FILENO, case_in_work, std::strlen(case_in_work)) < 0) _exit(1);
  std::signal(number, SIG_DFL);
  std::raise(number);
}

/// Calls body(number) for a sample of the numbers [0, grid) and returns how many it took. ATTN_CASE=number takes that
/// one alone, ATTN_SECONDS limits the time of any sample.
template <class Body>
int64_t sample(int64_t grid, const Share& share, const Body& body) {
  using Clock = std::chrono::steady_clock;
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  const bool exhaustive = effort() == Effort::exhaustive;
  const int64_t only = number_in("ATTN_CASE", -1);
  const int64_t most = only >= 0 ? 1 : std::min(grid, by_effort(share.quick, share.normal, grid));
  const double limit = exhaustive ? share.seconds : std::numeric_limits<double>::infinity();
  const char* given = std::getenv("ATTN_SECONDS");
  const double seconds = given == nullptr ? limit : std::strtod(given, nullptr);
  if (!kSanitized) std::signal(SIGSEGV, name_case_and_die);
  const Walk walk(grid, run_seed());
  const Clock::time_point start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  int64_t taken = 0;
  for (; taken < most && (taken == 0 || elapsed() < seconds) && !testing::Test::HasFatalFailure(); ++taken) {
    const int64_t number = only >= 0 ? only : walk[taken];
    std::snprintf(case_in_work, sizeof case_in_work, "%sATTN_CASE=%lld\n", exhaustive ? "ATTN_EXHAUSTIVE=1 " : "",
                  static_cast<long long>(number));
    const testing::ScopedTrace trace(__FILE__, __LINE__, case_in_work);
    body(number);
  }
  std::printf("sampled %s.%s: %lld of %lld cases in %.1f s, seed %llu\n", test.test_suite_name(), test.name(),
              static_cast<long long>(taken), static_cast<long long>(grid), elapsed(),
              static_cast<unsigned long long>(run_seed()));
  return taken;
}

}  // namespace attn::test
