// Unigram: begins with all frequent parts of words, learns their probabilities, and removes a quarter of them at a
// time, those whose removal costs least.
#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "text/train.h"
#include "text/trie.h"
#include "text/unicode.h"

namespace attn::text {
namespace {

using PieceScores = std::vector<std::pair<std::string, double>>;

constexpr size_t kLongestSeed = 16;  // characters
constexpr int64_t kSeeds = 1'000'000, kRounds = 2;
constexpr double kKept = 0.75;   // the share of pieces that a round of pruning keeps
constexpr double kFewest = 0.5;  // the expected count below which a piece is removed

double log_of_sum(double a, double b) {
  if (a < b) std::swap(a, b);
  return b == -INFINITY ? a : a + std::log1p(std::exp(b - a));
}

/// The parts of words that occur more than once, weighted by the bytes that they cover.
PieceScores seeds_of(const WordCounts& words, const std::vector<std::string>& characters) {
  std::unordered_map<std::string, int64_t> counts;
  for (const auto& [word, count] : words) {
    std::vector<size_t> ends = {0};
    while (ends.back() < word.size()) {
      size_t at = ends.back();
      next_character(word, at);
      ends.push_back(at);
    }
    for (size_t begin = 0; begin + 1 < ends.size(); ++begin)
      for (size_t end = begin + 1; end < ends.size() && end <= begin + kLongestSeed; ++end)
        if (ends[end] - ends[begin] <= kLongestToken)
          counts[word.substr(ends[begin], ends[end] - ends[begin])] += count;
  }
  PieceScores seeds;
  for (const std::string& character : characters) {
    seeds.emplace_back(character, static_cast<double>(counts[character] + 1));
    counts.erase(character);
  }
  std::vector<std::pair<double, std::string>> parts;  // (-worth, text), which sort by falling worth
  for (const auto& [text, count] : counts) {
    size_t at = 0;
    next_character(text, at);
    if (count > 1 && at < text.size())
      parts.emplace_back(-static_cast<double>(count) * static_cast<double>(text.size()), text);
  }
  std::sort(parts.begin(), parts.end());
  if (static_cast<int64_t>(parts.size()) > kSeeds) parts.resize(kSeeds);
  for (const auto& [worth, text] : parts) seeds.emplace_back(text, -worth);
  return seeds;
}

void normalise(PieceScores& pieces) {
  double sum = 0;
  for (const auto& [text, weight] : pieces) sum += weight;
  for (auto& [text, weight] : pieces) weight = std::log(weight / sum);
}

class UnigramLattice {
 public:
  explicit UnigramLattice(const PieceScores& pieces) : pieces_(pieces) {
    std::vector<std::pair<std::string_view, uint32_t>> entries;
    for (size_t n = 0; n < pieces.size(); ++n) entries.emplace_back(pieces[n].first, static_cast<uint32_t>(n));
    trie_ = Trie(std::move(entries));
  }

  /// Adds to `expected` how often each piece is expected in the word, which occurs `count` times.
  void expect(const std::string& word, int64_t count, std::vector<double>& expected) const {
    std::vector<double> forward(word.size() + 1, -INFINITY), backward(word.size() + 1, -INFINITY);
    std::vector<std::vector<std::pair<size_t, uint32_t>>> steps(word.size());
    forward[0] = backward[word.size()] = 0;
    for (size_t at = 0; at < word.size(); ++at) {
      if (forward[at] == -INFINITY) continue;
      trie_.walk(std::string_view(word).substr(at), [&](size_t length, uint32_t piece) {
        steps[at].emplace_back(at + length, piece);
        forward[at + length] = log_of_sum(forward[at + length], forward[at] + pieces_[piece].second);
      });
    }
    const double all = forward[word.size()];
    if (all == -INFINITY) return;  // the word has a character without a piece
    for (size_t at = word.size(); at-- > 0;)
      for (const auto& [end, piece] : steps[at]) {
        const double rest = pieces_[piece].second + backward[end];
        backward[at] = log_of_sum(backward[at], rest);
        expected[piece] += static_cast<double>(count) * std::exp(forward[at] + rest - all);
      }
  }

  /// The best sum of scores of the piece's text without the piece itself.
  double without(size_t piece) const {
    const std::string& text = pieces_[piece].first;
    std::vector<double> best(text.size() + 1, -INFINITY);
    best[0] = 0;
    for (size_t at = 0; at < text.size(); ++at) {
      if (best[at] == -INFINITY) continue;
      trie_.walk(std::string_view(text).substr(at), [&](size_t length, uint32_t other) {
        if (other != piece) best[at + length] = std::max(best[at + length], best[at] + pieces_[other].second);
      });
    }
    return best[text.size()];
  }

 private:
  const PieceScores& pieces_;
  Trie trie_;
};

std::vector<double> expected_of(const PieceScores& pieces, const WordCounts& words) {
  const UnigramLattice lattice(pieces);
  std::vector<double> expected(pieces.size(), 0.0);
  for (const auto& [word, count] : words) lattice.expect(word, count, expected);
  return expected;
}

/// Computes new probabilities. The first `required` pieces always stay.
void maximise(PieceScores& pieces, const WordCounts& words, size_t required) {
  const std::vector<double> expected = expected_of(pieces, words);
  PieceScores kept;
  for (size_t n = 0; n < pieces.size(); ++n)
    if (n < required || expected[n] >= kFewest) kept.emplace_back(pieces[n].first, std::max(expected[n], kFewest));
  pieces = std::move(kept);
  normalise(pieces);
}

/// Keeps the `size` pieces whose removal would cost most.
void prune(PieceScores& pieces, const WordCounts& words, size_t required, size_t size) {
  const std::vector<double> expected = expected_of(pieces, words);
  const UnigramLattice lattice(pieces);
  std::vector<std::pair<double, size_t>> costs;
  for (size_t n = required; n < pieces.size(); ++n)
    costs.emplace_back(-expected[n] * (pieces[n].second - lattice.without(n)), n);
  std::sort(costs.begin(), costs.end());
  costs.resize(std::min(costs.size(), size - required));
  std::vector<size_t> kept;
  for (const auto& [cost, n] : costs) kept.push_back(n);
  std::sort(kept.begin(), kept.end());
  PieceScores left(pieces.begin(), pieces.begin() + static_cast<int64_t>(required));
  for (size_t n : kept) left.push_back(std::move(pieces[n]));
  pieces = std::move(left);
}

}  // namespace

PieceScores learn_pieces(const WordCounts& words, const std::vector<std::string>& characters, int64_t size) {
  PieceScores pieces = seeds_of(words, characters);
  normalise(pieces);
  const size_t required = characters.size(), wanted = std::max(required, static_cast<size_t>(size));
  for (bool is_done = false; !is_done;) {
    for (int64_t round = 0; round < kRounds; ++round) maximise(pieces, words, required);
    is_done = pieces.size() <= wanted;
    if (!is_done)
      prune(pieces, words, required, std::max(wanted, static_cast<size_t>(kKept * static_cast<double>(pieces.size()))));
  }
  return pieces;
}

}  // namespace attn::text
