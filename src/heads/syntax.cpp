// Dependency arcs: sentences of CoNLL-U, and how often the word that a head looks at most is the one of the arc.
#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>

#include "heads/layers.h"

namespace attn::heads {
namespace {

constexpr const char* kSyntax = "head_syntax";
constexpr size_t kColumns = 10, kMostReasons = 20;

std::optional<int64_t> number_of(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty() || value < 0) return {};
  return value;
}

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find('\t', begin), line.size());
    fields.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return fields;
}

/// Line after line to sentences; what is wrong is collected.
class ConlluReader {
 public:
  explicit ConlluReader(const std::string& source) : source_(source) {}

  std::vector<Sentence> read(std::string_view text) {
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      std::string_view line = text.substr(begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      ++line_;
      if (line.empty()) finish();
      else if (line[0] != '#') add(line);
      begin = end + 1;
    }
    finish();
    if (reasons_.empty() && sentences_.empty()) reasons_.push_back(source_ + " has no sentence");
    if (!reasons_.empty()) throw Error("conllu", reasons_);
    return std::move(sentences_);
  }

 private:
  void wrong(int64_t line, const std::string& reason) {
    if (reasons_.size() == kMostReasons) reasons_.push_back("and more");
    if (reasons_.size() < kMostReasons) reasons_.push_back(source_ + ":" + std::to_string(line) + ": " + reason);
  }
  /// Fit for a terminal.
  static std::string quoted(std::string_view text) {
    std::string shown(text.substr(0, 40));
    std::replace_if(
        shown.begin(), shown.end(), [](char c) { return c < 32 || c >= 127; }, '?');
    return "'" + shown + "'";
  }

  void add(std::string_view line) {
    if (sentence_.line == 0) sentence_.line = line_;
    const std::vector<std::string_view> fields = split(line);
    if (fields.size() != kColumns)
      return wrong(line_, "there are " + std::to_string(fields.size()) + " columns, must be 10 with tabs between");
    const std::string_view id = fields[0];
    if (const size_t mark = id.find_first_of("-."); mark != std::string_view::npos) {
      if (!number_of(id.substr(0, mark)) || !number_of(id.substr(mark + 1))) wrong(line_, "no ID is " + quoted(id));
      return;  // a range of words, or a word that is not written
    }
    const auto expected = static_cast<int64_t>(sentence_.words.size()) + 1;
    if (number_of(id) != expected) wrong(line_, "the ID is " + quoted(id) + ", must be " + std::to_string(expected));
    if (fields[1].empty()) wrong(line_, "there is no FORM");
    if (fields[7].empty() || fields[7] == "_") wrong(line_, "there is no DEPREL");
    const std::optional<int64_t> head = number_of(fields[6]);
    if (!head) wrong(line_, "HEAD is " + quoted(fields[6]) + ", must be the ID of a word, or 0");
    if (head == expected) wrong(line_, "the word is its own HEAD");
    sentence_.words.emplace_back(fields[1]);
    sentence_.heads.push_back(head.value_or(0) - 1);
    sentence_.relations.emplace_back(fields[7]);
    lines_.push_back(line_);
  }

  void finish() {
    const auto count = static_cast<int64_t>(sentence_.words.size());
    for (size_t n = 0; n < sentence_.words.size(); ++n)
      if (sentence_.heads[n] >= count)
        wrong(lines_[n], "HEAD is " + std::to_string(sentence_.heads[n] + 1) + ", the sentence has " +
                             std::to_string(count) + " words");
    if (count > 0) sentences_.push_back(std::move(sentence_));
    sentence_ = {};
    lines_.clear();
  }

  std::string source_;
  std::vector<Sentence> sentences_;
  Sentence sentence_;
  std::vector<int64_t> lines_;  // of the sentence's words
  std::vector<std::string> reasons_;
  int64_t line_ = 0;
};

// -------------------------------------------------------------------------------------------------------------- counts

/// Weights between words of every head of a layer: [H, words, words].
std::vector<double> word_weights(const Layer& layer, int64_t words, std::span<const int64_t> word_of,
                                 const std::vector<int64_t>& tokens) {
  const int64_t H = layer.q.size[1], n = layer.q.size[2];
  std::vector<double> weights(static_cast<size_t>(H * words * words));
  for_each_band(layer, [&](int64_t first, int64_t count, const ResultTensor<4>& band) {
    for (int64_t h = 0; h < H; ++h)
      for (int64_t row = 0; row < count; ++row) {
        const int64_t a = word_of[static_cast<size_t>(first + row)];
        if (a < 0) continue;
        double* to = weights.data() + (h * words + a) * words;
        for (int64_t j = 0; j < n; ++j)
          if (const int64_t b = word_of[static_cast<size_t>(j)]; b >= 0)
            to[b] += band[(h * count + row) * n + j] / static_cast<double>(tokens[static_cast<size_t>(a)]);
      }
  });
  return weights;
}

/// The other word of largest weight, at(word), the first of equals; -1 where all are 0.
template <class Weight>
int64_t largest_of(int64_t words, int64_t own, const Weight& at) {
  int64_t best = -1;
  double weight = 0;
  for (int64_t word = 0; word < words; ++word)
    if (word != own && at(word) > weight) weight = at(best = word);
  return best;
}

/// Sums of one relation.
struct Counts {
  int64_t arcs = 0;
  std::map<int64_t, int64_t> offsets = {};
  std::vector<int64_t> to_head = {}, to_dependent = {};
};

/// Tokens of each word.
std::vector<int64_t> check_words(Checker& checker, const Sentence& sentence, std::span<const int64_t> word_of,
                                 int64_t n) {
  const auto words = static_cast<int64_t>(sentence.words.size());
  std::vector<int64_t> tokens(sentence.words.size());
  checker.require(sentence.heads.size() == sentence.words.size() && sentence.relations.size() == sentence.words.size(),
                  "the sentence must have a head and a relation a word");
  checker.require(static_cast<int64_t>(word_of.size()) == n, [&] {
    return "word_of has " + std::to_string(word_of.size()) + " elements, the text " + std::to_string(n) + " tokens";
  });
  checker.done();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t word = word_of[static_cast<size_t>(i)];
    if (!checker.require(word >= -1 && word < words, [&] {
          return "word_of[" + std::to_string(i) + "] is " + std::to_string(word) + ", the sentence has " +
                 std::to_string(words) + " words";
        }))
      checker.done();
    if (word >= 0) ++tokens[static_cast<size_t>(word)];
  }
  for (int64_t word = 0; word < words; ++word) {
    const int64_t head = sentence.heads[static_cast<size_t>(word)];
    checker.require(tokens[static_cast<size_t>(word)] > 0,
                    [&] { return "word " + std::to_string(word) + " has no token"; });
    checker.require(head >= -1 && head < words && head != word, [&] {
      return "the head of word " + std::to_string(word) + " is " + std::to_string(head) +
             ", must be another word, or -1";
    });
  }
  return tokens;
}

}  // namespace

std::vector<Sentence> read_conllu(std::string_view text, const std::string& source) {
  return ConlluReader(source).read(text);
}

struct Syntax::State {
  std::vector<int64_t> heads_of_layer = {};
  std::map<std::string, Counts> relations = {};
};

Syntax::Syntax() : state_(std::make_unique<State>()) {}
Syntax::~Syntax() = default;
Syntax::Syntax(Syntax&&) noexcept = default;
Syntax& Syntax::operator=(Syntax&&) noexcept = default;

void Syntax::add(std::span<const Layer> layers, const Sentence& sentence, std::span<const int64_t> word_of) {
  if (!state_) throw Error(kSyntax, {"these counts have been moved away"});
  Checker checker(kSyntax);
  check_layers(checker, layers, true);
  checker.done();
  const auto words = static_cast<int64_t>(sentence.words.size());
  const std::vector<int64_t> tokens = check_words(checker, sentence, word_of, layers[0].q.size[2]);
  std::vector<int64_t> counts;
  for (const Layer& layer : layers) counts.push_back(layer.q.size[1]);
  checker.require(state_->heads_of_layer.empty() || state_->heads_of_layer == counts,
                  "the layers have other numbers of heads than those of the sentences before");
  checker.done();

  State next = *state_;
  next.heads_of_layer = counts;
  const auto all = static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  const auto each_arc = [&](const auto& body) {
    for (int64_t word = 0; word < words; ++word)
      if (const int64_t head = sentence.heads[static_cast<size_t>(word)]; head >= 0)
        for (const std::string& name : {sentence.relations[static_cast<size_t>(word)], std::string()}) {
          Counts& relation = next.relations[name];  // "" is all of them
          relation.to_head.resize(all);
          relation.to_dependent.resize(all);
          body(relation, word, head);
        }
  };
  each_arc([](Counts& relation, int64_t word, int64_t head) {
    ++relation.arcs;
    ++relation.offsets[head - word];
  });
  size_t at = 0;
  for (const Layer& layer : layers) {
    const std::vector<double> weights = word_weights(layer, words, word_of, tokens);
    for (int64_t h = 0; h < layer.q.size[1]; ++h, ++at) {
      const double* matrix = weights.data() + h * words * words;
      each_arc([&](Counts& relation, int64_t word, int64_t head) {
        relation.to_head[at] +=
            largest_of(words, word, [&](int64_t other) { return matrix[word * words + other]; }) == head;
        relation.to_dependent[at] +=
            largest_of(words, word, [&](int64_t other) { return matrix[other * words + word]; }) == head;
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
    std::transform(counts.to_head.begin(), counts.to_head.end(), std::back_inserter(one.to_head), share);
    std::transform(counts.to_dependent.begin(), counts.to_dependent.end(), std::back_inserter(one.to_dependent), share);
  }
  std::stable_sort(result.begin() + 1, result.end(),
                   [](const Relation& a, const Relation& b) { return a.arcs > b.arcs; });
  return result;
}

}  // namespace attn::heads
