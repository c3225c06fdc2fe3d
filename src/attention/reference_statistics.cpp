// The statistics of P in float64, row by row, as their definitions read.
//
//   sum       sum_j P_ij                      entropy        - sum_j P_ij ln P_ij
//   distance  sum_j P_ij |p_i - j|            participation  1 / sum_j P_ij^2
//   masses    sum of P_ij over j in a set     columns        sum_i P_ij f_j,  sum_i P_ij p_i / sum_i P_ij
//   picture   the mean, or the largest, P_ij f_j of the pairs (i, j) in a cell
//   backward  ds_ij = P_ij (g_ij - sum_j P_ij g_ij),  g_ij = dL / dP_ij
#include <algorithm>
#include <numeric>

#include "attention/reference.h"
#include "attention/statistics.h"

namespace attn::reference {
namespace {

template <int Rank>
void put(const View<Rank>& view, const Shape<Rank>& index, double value) {
  if (!view) return;
  int64_t offset = 0;
  for (int axis = 0; axis < Rank; ++axis) offset += index[axis] * view.stride[axis];
  store(view.data, view.dtype, offset, value);
}

/// All numbers of a row, or the sums of them over rows.
struct RowNumbers {
  double sum = 0, entropy = 0, participation = 0, maximum = 0, distance = 0, same_token = 0;
  std::vector<double> bands, labels;

  template <class Body>  // body(number, number of the other)
  void with(const RowNumbers& other, const Body& body) {
    body(sum, other.sum), body(entropy, other.entropy), body(participation, other.participation);
    body(maximum, other.maximum), body(distance, other.distance), body(same_token, other.same_token);
    for (size_t n = 0; n < bands.size(); ++n) body(bands[n], other.bands[n]);
    for (size_t n = 0; n < labels.size(); ++n) body(labels[n], other.labels[n]);
  }
  void fill(double value) {
    with(*this, [=](double& number, double) { number = value; });
  }

  template <int Rank>
  void write(const RowStatistics<Rank>& to, const Shape<Rank>& index) const {
    put<Rank>(to.sum, index, sum);
    put<Rank>(to.entropy, index, entropy);
    put<Rank>(to.participation, index, participation);
    put<Rank>(to.maximum, index, maximum);
    put<Rank>(to.distance, index, distance);
    put<Rank>(to.same_token, index, same_token);
    Shape<Rank + 1> in_set{};
    std::copy(index.begin(), index.end(), in_set.begin());
    for (size_t n = 0; n < bands.size(); ++n, ++in_set[Rank]) put<Rank + 1>(to.bands, in_set, bands[n]);
    in_set[Rank] = 0;
    for (size_t n = 0; n < labels.size(); ++n, ++in_set[Rank]) put<Rank + 1>(to.labels, in_set, labels[n]);
  }
};

class Statistics {
 public:
  Statistics(const ConstView<4>& q, const ConstView<4>& k, const ConstView<3>& lse, const AttentionStatistics& wanted,
             const AttentionOptions& options)
      : wanted_(wanted), lse_(lse), scores_(q, k, options), H_(q.size[1]), Lq_(q.size[2]), Lk_(k.size[2]) {
    queries_ = wanted.picture.queries < 0 ? Lq_ - wanted.picture.first_query : wanted.picture.queries;
    keys_ = wanted.picture.keys < 0 ? Lk_ - wanted.picture.first_key : wanted.picture.keys;
    empty_.bands.resize(wanted.sets.bands.size());
    empty_.labels.resize(static_cast<size_t>(detail::label_count(wanted)));
  }

  void head(int64_t b, int64_t h) {
    mass_.assign(Lk_, 0);
    moment_.assign(Lk_, 0);
    cells_.assign(wanted_.picture.cells.size[2] * wanted_.picture.cells.size[3], 0);
    RowNumbers mean = empty_;
    double seeing = 0;
    for (int64_t i = 0; i < Lq_; ++i) {
      const bool sees = at<double, 3>(lse_, {b, h, i}) != -kInfinity;
      const RowNumbers numbers = row(b, h, i, sees);
      numbers.write(wanted_.rows, {b, h, i});
      if (numbers.sum == 0) continue;
      ++seeing;
      mean.with(numbers, [](double& total, double number) { total += number; });
    }
    mean.with(mean, [=](double& total, double) { total = seeing > 0 ? total / seeing : 0; });
    mean.write(wanted_.means, {b, h});
    for (int64_t j = 0; j < Lk_; ++j) {
      put<3>(wanted_.column_mass, {b, h, j}, mass_[j] * factor(b, h, j));
      put<3>(wanted_.column_position, {b, h, j}, moment_[j] / mass_[j]);
    }
    write_picture(b, h);
  }

  /// What a loss with the gradients `from` by the statistics of row (b, h, i) adds to `sums`.
  void row_backward(int64_t b, int64_t h, int64_t i, const RowStatisticsGradients& from, ScoreGradients& sums) const {
    const Row row = scores_.softmax(b, h, i);
    const double place = static_cast<double>(scores_.place_of(b, i).p);
    const auto largest = std::max_element(row.weights.begin(), row.weights.end()) - row.weights.begin();
    double squares = 0, delta = 0;
    for (double weight : row.weights) squares += weight * weight;
    const auto of = [&](const ConstView<3>& view) { return view ? at<double, 3>(view, {b, h, i}) : 0; };
    std::vector<double> g(row.keys.size());
    for (size_t n = 0; n < g.size(); ++n) {
      const int64_t j = row.keys[n];
      const double weight = row.weights[n];
      g[n] = of(from.sum) + of(from.distance) * std::abs(place - static_cast<double>(j));
      if (weight > 0) g[n] -= of(from.entropy) * (std::log(weight) + 1);
      if (squares > 0) g[n] -= 2 * of(from.participation) * weight / (squares * squares);
      if (static_cast<int64_t>(n) == largest) g[n] += of(from.maximum);
      RowNumbers in = empty_;  // sets that the key is in
      add_masses(in, b, i, j, 1);
      g[n] += of(from.same_token) * in.same_token;
      for (int64_t set = 0; from.bands && set < from.bands.size[3]; ++set)
        g[n] += at<double, 4>(from.bands, {b, h, i, set}) * in.bands[set];
      for (int64_t set = 0; from.labels && set < from.labels.size[3]; ++set)
        g[n] += at<double, 4>(from.labels, {b, h, i, set}) * in.labels[set];
      delta += weight * g[n];
    }
    for (size_t n = 0; n < g.size(); ++n) sums.add_score(b, h, i, row.keys[n], row.weights[n] * (g[n] - delta));
    sums.add_sink(h, -row.sink_weight * delta);
  }
  const Scores& scores() const { return scores_; }

 private:
  double factor(int64_t b, int64_t h, int64_t j) const {
    const ConstView<3>& f = wanted_.key_factor;
    return f ? at<double, 3>(f, {b, h * f.size[1] / H_, j}) : 1;
  }

  /// One row of P, and what it adds to columns and picture.
  RowNumbers row(int64_t b, int64_t h, int64_t i, bool sees) {
    const double lse = at<double, 3>(lse_, {b, h, i}), place = static_cast<double>(scores_.place_of(b, i).p);
    std::vector<double> P(Lk_);
    RowNumbers numbers = empty_;
    double squares = 0;
    for (int64_t j = 0; sees && j < Lk_; ++j) {
      if (!scores_.allowed(b, h, i, j)) continue;
      const double score = scores_.score(b, h, i, j), weight = exp_above(score, lse);
      P[j] = weight;
      numbers.sum += weight;
      if (weight > 0) numbers.entropy -= weight * (score - lse);
      squares += weight * weight;
      numbers.maximum = std::max(numbers.maximum, weight);
      numbers.distance += weight * std::abs(place - static_cast<double>(j));
      add_masses(numbers, b, i, j, weight);
      mass_[j] += weight;
      moment_[j] += weight * place;
      add_cell(i, j, weight * factor(b, h, j));
    }
    if (squares > 0) numbers.participation = 1 / squares;
    if (std::isnan(lse) || lse == kInfinity) numbers.fill(std::nan(""));
    write_largest(P, {b, h, i, 0});
    return numbers;
  }

  void add_masses(RowNumbers& numbers, int64_t b, int64_t i, int64_t j, double weight) const {
    const Place place = scores_.place_of(b, i);
    const KeySets& sets = wanted_.sets;
    for (size_t n = 0; n < sets.bands.size(); ++n) {
      const int64_t from = j - (sets.bands[n].relative ? place.p : place.first_key);
      if (from >= sets.bands[n].low && from <= sets.bands[n].high) numbers.bands[n] += weight;
    }
    const int64_t label = sets.labels ? at<int64_t, 2>(sets.labels, {b, j}) : -1;
    if (label >= 0 && !numbers.labels.empty()) numbers.labels[label] += weight;
    if (sets.query_token_ids &&
        at<int64_t, 2>(sets.query_token_ids, {b, i}) == at<int64_t, 2>(sets.key_token_ids, {b, j}))
      numbers.same_token += weight;
  }

  void add_cell(int64_t i, int64_t j, double value) {
    const AttentionPicture& picture = wanted_.picture;
    const int64_t row = i - picture.first_query, column = j - picture.first_key;
    if (!picture.cells || row < 0 || row >= queries_ || column < 0 || column >= keys_) return;
    const int64_t R = picture.cells.size[2], C = picture.cells.size[3];
    double& cell = cells_[row * R / queries_ * C + column * C / keys_];
    cell = picture.maximum ? std::max(cell, value) : cell + value;
  }

  void write_picture(int64_t b, int64_t h) {
    const AttentionPicture& picture = wanted_.picture;
    const int64_t R = picture.cells.size[2], C = picture.cells.size[3];
    std::vector<double> rows(R), columns(C);
    for (int64_t row = 0; R > 0 && row < queries_; ++row) ++rows[row * R / queries_];
    for (int64_t column = 0; C > 0 && column < keys_; ++column) ++columns[column * C / keys_];
    for (int64_t r = 0; r < R; ++r)
      for (int64_t c = 0; c < C; ++c) {
        const double pairs = picture.maximum ? 1 : rows[r] * columns[c];
        put<4>(picture.cells, {b, h, r, c}, cells_[r * C + c] / pairs);
      }
  }

  void write_largest(const std::vector<double>& P, const Shape<4>& row) {
    std::vector<int64_t> keys(P.size());
    std::iota(keys.begin(), keys.end(), 0);
    std::stable_sort(keys.begin(), keys.end(), [&](int64_t a, int64_t b) { return P[a] > P[b]; });
    const auto key = [&](size_t n) { return n < keys.size() && P[keys[n]] > 0 ? keys[n] : -1; };
    put<3>(wanted_.argmax_key, {row[0], row[1], row[2]}, static_cast<double>(key(0)));
    const int64_t most = std::max(wanted_.top_weight.size[3], wanted_.top_key.size[3]);
    for (int64_t n = 0; n < most; ++n) {
      put<4>(wanted_.top_key, {row[0], row[1], row[2], n}, static_cast<double>(key(n)));
      put<4>(wanted_.top_weight, {row[0], row[1], row[2], n}, key(n) < 0 ? 0 : P[keys[n]]);
    }
  }

  const AttentionStatistics& wanted_;
  const ConstView<3>& lse_;
  const Scores scores_;
  int64_t H_, Lq_, Lk_, queries_, keys_;
  RowNumbers empty_;
  std::vector<double> mass_, moment_, cells_;
};

}  // namespace

void attention_statistics(ConstView<4> q, ConstView<4> k, ConstView<3> lse, const AttentionStatistics& wanted,
                          const AttentionOptions& options) {
  Checker checker("reference::attention_statistics");
  const detail::Problem problem = detail::make_problem(checker, q, k, k, options);
  detail::check_statistics(checker, problem, lse, wanted, detail::ValueTypes::any);
  checker.done();
  Statistics statistics(q, k, lse, wanted, options);
  for (int64_t b = 0; b < problem.B; ++b)
    for (int64_t h = 0; h < problem.H; ++h) statistics.head(b, h);
}

void attention_statistics_backward(ConstView<4> q, ConstView<4> k, ConstView<3> lse,
                                   const AttentionStatistics& statistics, const RowStatisticsGradients& drows,
                                   const AttentionGradients& gradients, const AttentionOptions& options) {
  Checker checker("reference::attention_statistics_backward");
  const detail::Problem problem = detail::make_problem(checker, q, k, k, options);
  detail::check_statistics_backward(checker, problem, lse, statistics, drows, gradients, detail::ValueTypes::any);
  checker.done();
  const Statistics rows(q, k, lse, statistics, options);
  ScoreGradients sums(rows.scores(), q.size, k.size, options.bias.size);
  for_each_query(q.size, [&](int64_t b, int64_t h, int64_t i) { rows.row_backward(b, h, i, drows, sums); });
  sums.write(gradients);
}

}  // namespace attn::reference
