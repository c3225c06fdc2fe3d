// A priority queue holds pairs by count. A merge changes only the words that have its pair. If the count of a queued
// pair has changed, the pair returns to the queue with the new count when it comes up.
#include <algorithm>
#include <queue>
#include <unordered_map>

#include "text/train.h"
#include "text/unicode.h"

namespace attn::text {
namespace {

using Symbols = std::vector<uint32_t>;

class MergeLearner {
 public:
  MergeLearner(const WordCounts& words, std::vector<std::string> alphabet, const std::string& prefix)
      : prefix_(prefix), tokens_(std::move(alphabet)) {
    for (size_t id = 0; id < tokens_.size(); ++id) ids_.emplace(tokens_[id], static_cast<uint32_t>(id));
    for (const auto& [word, count] : words) {
      Symbols symbols;
      for (size_t at = 0; at < word.size();) {
        const size_t begin = at;
        next_character(word, at);
        const auto found = ids_.find((begin > 0 ? prefix_ : "") + word.substr(begin, at - begin));
        if (found != ids_.end()) symbols.push_back(found->second);
      }
      counts_of_words_.push_back(count);
      words_.push_back(std::move(symbols));
      for (size_t n = 0; n + 1 < words_.back().size(); ++n) change(words_.size() - 1, n, count);
    }
    for (const auto& [pair, place] : pairs_) queue_.push({place.count, pair});
  }

  LearnedMerges learn(int64_t size, int64_t min_count) {
    LearnedMerges learned;
    while (static_cast<int64_t>(tokens_.size()) < size && !queue_.empty()) {
      const PairCount top = queue_.top();
      queue_.pop();
      const int64_t count = pairs_[top.pair].count;
      if (count < min_count) continue;
      if (count != top.count) {
        queue_.push({count, top.pair});
        continue;
      }
      const std::string left = tokens_[top.pair >> 32], right = tokens_[top.pair & UINT32_MAX];
      const std::string merged = left + right.substr(prefix_.size());
      if (merged.size() > kLongestToken) continue;
      learned.merges.emplace_back(left, right);
      const auto [place, is_new] = ids_.emplace(merged, static_cast<uint32_t>(tokens_.size()));
      if (is_new) tokens_.push_back(merged);
      merge(top.pair, place->second);
    }
    learned.tokens = std::move(tokens_);
    return learned;
  }

 private:
  struct PairCount {
    int64_t count;
    uint64_t pair;
    bool operator<(const PairCount& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };
  struct PairOccurrences {
    int64_t count = 0;
    std::vector<uint32_t> words;  // that have the pair, or had it earlier
  };

  /// Adds `count` to the occurrences of the pair at `n` of a word.
  void change(size_t word, size_t n, int64_t count) {
    const uint64_t pair = uint64_t{words_[word][n]} << 32 | words_[word][n + 1];
    PairOccurrences& place = pairs_[pair];
    place.count += count;
    if (count < 0) return;
    if (place.words.empty() || place.words.back() != word) place.words.push_back(static_cast<uint32_t>(word));
    if (is_merging_) touched_.push_back(pair);
  }

  void merge(uint64_t pair, uint32_t merged) {
    is_merging_ = true;
    const auto left = static_cast<uint32_t>(pair >> 32), right = static_cast<uint32_t>(pair);
    std::vector<uint32_t> words = std::move(pairs_[pair].words);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    for (uint32_t word : words) {
      Symbols& symbols = words_[word];
      const int64_t count = counts_of_words_[word];
      for (size_t n = 0; n + 1 < symbols.size(); ++n) {
        if (symbols[n] != left || symbols[n + 1] != right) continue;
        for (size_t place = n > 0 ? n - 1 : 0; place <= n + 1 && place + 1 < symbols.size(); ++place)
          change(word, place, -count);
        symbols[n] = merged;
        symbols.erase(symbols.begin() + static_cast<int64_t>(n) + 1);
        for (size_t place = n > 0 ? n - 1 : 0; place <= n && place + 1 < symbols.size(); ++place)
          change(word, place, count);
      }
    }
    for (uint64_t each : touched_) queue_.push({pairs_[each].count, each});
    touched_.clear();
  }

  std::string prefix_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<Symbols> words_;
  std::vector<int64_t> counts_of_words_;
  std::unordered_map<uint64_t, PairOccurrences> pairs_;
  std::priority_queue<PairCount> queue_;
  std::vector<uint64_t> touched_;
  bool is_merging_ = false;
};

}  // namespace

LearnedMerges learn_merges(const WordCounts& words, std::vector<std::string> alphabet, const std::string& prefix,
                           int64_t size, int64_t min_count) {
  return MergeLearner(words, std::move(alphabet), prefix).learn(size, min_count);
}

}  // namespace attn::text
