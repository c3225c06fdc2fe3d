// Sampling: one token from logits.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "generate/loop.h"

namespace attn::generate {

void check(const SamplingOptions& options) {
  Checker checker("sample");
  const auto require = [&](bool holds, const char* name, auto value, const char* allowed) {
    checker.require(holds, [&] { return std::string(name) + " is " + std::to_string(value) + ", must be " + allowed; });
  };
  require(options.temperature >= 0, "temperature", options.temperature, "a number and not negative");
  require(options.top_k >= 0, "top_k", options.top_k, "at least 0");
  require(options.top_p > 0 && options.top_p <= 1, "top_p", options.top_p, "in (0, 1]");
  require(options.min_p >= 0 && options.min_p <= 1, "min_p", options.min_p, "in [0, 1]");
  require(options.repetition_penalty > 0 && std::isfinite(options.repetition_penalty), "repetition_penalty",
          options.repetition_penalty, "positive and finite");
  checker.done();
}

void require_ids(Checker& checker, const char* name, std::span<const int64_t> ids, int64_t count) {
  for (size_t n = 0; n < ids.size(); ++n)
    if (!checker.require(ids[n] >= 0 && ids[n] < count, [&] {
          return std::string(name) + "[" + std::to_string(n) + "] is " + std::to_string(ids[n]) + ", must be in [0, " +
                 std::to_string(count) + ")";
        }))
      return;
}

namespace {

/// The greater weight, of equals the first token.
bool is_before(const WeightedToken& a, const WeightedToken& b) {
  return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
}

/// Keeps the fewest tokens with this sum of weights, in order. Few of a large vocabulary are: no others are sorted.
void keep_nucleus(std::vector<WeightedToken>& candidates, double wanted) {
  constexpr size_t kFirst = 64;
  double sum = 0;
  size_t kept = 0, sorted = 0;
  while (kept < candidates.size() && sum < wanted) {
    if (kept == sorted) {
      sorted = std::min(candidates.size(), std::max(kFirst, 4 * sorted));
      std::partial_sort(candidates.begin() + static_cast<int64_t>(kept),
                        candidates.begin() + static_cast<int64_t>(sorted), candidates.end(), is_before);
    }
    sum += candidates[kept++].weight;
  }
  candidates.resize(kept);
}

}  // namespace

int64_t sample(std::span<const float> logits, std::span<const int64_t> seen, const SamplingOptions& options,
               Random& random, SampleWorkspace& workspace) {
  check(options);
  for (size_t id = 0; id < logits.size(); ++id)
    if (std::isnan(logits[id])) throw Error("sample", {"the logit of token " + std::to_string(id) + " is NaN"});
  Checker checker("sample");
  if (checker.require(!logits.empty(), "there are no logits"))
    require_ids(checker, "seen", seen, static_cast<int64_t>(logits.size()));
  checker.done();
  if (options.temperature == 0 && options.repetition_penalty == 1)
    return std::max_element(logits.begin(), logits.end()) - logits.begin();
  std::vector<WeightedToken>& candidates = workspace.candidates;
  candidates.resize(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) candidates[id] = {static_cast<int64_t>(id), logits[id]};
  if (options.repetition_penalty != 1) {
    std::vector<bool>& penalised = workspace.penalised;
    penalised.assign(logits.size(), false);
    for (int64_t id : seen) {
      if (penalised[id]) continue;
      penalised[id] = true;
      double& logit = candidates[id].weight;
      logit = logit > 0 ? logit / options.repetition_penalty : logit * options.repetition_penalty;
    }
  }
  if (options.temperature == 0) return std::min_element(candidates.begin(), candidates.end(), is_before)->id;

  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(candidates.size())) {
    std::partial_sort(candidates.begin(), candidates.begin() + options.top_k, candidates.end(), is_before);
    candidates.resize(options.top_k);
  }
  const double largest = std::min_element(candidates.begin(), candidates.end(), is_before)->weight;
  double total = 0;
  for (WeightedToken& candidate : candidates) {
    candidate.weight = candidate.weight == largest ? 1 : std::exp((candidate.weight - largest) / options.temperature);
    total += candidate.weight;
  }
  if (options.top_p < 1) keep_nucleus(candidates, options.top_p * total);
  std::erase_if(candidates, [&](const WeightedToken& candidate) { return candidate.weight < options.min_p; });
  total = std::accumulate(candidates.begin(), candidates.end(), 0.0,
                          [](double sum, const WeightedToken& candidate) { return sum + candidate.weight; });
  double left = random.uniform() * total;
  for (const WeightedToken& candidate : candidates)
    if ((left -= candidate.weight) < 0) return candidate.id;
  return candidates.back().id;
}

int64_t sample(std::span<const float> logits, std::span<const int64_t> seen, const SamplingOptions& options,
               Random& random) {
  SampleWorkspace workspace;
  return sample(logits, seen, options, random, workspace);
}

}  // namespace attn::generate
