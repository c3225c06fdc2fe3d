// What the files of the float64 reference share: elements in and out, scores and softmax of a call, its checks.
//
// A pair that is not allowed is never read. Nothing here is shared with the kernels, nor with the code that turns
// options into key intervals for them.
#pragma once

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "attention/problem.h"
#include "attn/attention.h"
#include "core/plain.h"

namespace attn::reference {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// -------------------------------------------------------------------------------------------------- scores and softmax

/// exp(score - origin), with its limits where both are infinite: the maximum itself weighs 1, -infinity weighs nothing.
inline double exp_above(double score, double origin) {
  if (score == -kInfinity) return 0;
  return score == origin ? 1 : std::exp(score - origin);
}

/// Where query i is, in keys of the call. In packed sequences p counts on the packed key axis too, so that p - j is a
/// distance.
struct Place {
  int64_t first_key = 0;  // the keys of its sequence: [first_key, end_key), which may leave a shard
  int64_t end_key = 0;
  int64_t p = 0;
};

/// A row of P: the allowed keys, their weights, and what the sink took.
struct Row {
  std::vector<int64_t> keys;
  std::vector<double> weights;
  double sink_weight = 0;
  double lse = -kInfinity;
};

/// The part of a call that every function below needs: queries, keys and options.
class Scores {
 public:
  Scores(const ConstView<4>& q, const ConstView<4>& k, const AttentionOptions& options)
      : options_(options),
        q_(read(q)),
        k_(read(k)),
        D_(q.size[3]),
        Lq_(q.size[2]),
        Lk_(k.size[2]),
        group_(k.size[1] == 0 ? 1 : q.size[1] / k.size[1]) {
    // Without a single feature every score is 0, whatever it is scaled by.
    scale_ = options.scale.value_or(D_ == 0 ? 1 : 1 / std::sqrt(static_cast<double>(D_)));
  }

  int64_t key_head(int64_t h) const { return h / group_; }
  double scale() const { return scale_; }
  const double* q_row(int64_t b, int64_t h, int64_t i) const { return row_of(q_, b, h, i); }
  const double* k_row(int64_t b, int64_t h, int64_t j) const { return row_of(k_, b, key_head(h), j); }

  bool allowed(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const Place place = place_of(b, i);
    const int64_t ahead = j - place.p;
    const AttentionOptions& o = options_;
    if (j < place.first_key || j >= place.end_key) return false;
    if (o.causal && ahead > 0) return false;
    if (o.window.right >= 0 && ahead > o.window.right) return false;
    if (o.window.left >= 0 && -ahead > o.window.left) return false;
    if (o.mask && !at<bool, 4>(o.mask, {b, h, i, j})) return false;
    if (o.query_segment_ids && at<int64_t, 2>(o.query_segment_ids, {b, i}) != at<int64_t, 2>(o.key_segment_ids, {b, j}))
      return false;
    if (!in_blocks(b, h, i, j)) return false;
    return !(o.bias && at<double, 4>(o.bias, {b, h, i, j}) == -kInfinity);
  }

  bool in_blocks(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const BlockLayout& blocks = options_.blocks;
    if (!blocks.given()) return true;
    const int64_t n = (options_.shard.first_query + i) / blocks.query_block;
    const int64_t m = (options_.shard.first_key + j) / blocks.key_block;
    if (blocks.allowed) return at<bool, 4>(blocks.allowed, {b, h, n, m});
    const int64_t end = at<int64_t, 3>(blocks.offsets, {b, h, n + 1});
    for (int64_t t = at<int64_t, 3>(blocks.offsets, {b, h, n}); t < end; ++t)
      if (at<int64_t, 1>(blocks.indices, {t}) == m) return true;
    return false;
  }

  /// scale <q_i, k_j>
  double product(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return scale_ * dot(q_row(b, h, i), k_row(b, h, j), D_);
  }

  double cap(double s) const { return options_.softcap > 0 ? options_.softcap * std::tanh(s / options_.softcap) : s; }

  /// d cap(s) / ds: the derivative of tanh is 1 - tanh^2 = 1 / cosh^2, which does not cancel where tanh is nearly 1.
  double cap_slope(double s) const {
    if (options_.softcap == 0) return 1;
    const double cosh = std::cosh(s / options_.softcap);
    return 1 / (cosh * cosh);
  }

  double score(int64_t b, int64_t h, int64_t i, int64_t j) const {
    double s = cap(product(b, h, i, j));
    if (options_.bias) s += at<double, 4>(options_.bias, {b, h, i, j});
    if (!options_.alibi_slopes.empty())
      s -= options_.alibi_slopes[h] * static_cast<double>(std::abs(place_of(b, i).p - j));
    return s;
  }

  Row softmax(int64_t b, int64_t h, int64_t i) const {
    const bool has_sink = !options_.sink.empty();
    Row row;
    double max = has_sink ? double{options_.sink[h]} : -kInfinity;
    for (int64_t j = 0; j < Lk_; ++j) {
      if (!allowed(b, h, i, j)) continue;
      row.keys.push_back(j);
      row.weights.push_back(score(b, h, i, j));
      max = std::fmax(max, row.weights.back());
    }
    double sum = row.sink_weight = has_sink ? exp_above(options_.sink[h], max) : 0;
    for (double& weight : row.weights) sum += weight = exp_above(weight, max);
    if (sum == 0) return row;
    for (double& weight : row.weights) weight /= sum;
    row.sink_weight /= sum;
    row.lse = max + std::log(sum);
    return row;
  }

  Place place_of(int64_t b, int64_t i) const {
    const Place whole = place_in_whole(b, options_.shard.first_query + i);
    const int64_t origin = options_.shard.first_key;
    return {whole.first_key - origin, whole.end_key - origin, whole.p - origin};
  }

  /// The same of query i of the whole, in keys of the whole.
  Place place_in_whole(int64_t b, int64_t i) const {
    const AttentionOptions& o = options_;
    int64_t sequence = b, first_query = 0, first_key = 0;
    int64_t queries = std::max(o.shard.queries, o.shard.first_query + Lq_);
    int64_t keys = std::max(o.shard.keys, o.shard.first_key + Lk_);
    if (!o.cu_seqlens_q.empty()) {
      const int64_t sequences = static_cast<int64_t>(o.cu_seqlens_q.size()) - 1;
      for (sequence = 0; sequence < sequences; ++sequence)
        if (o.cu_seqlens_q[sequence] <= i && i < o.cu_seqlens_q[sequence + 1]) break;
      if (sequence == sequences) return {};  // a query of no sequence sees nothing
      first_query = o.cu_seqlens_q[sequence];
      first_key = o.cu_seqlens_k[sequence];
      queries = o.cu_seqlens_q[sequence + 1] - first_query;
      keys = o.cu_seqlens_k[sequence + 1] - first_key;
    }
    if (!o.key_length.empty()) keys = std::min(keys, o.key_length[sequence]);
    if (!o.query_length.empty()) queries = o.query_length[sequence];
    int64_t shift = 0;
    if (o.alignment == Alignment::bottom_right) shift = keys - queries;
    if (o.alignment == Alignment::offset) shift = o.offset[sequence];
    return {first_key, first_key + keys, first_key + (i - first_query) + shift};
  }

  /// The factor of dropout on P_ij.
  double keep(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (options_.dropout == 0) return 1;
    const Shard& s = options_.shard;
    const bool kept = dropout_keeps(options_.seed, options_.dropout, s.first_batch + b, s.first_head + h,
                                    s.first_query + i, s.first_key + j);
    return kept ? 1 / (1 - options_.dropout) : 0;
  }

 private:
  const AttentionOptions& options_;
  Tensor<double, 4> q_, k_;
  int64_t D_, Lq_, Lk_, group_;
  double scale_;
};

/// What the scores of pairs give to the gradients of what they are made of.
class ScoreGradients {
 public:
  ScoreGradients(const Scores& scores, const Shape<4>& q, const Shape<4>& k, const Shape<4>& bias)
      : scores_(scores), dq_(q), dk_(k), dbias_(bias), dsink_({q[1]}) {}

  void add_score(int64_t b, int64_t h, int64_t i, int64_t j, double dscore) {
    if (dbias_.count() > 0) {
      const Shape<4>& size = dbias_.size();
      const auto along = [&](int axis, int64_t index) { return size[axis] == 1 ? 0 : index; };
      row_of(dbias_, along(0, b), along(1, h), along(2, i))[along(3, j)] += dscore;
    }
    const double dlogit = dscore * scores_.cap_slope(scores_.product(b, h, i, j)) * scores_.scale();
    const int64_t D = dq_.size()[3];
    add_scaled(row_of(dq_, b, h, i), dlogit, scores_.k_row(b, h, j), D);
    add_scaled(row_of(dk_, b, scores_.key_head(h), j), dlogit, scores_.q_row(b, h, i), D);
  }
  void add_sink(int64_t h, double dsink) { dsink_[h] += dsink; }

  void write(const AttentionGradients& gradients) const {
    reference::write(dq_, gradients.dq);
    reference::write(dk_, gradients.dk);
    reference::write(dbias_, gradients.dbias);
    reference::write(dsink_, gradients.dsink);
  }

 private:
  const Scores& scores_;
  Tensor<double, 4> dq_, dk_, dbias_;
  Tensor<double, 1> dsink_;
};

/// Visits every (b, h, i) of a query tensor.
template <class Body>
void for_each_query(const Shape<4>& q_size, Body body) {
  for (int64_t b = 0; b < q_size[0]; ++b)
    for (int64_t h = 0; h < q_size[1]; ++h)
      for (int64_t i = 0; i < q_size[2]; ++i) body(b, h, i);
}

/// The checks of a call are the operator's own, but that results may be of any floating type and absent.
class Checks {
 public:
  Checks(std::string_view operation, const ConstView<4>& q, const ConstView<4>& k, const ConstView<4>& v,
         const AttentionOptions& options)
      : checker_(operation), problem_(detail::make_problem(checker_, q, k, v, options)) {}

  void require(bool condition, const char* reason) { checker_.require(condition, reason); }
  template <class Pointer, int Rank>
  void require_array(const char* name, const BasicView<Pointer, Rank>& x,
                     const std::type_identity_t<Shape<Rank>>& size) {
    checker_.require(is_floating(x.dtype) && x.size == size, [&] {
      return std::string(name) + " is " + std::string(name_of(x.dtype)) + " of size " + to_string(x.size) +
             ", must be of a floating type and size " + to_string(size);
    });
    detail::check_layout(checker_, name, x);
    checker_.require(x.data || x.empty(), [&] { return std::string(name) + " must have data"; });
  }
  template <int Rank>
  void require_result(const char* name, const View<Rank>& x, const std::type_identity_t<Shape<Rank>>& size) {
    if (x) require_array(name, x, size);
  }
  Shape<3> rows() const { return {problem_.B, problem_.H, problem_.Lq}; }
  Shape<4> outputs() const { return {problem_.B, problem_.H, problem_.Lq, problem_.Dv}; }
  void done() const { checker_.done(); }

 private:
  Checker checker_;
  detail::Problem problem_;
};

}  // namespace attn::reference
