// Dependency arcs: how often the word that a head attends to most is the one of the arc.
#include <algorithm>
#include <map>
#include <numeric>

#include "heads/words.h"

namespace attn::heads {
namespace {

constexpr const char* kSyntax = "head_syntax";

/// Sums of one relation.
struct Counts {
  int64_t arcs = 0;
  std::map<int64_t, int64_t> offsets = {};
  std::vector<int64_t> to_governor = {}, to_dependent = {};
};

/// Tokens of each word.
std::vector<int64_t> check_words(Checker& checker, const Sentence& sentence, std::span<const int64_t> word_of,
                                 int64_t n) {
  const auto words = static_cast<int64_t>(sentence.words.size());
  checker.require(
      sentence.governors.size() == sentence.words.size() && sentence.relations.size() == sentence.words.size(),
      "the sentence must have a governor and a relation for each word");
  checker.done();
  for (int64_t word = 0; word < words; ++word) {
    const int64_t governor = sentence.governors[static_cast<size_t>(word)];
    checker.require(governor >= -1 && governor < words && governor != word, [&] {
      return "the governor of word " + std::to_string(word) + " is " + std::to_string(governor) +
             ", must be another word, or -1";
    });
  }
  return tokens_of_words(checker, words, word_of, n);
}

}  // namespace

struct Syntax::State {
  std::vector<int64_t> heads_of_layer = {};
  std::map<std::string, Counts> relations = {};
};

Syntax::Syntax() : state_(std::make_unique<State>()) {}
Syntax::~Syntax() = default;
Syntax::Syntax(Syntax&&) noexcept = default;
Syntax& Syntax::operator=(Syntax&&) noexcept = default;

void Syntax::add(std::span<const RecordedAttention> layers, const Sentence& sentence,
                 std::span<const int64_t> word_of) {
  if (!state_) throw Error(kSyntax, {"these counts have been moved from"});
  Checker checker(kSyntax);
  check_recorded(checker, layers, {.own_text = true});
  checker.done();
  const auto words = static_cast<int64_t>(sentence.words.size());
  const std::vector<int64_t> tokens = check_words(checker, sentence, word_of, layers[0].q.size[2]);
  std::vector<int64_t> counts;
  for (const RecordedAttention& layer : layers) counts.push_back(layer.q.size[1]);
  checker.require(state_->heads_of_layer.empty() || state_->heads_of_layer == counts,
                  "the layers must have as many heads as in the sentences before");
  checker.done();

  State next = *state_;
  next.heads_of_layer = counts;
  const auto all = static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  const auto each_arc = [&](const auto& body) {
    for (int64_t word = 0; word < words; ++word)
      if (const int64_t governor = sentence.governors[static_cast<size_t>(word)]; governor >= 0)
        for (const std::string& name : {sentence.relations[static_cast<size_t>(word)], std::string()}) {
          Counts& relation = next.relations[name];  // "" is all of them
          relation.to_governor.resize(all);
          relation.to_dependent.resize(all);
          body(relation, word, governor);
        }
  };
  each_arc([](Counts& relation, int64_t word, int64_t governor) {
    ++relation.arcs;
    ++relation.offsets[governor - word];
  });
  size_t at = 0;
  for (const RecordedAttention& layer : layers) {
    const std::vector<double> weights = word_weights(layer, words, word_of, tokens);
    for (int64_t h = 0; h < layer.q.size[1]; ++h, ++at) {
      const double* matrix = weights.data() + h * words * words;
      each_arc([&](Counts& relation, int64_t word, int64_t governor) {
        relation.to_governor[at] +=
            largest_of(words, word, [&](int64_t other) { return matrix[word * words + other]; }) == governor;
        relation.to_dependent[at] +=
            largest_of(words, word, [&](int64_t other) { return matrix[other * words + word]; }) == governor;
      });
    }
  }
  *state_ = std::move(next);
}

std::vector<Relation> Syntax::relations() const {
  if (!state_ || state_->relations.empty()) throw Error(kSyntax, {"no sentence with an arc was added"});
  std::vector<Relation> result;
  for (const auto& [name, counts] : state_->relations) {
    const auto best = std::max_element(counts.offsets.begin(), counts.offsets.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    const auto share = [arcs = counts.arcs](int64_t right) {
      return static_cast<double>(right) / static_cast<double>(arcs);
    };
    Relation& one = result.emplace_back();
    one.name = name.empty() ? "all" : name;
    one.arcs = counts.arcs;
    one.offset = best->first;
    one.baseline = share(best->second);
    std::transform(counts.to_governor.begin(), counts.to_governor.end(), std::back_inserter(one.to_governor), share);
    std::transform(counts.to_dependent.begin(), counts.to_dependent.end(), std::back_inserter(one.to_dependent), share);
  }
  std::stable_sort(result.begin() + 1, result.end(),
                   [](const Relation& a, const Relation& b) { return a.arcs > b.arcs; });
  return result;
}

}  // namespace attn::heads
