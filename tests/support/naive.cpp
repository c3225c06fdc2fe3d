// The library, the oracle and the naive algorithm on one Case.
#include "naive.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace attn::test {

Results empty_results(const Case& c, DType dtype, bool backward) {
  Results r;
  r.out = Array<4>(dtype, c.dout.size()).fill_with_nan();
  r.lse = Array<3>(lse_type(dtype), c.dlse.size()).fill_with_nan();
  if (!backward) return r;
  r.dq = Array<4>(dtype, c.q.size()).fill_with_nan();
  r.dk = Array<4>(dtype, c.k.size()).fill_with_nan();
  r.dv = Array<4>(dtype, c.v.size()).fill_with_nan();
  if (c.bias.given()) r.dbias = Array<4>(lse_type(dtype), c.bias.size()).fill_with_nan();
  if (!c.sink.empty()) r.dsink = Array<1>(lse_type(dtype), {c.dims.H}).fill_with_nan();
  return r;
}

AttentionGradients gradients_of(Results& r) {
  AttentionGradients gradients;
  gradients.dq = r.dq.view();
  gradients.dk = r.dk.view();
  gradients.dv = r.dv.view();
  if (r.dbias.given()) gradients.dbias = r.dbias.view();
  if (r.dsink.given()) gradients.dsink = r.dsink.view();
  return gradients;
}

Results run(const Case& c, bool backward) {
  Results r = empty_results(c, c.dtype, backward);
  attention(c.q.view(), c.k.view(), c.v.view(), r.out.view(), r.lse.view(), c.options());
  if (backward)
    attention_backward(c.q.view(), c.k.view(), c.v.view(), r.out.view(), r.lse.view(), c.dout.view(), gradients_of(r),
                       c.options(), c.dlse.view());
  return r;
}

Results run_reference(const Case& c, bool backward) {
  const DType exact = DType::float64;
  const Array<4> q = c.q.as(exact), k = c.k.as(exact), v = c.v.as(exact), dout = c.dout.as(exact);
  const Array<3> dlse = c.dlse.as(exact);
  Results r = empty_results(c, exact, backward);
  reference::attention(q.view(), k.view(), v.view(), r.out.view(), r.lse.view(), c.options());
  if (backward)
    reference::attention_backward(q.view(), k.view(), v.view(), r.out.view(), r.lse.view(), dout.view(),
                                  gradients_of(r), c.options(), dlse.view());
  return r;
}

namespace {

/// What the options add to every score, -infinity where a pair is not allowed. Read off the oracle: with q = 0 a weight
/// is exp(bias - alibi - lse), or 0.
Array<4> addends(const Case& c) {
  const Dims& d = c.dims;
  AttentionOptions options = c.options();
  options.scale = 1;
  options.sink = {};
  const Array<4> q(DType::float64, {d.B, d.H, d.Lq, 1}), k(DType::float64, {d.B, d.Hk, d.Lk, 1}), v = k;
  Array<4> out = q, all(DType::float64, {d.B, d.H, d.Lq, d.Lk});
  Array<3> lse(DType::float64, {d.B, d.H, d.Lq});
  reference::attention(q.view(), k.view(), v.view(), out.view(), lse.view(), options);
  reference::attention_weights(q.view(), k.view(), lse.view(), all.view(), 0, 0, options);
  for (int64_t n = 0; n < all.count(); ++n) all.set(n, std::log(all.get(n)) + lse.get(n / d.Lk));
  return all;
}

}  // namespace

std::vector<bool> allowed_pairs(const Case& c) {
  const Array<4> all = addends(c);
  std::vector<bool> allowed(all.count());
  for (size_t n = 0; n < allowed.size(); ++n) allowed[n] = std::isfinite(all.get(n));
  return allowed;
}

namespace {

class Naive {
 public:
  Naive(const Case& c, Way way)
      : c_(c),
        d_(c.dims),
        way_(way),
        q_(floats(c.q)),
        k_(floats(c.k)),
        v_(floats(c.v)),
        dout_(floats(c.dout)),
        addends_(addends(c)),
        scale_(static_cast<float>(
            c.scalars.scale.value_or(1 / std::sqrt(static_cast<double>(std::max<int64_t>(1, d_.D)))))) {
    if (way == Way::reversed)
      for (float& element : q_) element *= scale_ * kLog2e;
  }

  Results run(bool backward) {
    Results r = empty_results(c_, c_.dtype, backward);
    for (int64_t b = 0; b < d_.B; ++b)
      for (int64_t h = 0; h < d_.H; ++h)
        for (int64_t i = 0; i < d_.Lq; ++i) forward_row(r, b, h, i);
    if (backward) run_backward(r);
    return r;
  }

 private:
  static constexpr float kLog2e = std::numbers::log2e_v<float>;

  struct Row {
    std::vector<float> logits, scores, weights;  // logits before bias, scores in units of exp() or 2^x
    float sink_weight = 0, lse = 0;
  };

  static std::vector<float> floats(const Array<4>& array) {
    const std::vector<double> values = array.values();
    return {values.begin(), values.end()};
  }
  /// The n-th term of a sum.
  int64_t term(int64_t n, int64_t count) const {
    if (way_ == Way::textbook) return n;
    if (way_ == Way::reversed) return count - 1 - n;
    const int64_t evens = (count + 1) / 2;
    return n < evens ? 2 * n : 2 * (n - evens) + 1;
  }
  float dot(const float* a, const float* b, int64_t count) const {
    float sum = 0;
    for (int64_t n = 0; n < count; ++n) sum += a[term(n, count)] * b[term(n, count)];
    return sum;
  }
  float exp(float x) const { return way_ == Way::reversed ? std::exp2(x) : std::exp(x); }
  float units() const { return way_ == Way::reversed ? kLog2e : 1; }
  float stored(float value) const {
    return c_.dtype == DType::float64 ? value : static_cast<float>(rounded(value, c_.dtype));
  }
  int64_t query(int64_t b, int64_t h, int64_t i) const { return (b * d_.H + h) * d_.Lq + i; }
  int64_t key(int64_t b, int64_t h, int64_t j) const { return (b * d_.Hk + h / (d_.H / d_.Hk)) * d_.Lk + j; }
  float keep(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (c_.scalars.dropout == 0) return 1;
    const bool kept = dropout_keeps(c_.scalars.seed, c_.scalars.dropout, b, h, i, j);
    return kept ? static_cast<float>(1 / (1 - c_.scalars.dropout)) : 0;
  }

  Row softmax(int64_t b, int64_t h, int64_t i) const {
    const auto softcap = static_cast<float>(c_.scalars.softcap);
    const float sink = c_.sink.empty() ? -std::numeric_limits<float>::infinity() : c_.sink[h] * units();
    Row row;
    float max = sink;
    for (int64_t j = 0; j < d_.Lk; ++j) {
      float s = dot(&q_[query(b, h, i) * d_.D], &k_[key(b, h, j) * d_.D], d_.D);
      if (way_ != Way::reversed) s *= scale_;
      if (softcap > 0) s = softcap * units() * std::tanh(s / (softcap * units()));
      row.logits.push_back(s / units());
      row.scores.push_back(s + static_cast<float>(addends_.get({b, h, i, j})) * units());
      max = std::max(max, row.scores.back());
    }
    row.weights.assign(d_.Lk, 0);
    row.lse = max;
    if (std::isinf(max)) return row;  // nothing is allowed
    float sum = row.sink_weight = exp(sink - max);
    for (int64_t n = 0; n < d_.Lk; ++n) {
      const int64_t j = term(n, d_.Lk);
      sum += row.weights[j] = exp(row.scores[j] - max);
    }
    for (float& weight : row.weights) weight /= sum;
    row.sink_weight /= sum;
    row.lse = max / units() + std::log(sum);
    return row;
  }

  /// The weights as the backward has them: most implementations keep only lse.
  Row recomputed(int64_t b, int64_t h, int64_t i) const {
    Row row = softmax(b, h, i);
    if (way_ == Way::textbook || std::isinf(row.lse)) return row;
    for (int64_t j = 0; j < d_.Lk; ++j) row.weights[j] = exp(row.scores[j] - row.lse * units());
    if (!c_.sink.empty()) row.sink_weight = exp((c_.sink[h] - row.lse) * units());
    return row;
  }

  void forward_row(Results& r, int64_t b, int64_t h, int64_t i) const {
    const Row row = softmax(b, h, i);
    r.lse.set(query(b, h, i), row.lse);
    std::vector<float> out(d_.Dv);
    for (int64_t n = 0; n < d_.Lk; ++n) {
      const int64_t j = term(n, d_.Lk);
      add_scaled(out.data(), stored(row.weights[j] * keep(b, h, i, j)), &v_[key(b, h, j) * d_.Dv], d_.Dv);
    }
    for (int64_t n = 0; n < d_.Dv; ++n) r.out.set(query(b, h, i) * d_.Dv + n, out[n]);
  }

  float dweight(int64_t b, int64_t h, int64_t i, int64_t j, const float* dout_i) const {
    return keep(b, h, i, j) * dot(dout_i, &v_[key(b, h, j) * d_.Dv], d_.Dv);
  }
  float delta_of(const Row& row, int64_t b, int64_t h, int64_t i, const float* dout_i, const float* out_i) const {
    float delta = 0;
    if (way_ == Way::reversed)
      for (int64_t j = 0; j < d_.Lk; ++j) delta += row.weights[j] * dweight(b, h, i, j, dout_i);
    else
      for (int64_t n = 0; n < d_.Dv; ++n) delta += dout_i[n] * out_i[n];
    return delta;
  }

  void run_backward(Results& r) const {
    std::vector<float> dq(q_.size()), dk(k_.size()), dv(v_.size()), out = floats(r.out);
    std::vector<float> dbias(r.dbias.count()), dsink(d_.H);
    const auto softcap = static_cast<float>(c_.scalars.softcap);
    const float q_factor = way_ == Way::reversed ? 1 / kLog2e : scale_;  // q_ may hold scale and units already
    for (int64_t row_number = 0; row_number < d_.B * d_.H * d_.Lq; ++row_number) {
      const int64_t at_q = term(row_number, d_.B * d_.H * d_.Lq);
      const int64_t b = at_q / (d_.H * d_.Lq), h = at_q / d_.Lq % d_.H, i = at_q % d_.Lq;
      const Row row = recomputed(b, h, i);
      const float* dout_i = &dout_[at_q * d_.Dv];
      const float delta = delta_of(row, b, h, i, dout_i, &out[at_q * d_.Dv]);
      const auto dlse = static_cast<float>(c_.dlse.get(at_q));
      dsink[h] += row.sink_weight * (dlse - delta);
      for (int64_t n = 0; n < d_.Lk; ++n) {
        const int64_t j = term(n, d_.Lk), at_k = key(b, h, j);
        add_scaled(&dv[at_k * d_.Dv], stored(row.weights[j] * keep(b, h, i, j)), dout_i, d_.Dv);
        float ds = row.weights[j] * (dweight(b, h, i, j, dout_i) - delta + dlse);
        if (!dbias.empty()) dbias[bias_index(b, h, i, j)] += ds;
        if (softcap > 0) ds *= 1 - row.logits[j] / softcap * (row.logits[j] / softcap);
        ds = stored(ds);
        add_scaled(&dq[at_q * d_.D], ds * scale_, &k_[at_k * d_.D], d_.D);
        add_scaled(&dk[at_k * d_.D], ds * q_factor, &q_[at_q * d_.D], d_.D);
      }
    }
    copy(dq, r.dq);
    copy(dk, r.dk);
    copy(dv, r.dv);
    if (r.dbias.given()) copy(dbias, r.dbias);
    if (r.dsink.given()) copy(dsink, r.dsink);
  }

  static void add_scaled(float* y, float factor, const float* x, int64_t count) {
    for (int64_t n = 0; n < count; ++n) y[n] += factor * x[n];
  }
  int64_t bias_index(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const Shape<4>& size = c_.bias.size();
    const auto along = [&](int axis, int64_t index) { return size[axis] == 1 ? 0 : index; };
    return c_.bias.index({along(0, b), along(1, h), along(2, i), along(3, j)});
  }
  template <int Rank>
  static void copy(const std::vector<float>& from, Array<Rank>& to) {
    for (int64_t n = 0; n < to.count(); ++n) to.set(n, from[n]);
  }

  const Case& c_;
  const Dims d_;
  const Way way_;
  std::vector<float> q_;
  const std::vector<float> k_, v_, dout_;
  const Array<4> addends_;
  const float scale_;
};

}  // namespace

Results run_naive(const Case& c, Way way, bool backward) { return Naive(c, way).run(backward); }

}  // namespace attn::test
