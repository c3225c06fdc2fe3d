// What may not come next in a text that is made, token by token.
#include "generate/loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace attn::test {
namespace {

using generate::GenerateOptions;
using Text = std::vector<int64_t>;

constexpr int64_t kEnd = 4;

TEST(Forbidden, IsWhatEachRuleSays) {
  const auto rule = [](const std::function<void(GenerateOptions&)>& change, const Text& text, int64_t given) {
    GenerateOptions options;
    options.eos_token_ids = {kEnd};
    change(options);
    return generate::forbidden(text, given, options);
  };
  const auto first = [](auto& o) { o.begin_suppress_tokens = {0, 3}; };
  EXPECT_EQ(rule(first, {1, 2}, 2), (Text{0, 3})) << "the first that is chosen";
  EXPECT_EQ(rule(first, {1, 2, 3}, 2), Text()) << "the second";
  const auto suppressed = [](auto& o) { o.suppress_tokens = {2}; };
  EXPECT_EQ(rule(suppressed, {1, 2, 3}, 2), (Text{2}));
  const auto chosen = [](auto& o) { o.min_new_tokens = 2; };
  EXPECT_EQ(rule(chosen, {1, 2, 3}, 2), (Text{kEnd})) << "one of two is there";
  EXPECT_EQ(rule(chosen, {1, 2, 3, 3}, 2), Text());
  const auto whole = [](auto& o) { o.min_length = 3; };
  EXPECT_EQ(rule(whole, {1, 2}, 2), (Text{kEnd})) << "the prompt counts";
  EXPECT_EQ(rule(whole, {1, 2, 3}, 2), Text());
  const auto repeat = [&](int64_t tokens, const Text& text) {
    return rule([&](auto& o) { o.no_repeat_ngram_size = tokens; }, text, 1);
  };
  EXPECT_EQ(repeat(1, {3, 1, 3}), (Text{3, 1, 3})) << "each token once";
  EXPECT_EQ(repeat(2, {1, 2, 1, 3, 1}), (Text{2, 3})) << "what followed the 1 before";
  EXPECT_EQ(repeat(3, {1, 2, 0, 3, 2, 1, 2}), (Text{0})) << "1 2 was followed by 0, 3 2 by 1";
  EXPECT_EQ(repeat(2, {1, 1}), (Text{1}));
  EXPECT_EQ(repeat(3, {1}), Text()) << "too short to repeat anything";
}

TEST(Biases, BelongToTheTokenThatCompletesARun) {
  GenerateOptions options;
  options.sequence_bias = {{{5}, 1}, {{1, 2}, 2}, {{2, 1, 7}, 4}};
  const auto of = [&](const Text& text) {
    std::vector<std::pair<int64_t, double>> found;
    generate::add_biases(text, options, [&](int64_t token, double bias) { found.emplace_back(token, bias); });
    return found;
  };
  using Found = std::vector<std::pair<int64_t, double>>;
  EXPECT_EQ(of({2, 1}), (Found{{5, 1}, {2, 2}, {7, 4}}));
  EXPECT_EQ(of({1}), (Found{{5, 1}, {2, 2}})) << "shorter than a run";
  EXPECT_EQ(of({1, 2}), (Found{{5, 1}}));
}

/// The nucleus of a large vocabulary is found without sorting it all.
TEST(Nucleus, IsThatOfTheSortedVocabulary) {
  constexpr int64_t kVocabulary = 3000;
  Random numbers(1);
  std::vector<float> logits;
  for (int64_t n = 0; n < kVocabulary; ++n) logits.push_back(static_cast<float>(numbers.below(64)) / 16);
  std::vector<std::pair<double, int64_t>> sorted;  // minus the weight, and the token
  double total = 0;
  for (int64_t n = 0; n < kVocabulary; ++n) {
    sorted.emplace_back(-std::exp(logits[static_cast<size_t>(n)]), n);
    total -= sorted.back().first;
  }
  std::sort(sorted.begin(), sorted.end());
  for (const double top_p : {0.001, 0.02, 0.1, 0.5, 0.95, 0.9999}) {
    size_t kept = 0;
    double sum = 0;
    while (sum < top_p * total) sum -= sorted[kept++].first;
    for (uint64_t seed = 0; seed < 200; ++seed) {
      Random random(seed), same(seed);
      double left = same.uniform() * sum;
      size_t chosen = 0;
      while (chosen + 1 < kept && (left += sorted[chosen].first) >= 0) ++chosen;
      EXPECT_EQ(generate::sample(logits, {}, {.top_p = top_p}, random), sorted[chosen].second) << top_p << ' ' << seed;
    }
  }
}

TEST(Drafter, WritesWhatFollowedTheLastRun) {
  GenerateOptions options;
  options.speculation = {.tokens = 4, .ngram = 3};
  const auto of = [&](const Text& text, int64_t most = 9) { return generate::Drafter(options).next(text, most); };
  EXPECT_EQ(of({1, 2, 3, 9, 8, 1, 2, 3}), (Text{9, 8, 1, 2})) << "at most four";
  EXPECT_EQ(of({1, 2, 3, 9, 8, 1, 2, 3}, 2), (Text{9, 8}));
  EXPECT_EQ(of({7, 2, 3, 5, 4, 2, 3, 6, 1, 2, 3}), (Text{6, 1, 2, 3})) << "the last of the longest runs";
  EXPECT_EQ(of({1, 2, 3, 5, 4, 2, 3, 6, 1, 2, 3}), (Text{5, 4, 2, 3})) << "a longer run before a later one";
  EXPECT_EQ(of({4, 4}), (Text{4})) << "up to the end of the text";
  EXPECT_EQ(of({1, 2, 3}), Text());
  EXPECT_EQ(of({1}), Text());
  EXPECT_EQ(of({4, 4, 4}, 0), Text());
}

TEST(Drafter, WritesLessWhileItIsRejected) {
  GenerateOptions options;
  options.speculation = {.tokens = 4, .ngram = 1};
  generate::Drafter drafter(options);
  const Text text = {1, 2, 3, 4, 5, 6, 1};
  const auto count = [&] { return drafter.next(text, 9).size(); };
  EXPECT_EQ(count(), 4u);
  drafter.judge(4, 1);
  EXPECT_EQ(count(), 3u);
  for (int n = 0; n < 5; ++n) drafter.judge(2, 0);
  EXPECT_EQ(count(), 1u);
  drafter.judge(1, 1);
  EXPECT_EQ(count(), 3u);
  drafter.judge(3, 3);
  EXPECT_EQ(count(), 4u);
}

}  // namespace
}  // namespace attn::test
