// naive: three ways to compute one Case. run() is the library; run_reference() is the float64 oracle; run_naive() is the
// textbook algorithm in the precision of the case, whose error is the yardstick of tolerance.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "sweep.h"

namespace attn::test {

struct Results {
  Array<4> out;
  Array<3> lse;
  Array<4> dq, dk, dv, dbias;
  Array<1> dsink;
};

inline DType lse_type(DType dtype) { return dtype == DType::float64 ? DType::float64 : DType::float32; }

/// Results of the right shapes, all NaN until they are written.
inline Results empty_results(const Case& c, DType dtype, bool backward) {
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

inline AttentionGradients gradients_of(Results& r) {
  AttentionGradients gradients;
  gradients.dq = r.dq.view();
  gradients.dk = r.dk.view();
  gradients.dv = r.dv.view();
  if (r.dbias.given()) gradients.dbias = r.dbias.view();
  if (r.dsink.given()) gradients.dsink = r.dsink.view();
  return gradients;
}

/// The library.
inline Results run(const Case& c, bool backward = true) {
  Results r = empty_results(c, c.dtype, backward);
  attention(c.q.view(), c.k.view(), c.v.view(), r.out.view(), r.lse.view(), c.options());
  if (backward)
    attention_backward(c.q.view(), c.k.view(), c.v.view(), r.out.view(), r.lse.view(), c.dout.view(), gradients_of(r),
                       c.options(), c.dlse.view());
  return r;
}

/// The oracle: the same inputs, float64 arithmetic and float64 results.
inline Results run_reference(const Case& c, bool backward = true) {
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

/// What the options add to every score, -infinity where a pair is not allowed. Read off the oracle: with q = 0 and lse = 0
/// a weight is exp(bias - alibi), or 0.
inline Array<4> addends(const Case& c) {
  const Dims& d = c.dims;
  AttentionOptions options = c.options();
  options.scale = 1;
  const Array<4> q(DType::float64, {d.B, d.H, d.Lq, d.D}), k(DType::float64, {d.B, d.Hk, d.Lk, d.D});
  const Array<3> lse(DType::float64, {d.B, d.H, d.Lq});
  Array<4> all(DType::float64, {d.B, d.H, d.Lq, d.Lk});
  reference::attention_weights(q.view(), k.view(), lse.view(), all.view(), 0, 0, options);
  for (int64_t n = 0; n < all.count(); ++n) all.set(n, std::log(all.get(n)));
  return all;
}

/// True where a pair is allowed.
inline std::vector<bool> allowed_pairs(const Case& c) {
  const Array<4> all = addends(c);
  std::vector<bool> allowed(all.count());
  for (size_t n = 0; n < allowed.size(); ++n) allowed[n] = std::isfinite(all.get(n));
  return allowed;
}

/// The naive algorithm: the whole score matrix, one softmax, plain sums. Arithmetic in float32; with 16-bit storage the
/// weights and score gradients pass through that type on their way into the next product, as results do on their way out.
class Naive {
 public:
  explicit Naive(const Case& c)
      : c_(c), d_(c.dims), q_(floats(c.q)), k_(floats(c.k)), v_(floats(c.v)), dout_(floats(c.dout)),
        addends_(addends(c)), scale_(static_cast<float>(c.scalars.scale.value_or(1 / std::sqrt(static_cast<double>(std::max<int64_t>(1, d_.D)))))) {}

  Results run(bool backward) {
    Results r = empty_results(c_, c_.dtype, backward);
    for (int64_t b = 0; b < d_.B; ++b)
      for (int64_t h = 0; h < d_.H; ++h)
        for (int64_t i = 0; i < d_.Lq; ++i) forward_row(r, b, h, i);
    if (backward) run_backward(r);
    return r;
  }

 private:
  struct Row {
    std::vector<float> weights, logits;  // logits before bias
    float sink_weight = 0, lse = 0;
  };

  static std::vector<float> floats(const Array<4>& array) {
    const std::vector<double> values = array.values();
    return {values.begin(), values.end()};
  }
  static float dot(const float* a, const float* b, int64_t count) {
    float sum = 0;
    for (int64_t n = 0; n < count; ++n) sum += a[n] * b[n];
    return sum;
  }
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
    Row row;
    float max = c_.sink.empty() ? -std::numeric_limits<float>::infinity() : c_.sink[h];
    for (int64_t j = 0; j < d_.Lk; ++j) {
      float s = dot(&q_[query(b, h, i) * d_.D], &k_[key(b, h, j) * d_.D], d_.D) * scale_;
      if (softcap > 0) s = softcap * std::tanh(s / softcap);
      row.logits.push_back(s);
      row.weights.push_back(s + static_cast<float>(addends_.get({b, h, i, j})));
      max = std::max(max, row.weights.back());
    }
    if (std::isinf(max)) {  // nothing is allowed
      row.weights.assign(row.weights.size(), 0);
      row.lse = max;
      return row;
    }
    float sum = row.sink_weight = c_.sink.empty() ? 0 : std::exp(c_.sink[h] - max);
    for (float& weight : row.weights) sum += weight = std::exp(weight - max);
    for (float& weight : row.weights) weight /= sum;
    row.sink_weight /= sum;
    row.lse = max + std::log(sum);
    return row;
  }

  void forward_row(Results& r, int64_t b, int64_t h, int64_t i) const {
    const Row row = softmax(b, h, i);
    r.lse.set(query(b, h, i), row.lse);
    std::vector<float> out(d_.Dv);
    for (int64_t j = 0; j < d_.Lk; ++j) {
      const float weight = stored(row.weights[j] * keep(b, h, i, j));
      for (int64_t n = 0; n < d_.Dv; ++n) out[n] += weight * v_[key(b, h, j) * d_.Dv + n];
    }
    for (int64_t n = 0; n < d_.Dv; ++n) r.out.set(query(b, h, i) * d_.Dv + n, out[n]);
  }

  void run_backward(Results& r) const {
    std::vector<float> dq(q_.size()), dk(k_.size()), dv(v_.size()), out = floats(r.out);
    std::vector<float> dbias(r.dbias.count()), dsink(d_.H);
    const auto softcap = static_cast<float>(c_.scalars.softcap);
    for (int64_t b = 0; b < d_.B; ++b)
      for (int64_t h = 0; h < d_.H; ++h)
        for (int64_t i = 0; i < d_.Lq; ++i) {
          const Row row = softmax(b, h, i);
          const int64_t at_q = query(b, h, i);
          const float delta = dot(&dout_[at_q * d_.Dv], &out[at_q * d_.Dv], d_.Dv);
          const auto dlse = static_cast<float>(c_.dlse.get(at_q));
          dsink[h] += row.sink_weight * (dlse - delta);
          for (int64_t j = 0; j < d_.Lk; ++j) {
            const int64_t at_k = key(b, h, j);
            const float weight = row.weights[j], kept = keep(b, h, i, j), kept_weight = stored(weight * kept);
            for (int64_t n = 0; n < d_.Dv; ++n) dv[at_k * d_.Dv + n] += kept_weight * dout_[at_q * d_.Dv + n];
            const float dp = kept * dot(&dout_[at_q * d_.Dv], &v_[at_k * d_.Dv], d_.Dv);
            float ds = weight * (dp - delta + dlse);
            if (!dbias.empty()) dbias[bias_index(b, h, i, j)] += ds;
            if (softcap > 0) ds *= 1 - row.logits[j] / softcap * (row.logits[j] / softcap);
            ds = stored(ds);
            for (int64_t n = 0; n < d_.D; ++n) dq[at_q * d_.D + n] += scale_ * ds * k_[at_k * d_.D + n];
            for (int64_t n = 0; n < d_.D; ++n) dk[at_k * d_.D + n] += scale_ * ds * q_[at_q * d_.D + n];
          }
        }
    copy(dq, r.dq);
    copy(dk, r.dk);
    copy(dv, r.dv);
    if (r.dbias.given()) copy(dbias, r.dbias);
    if (r.dsink.given()) copy(dsink, r.dsink);
  }

  int64_t bias_index(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const Shape<4>& size = c_.bias.size();
    const auto along = [&](size_t axis, int64_t index) { return size[axis] == 1 ? 0 : index; };
    return c_.bias.index({along(0, b), along(1, h), along(2, i), along(3, j)});
  }
  template <int Rank>
  static void copy(const std::vector<float>& from, Array<Rank>& to) {
    for (int64_t n = 0; n < to.count(); ++n) to.set(n, from[n]);
  }

  const Case& c_;
  const Dims d_;
  const std::vector<float> q_, k_, v_, dout_;
  const Array<4> addends_;
  const float scale_;
};

inline Results run_naive(const Case& c, bool backward = true) { return Naive(c).run(backward); }

}  // namespace attn::test
