// Samples of large grids: spread evenly, others for another seed, within their time, and repeatable one by one.
#include <set>
#include <thread>
#include <vector>

#include "sample.h"

namespace attn::test {
namespace {

constexpr int64_t kGrid = 288 * 260;
constexpr Share kShare = {.quick = 500, .normal = 500, .seconds = 0.2};

/// An environment variable, for a scope.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    const char* before = std::getenv(name);
    if (before != nullptr) before_ = before;
    was_set_ = before != nullptr;
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  Variable(const Variable&) = delete;
  ~Variable() { was_set_ ? setenv(name_, before_.c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::string before_;
  bool was_set_ = false;
};

class Sample : public testing::Test {
 protected:
  static std::vector<int64_t> numbers(const char* seed, const Share& share = kShare) {
    const Variable scope("ATTN_SEED", seed);
    std::vector<int64_t> taken;
    sample(kGrid, share, [&](int64_t number) { taken.push_back(number); });
    return taken;
  }

 private:
  const Variable ordinary_{"ATTN_EXHAUSTIVE", nullptr}, unlimited_{"ATTN_SECONDS", nullptr}, all_{"ATTN_CASE", nullptr};
};

TEST_F(Sample, AWalkTakesEveryNumberOnce) {
  for (int64_t grid = 1; grid <= 300; ++grid) {
    const Walk walk(grid, static_cast<uint64_t>(grid));
    std::set<int64_t> seen;
    for (int64_t n = 0; n < grid; ++n) seen.insert(walk[n]);
    ASSERT_EQ(static_cast<int64_t>(seen.size()), grid);
    ASSERT_EQ(*seen.rbegin(), grid - 1);
  }
}

/// No stretch of the grid is left out that is four times as long as an even share.
TEST_F(Sample, AnyPartOfAWalkSeesEveryPartOfTheGrid) {
  for (int64_t count : {50, 500, 1500})
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const Walk walk(kGrid, seed);
      std::set<int64_t> seen = {0, kGrid};
      for (int64_t n = 0; n < count; ++n) seen.insert(walk[n]);
      for (auto a = seen.begin(), b = std::next(a); b != seen.end(); ++a, ++b)
        ASSERT_LE(*b - *a, 4 * kGrid / count) << count << " from seed " << seed;
    }
}

TEST_F(Sample, TheSeedDecides) {
  EXPECT_EQ(numbers("7"), numbers("7"));
  EXPECT_EQ(numbers(nullptr), numbers("1"));
  std::set<int64_t> seen;
  for (const char* seed : {"29000000", "29000001", "29000002", "29000003", "29000004"})
    for (int64_t number : numbers(seed)) seen.insert(number);
  EXPECT_EQ(seen.size(), 5u * 500);
}

TEST_F(Sample, OneCaseAlone) {
  const Variable scope("ATTN_CASE", "123");
  EXPECT_EQ(numbers("7"), std::vector<int64_t>{123});
}

TEST_F(Sample, EndsWithItsTime) {
  const auto count = [] {
    return sample(kGrid, kShare, [](int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
  };
  const Variable hurry("ATTN_SECONDS", "0");
  EXPECT_EQ(count(), 1);
  const Variable unhurried("ATTN_SECONDS", nullptr), exhaustive("ATTN_EXHAUSTIVE", "1");
  const int64_t taken = count();
  EXPECT_GE(taken, 1);
  EXPECT_LE(taken, 40);
}

}  // namespace
}  // namespace attn::test
