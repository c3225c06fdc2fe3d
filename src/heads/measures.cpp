// The measures. For each text the kind of each token is known first; each layer then takes two passes of
// attention_statistics(), and the rows of a head become means: one over the rows that a measure is about, then one over
// the texts.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "attention/problem.h"
#include "attn/attention_statistics.h"
#include "heads/layers.h"

namespace attn::heads {
namespace {

constexpr const char* kAdd = "head_measures";
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr double kSinkShare = 0.3;  // Gu et al.: of what the first token receives on the mean

enum Index : size_t {
  kPrevious,
  kNext,
  kSelf,
  kFirst,
  kFirstFour,
  kSink,
  kStart,
  kSeparator,
  kSeparatorFromOthers,
  kSeparatorFromSeparators,
  kPunctuation,
  kEntropy,
  kEntropyOfFirst,
  kEntropyUniform,
  kEntropyRelative,
  kDistance,
  kConfidence,
  kPositional,
  kOffset,
  kDuplicate,
  kInduction,
  kMeasures
};

// ----------------------------------------------------------------------------------------- what a text's rows are

using Rows = std::vector<int64_t>;

/// The rows of a text that the measures are about. They follow from its tokens alone.
struct TextRows {
  Rows all, words, with_previous, with_next, separators, others, repeated;
  bool has_start = false, has_separator = false, has_punctuation = false;
};

TokenKind kind_at(const Texts& texts, int64_t b, int64_t i) {
  return texts.kinds ? static_cast<TokenKind>(detail::id_at(texts.kinds, b, i)) : TokenKind::word;
}

TextRows rows_of(const Texts& texts, int64_t b, int64_t length) {
  TextRows rows;
  std::map<int64_t, bool> seen;
  for (int64_t i = 0; i < length; ++i) {
    const TokenKind kind = kind_at(texts, b, i);
    const bool is_word = kind == TokenKind::word || kind == TokenKind::punctuation;
    rows.all.push_back(i);
    if (is_word) rows.words.push_back(i);
    if (i > 0) rows.with_previous.push_back(i);
    if (i + 1 < length) rows.with_next.push_back(i);
    (kind == TokenKind::separator ? rows.separators : rows.others).push_back(i);
    rows.has_start |= kind == TokenKind::start;
    rows.has_separator |= kind == TokenKind::separator;
    rows.has_punctuation |= kind == TokenKind::punctuation;
    if (!seen.emplace(detail::id_at(texts.ids, b, i), true).second && is_word) rows.repeated.push_back(i);
  }
  return rows;
}

/// Ids of queries, of keys, and of the key before each, as attention_statistics() takes them. No query has the number
/// of padding, or of what is before the first key.
struct TokenNumbers {
  Tensor<int64_t, 2> queries, keys, before, labels;

  TokenNumbers(const Texts& texts, const std::vector<int64_t>& lengths, int64_t n)
      : queries({static_cast<int64_t>(lengths.size()), n}), keys(queries), before(queries), labels(queries) {
    std::map<int64_t, int64_t> known;
    for (int64_t b = 0, at = 0; b < static_cast<int64_t>(lengths.size()); ++b)
      for (int64_t i = 0; i < n; ++i, ++at) {
        const bool is_token = i < lengths[static_cast<size_t>(b)];
        const int64_t number =
            is_token ? known.emplace(detail::id_at(texts.ids, b, i), static_cast<int64_t>(known.size())).first->second
                     : -1;
        queries[at] = is_token ? number : -2;
        keys[at] = number;
        before[at] = i > 0 && is_token ? keys[at - 1] : -1;
        labels[at] = is_token ? static_cast<int64_t>(kind_at(texts, b, i)) - 1 : -1;  // words have none
      }
  }
};

// ---------------------------------------------------------------------------------------- what a layer's rows do

enum Band : int64_t { kBandPrevious, kBandNext, kBandSelf, kBandFirst, kBandFirstFour, kBands };
enum Label : int64_t { kLabelPunctuation, kLabelStart, kLabelSeparator, kLabels };  // Kind - 1

/// Keys that the masks allow each row: attention whose scores are all 0 has lse = ln of their number.
Tensor<float, 3> allowed_keys(const RecordedAttention& layer) {
  AttentionOptions options = layer.options;
  options.bias = {};
  options.alibi_slopes = {};
  options.sink = {};
  options.softcap = options.dropout = 0;
  const int64_t B = layer.q.size[0], n = layer.q.size[2];
  const BlockLayout& blocks = options.blocks;
  const bool by_head = options.mask.size[1] > 1 || blocks.allowed.size[1] > 1 || blocks.offsets.size[1] > 1;
  const int64_t H = by_head ? layer.q.size[1] : 1;
  const float zero = 0;
  const auto zeros = [&](int64_t heads) { return ConstView<4>(&zero, DType::float32, {B, heads, n, 1}, {}); };
  Tensor<float, 4> out({B, H, n, 1});
  Tensor<float, 3> counts({B, H, n});
  attention(zeros(H), zeros(1), zeros(1), out, counts, options);
  for (float& count : counts) count = std::round(std::exp(count));
  return counts;
}

/// Statistics of all rows of a layer.
class LayerRows {
 public:
  LayerRows(const RecordedAttention& layer, const TokenNumbers& numbers, bool with_repeats)
      : heads_(layer.q.size[1]),
        n_(layer.q.size[2]),
        entropy_(layer.lse.dtype, layer.lse.size),
        maximum_(layer.lse.dtype, layer.lse.size),
        distance_(layer.lse.dtype, layer.lse.size),
        same_(layer.lse.dtype, layer.lse.size),
        behind_(layer.lse.dtype, layer.lse.size),
        bands_(layer.lse.dtype, with_axis(layer.lse.size, kBands)),
        labels_(layer.lse.dtype, with_axis(layer.lse.size, kLabels)),
        position_(layer.lse.size),
        allowed_(allowed_keys(layer)) {
    const KeyBand bands[] = {key_bands::previous, key_bands::next, key_bands::self, key_bands::first, {0, 3, false}};
    AttentionStatistics wanted;
    wanted.rows.entropy = entropy_;
    wanted.rows.maximum = maximum_;
    wanted.rows.distance = distance_;
    wanted.rows.bands = bands_;
    wanted.rows.labels = labels_;
    wanted.argmax_key = position_;
    wanted.sets.bands = bands;
    wanted.sets.labels = numbers.labels;
    if (with_repeats) {
      wanted.rows.same_token = same_;
      wanted.sets.query_token_ids = numbers.queries;
      wanted.sets.key_token_ids = numbers.keys;
    }
    attention_statistics(layer.q, layer.k, layer.lse, wanted, layer.options);
    if (!with_repeats) return;
    AttentionStatistics more;
    more.rows.same_token = behind_;
    more.sets.query_token_ids = numbers.queries;
    more.sets.key_token_ids = numbers.before;
    attention_statistics(layer.q, layer.k, layer.lse, more, layer.options);
  }

  int64_t row(int64_t b, int64_t h, int64_t i) const { return (b * heads_ + h) * n_ + i; }
  double entropy(int64_t row) const { return entropy_.number(row); }
  double maximum(int64_t row) const { return maximum_.number(row); }
  double distance(int64_t row) const { return distance_.number(row); }
  double band(int64_t row, Band band) const { return bands_.number(row * kBands + band); }
  double label(int64_t row, Label label) const { return labels_.number(row * kLabels + label); }
  int64_t position(int64_t row) const { return position_[row]; }
  double allowed(int64_t b, int64_t h, int64_t i) const {
    const int64_t H = allowed_.size()[1];
    return allowed_[(b * H + (H > 1 ? h : 0)) * n_ + i];
  }
  /// Mass on other tokens with the row's id.
  double duplicate(int64_t row) const { return std::max(same_.number(row) - band(row, kBandSelf), 0.0); }
  /// Mass on the keys after those; the one after the row's own token is its next.
  double induction(int64_t row) const { return std::max(behind_.number(row) - band(row, kBandNext), 0.0); }

 private:
  static Shape<4> with_axis(const Shape<3>& size, int64_t last) { return {size[0], size[1], size[2], last}; }
  int64_t heads_, n_;
  Array entropy_, maximum_, distance_, same_, behind_;
  Array bands_, labels_;
  Tensor<int64_t, 3> position_;
  Tensor<float, 3> allowed_;
};

// ------------------------------------------------------------------------------------------------------------ one head

/// Sums of a head over texts.
struct HeadSums {
  int64_t layer = 0, head = 0;
  std::array<double, kMeasures> sum{};
  std::array<int64_t, kMeasures> texts{};
  std::map<int64_t, int64_t> offsets = {};  // of words' largest weights: how many words
  int64_t words = 0;

  void add(Index measure, double value) {
    sum[measure] += value;
    ++texts[measure];
  }
  /// The mean of value(i) over `rows`, of which a text may have none.
  template <class Value>
  void mean(Index measure, const Rows& rows, const Value& value) {
    if (rows.empty()) return;
    double total = 0;
    for (const int64_t i : rows) total += value(i);
    add(measure, total / static_cast<double>(rows.size()));
  }

  void add_text(const LayerRows& found, const TextRows& rows, int64_t b) {
    const int64_t begin = found.row(b, head, 0);
    const auto band = [&](Band which) { return [=, &found](int64_t i) { return found.band(begin + i, which); }; };
    const auto label = [&](Label which) { return [=, &found](int64_t i) { return found.label(begin + i, which); }; };
    const Rows none;
    mean(kPrevious, rows.with_previous, band(kBandPrevious));
    mean(kNext, rows.with_next, band(kBandNext));
    mean(kSelf, rows.all, band(kBandSelf));
    mean(kFirst, rows.all, band(kBandFirst));
    mean(kFirstFour, rows.all, band(kBandFirstFour));
    mean(kStart, rows.has_start ? rows.all : none, label(kLabelStart));
    mean(kSeparator, rows.has_separator ? rows.all : none, label(kLabelSeparator));
    mean(kSeparatorFromOthers, rows.has_separator ? rows.others : none, label(kLabelSeparator));
    mean(kSeparatorFromSeparators, rows.separators, label(kLabelSeparator));
    mean(kPunctuation, rows.has_punctuation ? rows.all : none, label(kLabelPunctuation));
    mean(kDistance, rows.all, [&](int64_t i) { return found.distance(begin + i); });
    mean(kConfidence, rows.words, [&](int64_t i) { return found.maximum(begin + i); });
    mean(kDuplicate, rows.repeated, [&](int64_t i) { return found.duplicate(begin + i); });
    mean(kInduction, rows.repeated, [&](int64_t i) { return found.induction(begin + i); });
    double received = 0;
    for (const int64_t i : rows.all) received += found.band(begin + i, kBandFirst);
    add(kSink, received > kSinkShare * static_cast<double>(rows.all.size()));
    add_entropies(found, rows, b);
    add_offsets(found, rows, begin);
  }

  void add_entropies(const LayerRows& found, const TextRows& rows, int64_t b) {
    const auto entropy = [&](int64_t i) { return found.entropy(found.row(b, head, i)); };
    const auto uniform = [&](int64_t i) { return std::log(std::max(found.allowed(b, head, i), 1.0)); };
    Rows with_choice;
    for (const int64_t i : rows.all)
      if (found.allowed(b, head, i) > 1) with_choice.push_back(i);
    mean(kEntropy, rows.all, entropy);
    mean(kEntropyOfFirst, {0}, entropy);
    mean(kEntropyUniform, rows.all, uniform);
    mean(kEntropyRelative, with_choice, [&](int64_t i) { return entropy(i) / uniform(i); });
  }

  void add_offsets(const LayerRows& found, const TextRows& rows, int64_t begin) {
    for (const int64_t i : rows.words)
      if (const int64_t key = found.position(begin + i); key >= 0) {
        ++offsets[key - i];
        ++words;
      }
  }

  HeadValues values() const {
    HeadValues result{layer, head, std::vector<double>(kMeasures, kNone)};
    for (size_t m = 0; m < kMeasures; ++m)
      if (texts[m] > 0) result.values[m] = sum[m] / static_cast<double>(texts[m]);
    if (words == 0) return result;
    const auto best = std::max_element(offsets.begin(), offsets.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    result.values[kOffset] = static_cast<double>(best->first);
    result.values[kPositional] = static_cast<double>(best->second) / static_cast<double>(words);
    return result;
  }
};

std::vector<Measure> all_measures() {
  const char *clark = "Clark et al. 2019", *voita = "Voita et al. 2019", *olsson = "Olsson et al. 2022";
  std::vector<Measure> all(kMeasures);
  all[kPrevious] = {"previous", "share", "mass on the token before, of tokens that have one", clark, 0.5};
  all[kNext] = {"next", "share", "mass on the token after, of tokens that have one", clark, 0.5};
  all[kSelf] = {"self", "share", "mass on the token itself", clark, 0.5};
  all[kFirst] = {"first", "share", "mass on the first token", clark, 0.5};
  all[kFirstFour] = {"first_four", "share", "mass on the first four tokens", "Xiao et al. 2023", kNone};
  all[kSink] = {"sink", "texts", "texts in which the first token receives more than 0.3 on the mean", "Gu et al. 2024",
                0.5};
  all[kStart] = {"start", "share", "mass on tokens that start a text, as [CLS]", clark, 0.6};
  all[kSeparator] = {"separator", "share", "mass on separators, as [SEP]", clark, 0.6};
  all[kSeparatorFromOthers] = {"separator_from_others", "share", "mass on separators, of tokens that are none", clark,
                               kNone};
  all[kSeparatorFromSeparators] = {"separator_from_separators", "share", "mass on separators, of separators", clark,
                                   kNone};
  all[kPunctuation] = {"punctuation", "share", "mass on punctuation", clark, 0.6};
  all[kEntropy] = {"entropy", "nats", "entropy of a row", clark, kNone};
  all[kEntropyOfFirst] = {"entropy_of_first", "nats", "entropy of the first token's row", clark, kNone};
  all[kEntropyUniform] = {"entropy_uniform", "nats", "ln of the keys that the masks allow a row", clark, kNone};
  all[kEntropyRelative] = {"entropy_relative", "share", "entropy over entropy_uniform, of rows with a choice", clark,
                           0.783};
  all[kDistance] = {"distance", "tokens", "mean distance of the keys that a token attends to", "Vig & Belinkov 2019",
                    kNone};
  all[kConfidence] = {"confidence", "share", "largest weight of a word's row", voita, kNone};
  all[kPositional] = {"positional", "share", "words whose largest weight is at the commonest offset", voita, 0.9};
  all[kOffset] = {"offset", "tokens", "the commonest offset of words' largest weights", voita, kNone};
  all[kDuplicate] = {"duplicate", "share", "mass on the same token elsewhere, of words that have occurred", olsson,
                     kNone};
  all[kInduction] = {"induction", "share", "mass on what is after the same token elsewhere, of those words", olsson,
                     kNone};
  return all;
}

}  // namespace

const std::vector<Measure>& measures() {
  static const std::vector<Measure> all = all_measures();
  return all;
}

std::vector<std::string> roles(const HeadValues& head) {
  std::vector<std::string> names;
  for (size_t m = 0; m < measures().size() && m < head.values.size(); ++m)
    if (head.values[m] > measures()[m].threshold) names.push_back(measures()[m].name);  // false for NaN
  return names;
}

struct Measures::State {
  std::vector<HeadSums> heads = {};
  std::vector<int64_t> heads_of_layer = {};
  int64_t texts = 0;
};

Measures::Measures() : state_(std::make_unique<State>()) {}
Measures::~Measures() = default;
Measures::Measures(Measures&&) noexcept = default;
Measures& Measures::operator=(Measures&&) noexcept = default;

void Measures::add(std::span<const RecordedAttention> layers, const Texts& texts) {
  Checker checker(kAdd);
  if (!state_) throw Error(kAdd, {"these measures have been moved from"});
  check_recorded(checker, layers, {.one_text = false, .own_text = true});
  checker.done();
  const int64_t B = layers[0].q.size[0], n = layers[0].q.size[2];
  const std::vector<int64_t> lengths = check_texts(checker, texts, B, n);
  std::vector<int64_t> counts;
  for (const RecordedAttention& layer : layers) counts.push_back(layer.q.size[1]);
  checker.require(state_->heads_of_layer.empty() || state_->heads_of_layer == counts,
                  "the layers must have as many heads as in the texts before");
  checker.done();

  State next = *state_;  // an lse that is not the layer's is an error of the last layer perhaps
  next.heads_of_layer = counts;
  if (next.heads.empty())
    for (size_t l = 0; l < counts.size(); ++l)
      for (int64_t h = 0; h < counts[l]; ++h) next.heads.push_back({static_cast<int64_t>(l), h});
  const TokenNumbers numbers(texts, lengths, n);
  std::vector<TextRows> rows;
  bool with_repeats = false;
  for (int64_t b = 0; b < B; ++b) {
    rows.push_back(rows_of(texts, b, lengths[static_cast<size_t>(b)]));
    with_repeats |= !rows.back().repeated.empty();
    next.texts += !rows.back().all.empty();
  }
  size_t at = 0;
  for (const RecordedAttention& layer : layers) {
    const LayerRows layer_rows(layer, numbers, with_repeats);
    for (int64_t h = 0; h < layer.q.size[1]; ++h, ++at)
      for (int64_t b = 0; b < B; ++b)
        if (!rows[static_cast<size_t>(b)].all.empty())
          next.heads[at].add_text(layer_rows, rows[static_cast<size_t>(b)], b);
  }
  *state_ = std::move(next);
}

int64_t Measures::texts() const { return state_ ? state_->texts : 0; }

std::vector<HeadValues> Measures::table() const {
  if (texts() == 0) throw Error(kAdd, {"no text was added"});
  std::vector<HeadValues> table;
  for (const HeadSums& head : state_->heads) table.push_back(head.values());
  return table;
}

std::vector<int64_t> repeated_tokens(int64_t length, int64_t copies, int64_t lowest, int64_t highest, int64_t start,
                                     uint64_t seed) {
  Checker checker("repeated_tokens");
  checker.require(length > 0, [&] { return "length is " + std::to_string(length) + ", must be at least 1"; });
  checker.require(copies > 1, [&] { return "copies is " + std::to_string(copies) + ", must be at least 2"; });
  checker.require(lowest >= 0 && lowest <= highest && highest - lowest >= length, [&] {
    return "the tokens are from [" + std::to_string(lowest) + ", " + std::to_string(highest) + "), must be at least " +
           std::to_string(length) + " different ones, none negative";
  });
  checker.done();
  Random random(seed);
  std::map<int64_t, int64_t> moved;  // of a shuffle of all tokens, what is not at its own place
  const auto at = [&](int64_t place) { return moved.contains(place) ? moved[place] : place; };
  std::vector<int64_t> tokens;
  if (start >= 0) tokens.push_back(start);
  const auto begin = static_cast<std::ptrdiff_t>(tokens.size());
  for (int64_t i = 0; i < length; ++i) {
    const int64_t place = lowest + i + random.below(highest - lowest - i), drawn = at(place);
    moved[place] = at(lowest + i);
    tokens.push_back(drawn);
  }
  const std::vector<int64_t> segment(tokens.begin() + begin, tokens.end());
  for (int64_t copy = 1; copy < copies; ++copy) tokens.insert(tokens.end(), segment.begin(), segment.end());
  return tokens;
}

}  // namespace attn::heads
