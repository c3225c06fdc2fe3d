// The recurrence in float64, token by token, as plainly as it can be written: the oracle of the kernels.
//
//   forward    R = A_t S_{t-1}     e = v_t - [delta] R^T k_t     u = beta_t e     S_t = R + k_t u^T     o = S_t^T q_t
//   backward   from t = L to 1, with dS the gradient of S_t, which begins as that of the final state:
//              dS += q_t do^T       dq = S_t do
//              du = dS^T k_t        dk = dS u      dbeta = <du, e>      de = beta_t du      dv = de
//              delta: dk -= R de    dS -= k_t de^T
//              dlog A_t = sum over columns of dS R          dS = A_t dS
#include <cmath>
#include <vector>

#include "core/plain.h"
#include "linear/problem.h"

namespace attn::reference {
namespace {

using linear::along;
using linear::LinearProblem;
using linear::TokenRange;
using Vector = std::vector<double>;

/// Rows of q or k as they enter the recurrence, and the way back of their gradients.
class Features {
 public:
  Features(const ConstView<4>& x, const LinearAttentionOptions& options) : x_(read(x)), options_(options) {}

  Vector row(int64_t b, int64_t h, int64_t t) const {
    const int64_t n = x_.size()[3];
    const double* x = row_of(x_, b, h, t);
    Vector result(x, x + n);
    for (double& element : result) element *= factor(x, n);
    return result;
  }
  /// The gradient of x from that of the row.
  Vector gradient(int64_t b, int64_t h, int64_t t, const Vector& drow) const {
    const int64_t n = x_.size()[3];
    const double* x = row_of(x_, b, h, t);
    const double f = factor(x, n);
    Vector result(drow);
    for (double& element : result) element *= f;
    if (options_.l2norm) add_scaled(result.data(), -f * f * f * dot(x, drow.data(), n), x, n);
    return result;
  }

 private:
  double factor(const double* x, int64_t n) const {
    return options_.l2norm ? 1 / std::sqrt(dot(x, x, n) + options_.l2norm_epsilon) : 1;
  }
  Tensor<double, 4> x_;
  const LinearAttentionOptions& options_;
};

/// What a token does to the state.
struct Step {
  Vector q, k, decay, e;
  Vector u = {};
  double beta = 1;
  Vector before = {};  // R
};

/// The states of one head of one sequence.
class Recurrence {
 public:
  Recurrence(const LinearProblem& p, const Features& q, const Features& k, const Tensor<double, 4>& v)
      : p_(p), q_(q), k_(k), v_(v), state_(p.Dk * p.columns) {}

  void start(int64_t sequence, int64_t h) {
    sequence_ = p_.sequences[sequence];
    h_ = h;
    const ConstView<4>& initial = p_.options->initial_state;
    for (int64_t d = 0; d < p_.Dk; ++d)
      for (int64_t c = 0; c < p_.columns; ++c)
        state_[d * p_.columns + c] = initial ? at<double, 4>(initial, {sequence, h, d, c}) : 0;
  }
  Step step(int64_t n) {
    const LinearAttentionOptions& o = *p_.options;
    const int64_t b = sequence_.batch, t = sequence_.first + n, C = p_.columns;
    Step s{q_.row(b, h_ / p_.group, t), k_.row(b, h_ / p_.group, t), Vector(p_.Dk, 1.0), Vector(C, 1.0)};
    if (o.beta) s.beta = at<double, 3>(o.beta, {b, h_, t});
    for (int64_t d = 0; d < p_.Dk; ++d) {
      if (o.log_decay) s.decay[d] = std::exp(at<double, 4>(o.log_decay, {b, h_, t, d}));
      for (int64_t c = 0; c < C; ++c) state_[d * C + c] *= s.decay[d];
    }
    s.before = state_;
    std::copy_n(row_of(v_, b, h_, t), p_.Dv, s.e.begin());
    if (o.delta)
      for (int64_t d = 0; d < p_.Dk; ++d) add_scaled(s.e.data(), -s.k[d], &state_[d * C], C);
    s.u = s.e;
    for (double& element : s.u) element *= s.beta;
    for (int64_t d = 0; d < p_.Dk; ++d) add_scaled(&state_[d * C], s.k[d], s.u.data(), C);
    return s;
  }
  /// S^T q, before scale and normalisation.
  Vector read_out(const Vector& q) const {
    Vector sums(p_.columns);
    for (int64_t d = 0; d < p_.Dk; ++d) add_scaled(sums.data(), q[d], &state_[d * p_.columns], p_.columns);
    return sums;
  }
  const Vector& state() const { return state_; }
  void set_state(const Vector& state) { state_ = state; }

 private:
  const LinearProblem& p_;
  const Features &q_, &k_;
  const Tensor<double, 4>& v_;
  TokenRange sequence_{};
  int64_t h_ = 0;
  Vector state_;
};

/// What the output divides by: 1, or the sum of the weights.
double divisor(const LinearProblem& p, const Vector& sums) { return p.options->normalize ? sums[p.Dv] : 1; }

template <class Body>
void for_each_head(const LinearProblem& p, const Body& body) {
  for (size_t n = 0; n < p.sequences.size(); ++n)
    for (int64_t h = 0; h < p.Hv; ++h) body(static_cast<int64_t>(n), p.sequences[n], h);
}

double* state_of(Tensor<double, 4>& states, int64_t n, int64_t h) { return row_of(states, n, h, 0); }

}  // namespace

void linear_attention(ConstView<4> q, ConstView<4> k, ConstView<4> v, View<4> out,
                      const LinearAttentionOptions& options, View<4> final_state) {
  Checker checker("reference::linear_attention");
  const LinearProblem p = linear::make_problem(checker, q, k, v, options);
  linear::check_forward(checker, p, out, final_state, true);
  checker.done();
  const Features queries(q, options), keys(k, options);
  const Tensor<double, 4> values = read(v);
  Tensor<double, 4> outputs(v.size), states(p.states());
  Recurrence recurrence(p, queries, keys, values);
  for_each_head(p, [&](int64_t n, const TokenRange& s, int64_t h) {
    recurrence.start(n, h);
    for (int64_t t = 0; t < s.count; ++t) {
      const Vector sums = recurrence.read_out(recurrence.step(t).q);
      const double sum = divisor(p, sums);
      double* o = row_of(outputs, s.batch, h, s.first + t);
      for (int64_t c = 0; c < p.Dv; ++c) o[c] = sum == 0 ? 0 : (options.normalize ? 1 : p.scale) * sums[c] / sum;
    }
    std::copy(recurrence.state().begin(), recurrence.state().end(), state_of(states, n, h));
  });
  write(outputs, out);
  write(states, final_state);
}

void linear_attention_backward(ConstView<4> q, ConstView<4> k, ConstView<4> v, ConstView<4> dout,
                               const LinearAttentionGradients& gradients, const LinearAttentionOptions& options,
                               ConstView<4> dfinal_state) {
  Checker checker("reference::linear_attention_backward");
  const LinearProblem p = linear::make_problem(checker, q, k, v, options);
  linear::check_backward(checker, p, dout, gradients, dfinal_state);
  checker.done();
  const int64_t C = p.columns;
  const Features queries(q, options), keys(k, options);
  const Tensor<double, 4> values = read(v), douts = read(dout), dfinals = read(dfinal_state);
  Tensor<double, 4> dq(q.size), dk(q.size), dv(v.size), ddecay(options.log_decay.size), dinitial(p.states());
  Tensor<double, 3> dbeta({p.B, p.Hv, p.L});
  Recurrence recurrence(p, queries, keys, values);
  for_each_head(p, [&](int64_t n, const TokenRange& s, int64_t h) {
    recurrence.start(n, h);
    std::vector<Step> steps;
    std::vector<Vector> states;
    for (int64_t t = 0; t < s.count; ++t) {
      steps.push_back(recurrence.step(t));
      states.push_back(recurrence.state());
    }
    Vector dS(p.Dk * C);
    if (dfinal_state) std::copy_n(row_of(dfinals, n, h, 0), p.Dk * C, dS.begin());
    for (int64_t t = s.count; t-- > 0;) {
      const Step& step = steps[t];
      const int64_t b = s.batch, i = s.first + t;
      recurrence.set_state(states[t]);
      const Vector sums = recurrence.read_out(step.q);
      const double sum = divisor(p, sums);
      Vector dsums(C), du(C), dq_row(p.Dk), dk_row(p.Dk);
      for (int64_t c = 0; c < p.Dv && sum != 0; ++c) {
        const double dnumber = (options.normalize ? 1 : p.scale) * row_of(douts, b, h, i)[c] / sum;
        dsums[c] += dnumber;
        if (options.normalize) dsums[p.Dv] -= dnumber * sums[c] / sum;
      }
      for (int64_t d = 0; d < p.Dk; ++d) {
        add_scaled(&dS[d * C], step.q[d], dsums.data(), C);
        dq_row[d] = dot(&states[t][d * C], dsums.data(), C);
        add_scaled(du.data(), step.k[d], &dS[d * C], C);
        dk_row[d] = dot(&dS[d * C], step.u.data(), C);
      }
      dbeta.data()[(b * p.Hv + h) * p.L + i] = dot(du.data(), step.e.data(), C);
      Vector de(du);
      for (double& element : de) element *= step.beta;
      std::copy_n(de.begin(), p.Dv, row_of(dv, b, h, i));
      for (int64_t d = 0; d < p.Dk; ++d) {
        if (options.delta) {
          dk_row[d] -= dot(&step.before[d * C], de.data(), C);
          add_scaled(&dS[d * C], -step.k[d], de.data(), C);
        }
        if (options.log_decay) {
          const Shape<4>& size = options.log_decay.size;
          row_of(ddecay, along(size[0], b), along(size[1], h), along(size[2], i))[along(size[3], d)] +=
              dot(&dS[d * C], &step.before[d * C], C);
        }
        for (int64_t c = 0; c < C; ++c) dS[d * C + c] *= step.decay[d];
      }
      const int64_t key_head = h / p.group;
      add_scaled(row_of(dq, b, key_head, i), 1, queries.gradient(b, key_head, i, dq_row).data(), p.Dk);
      add_scaled(row_of(dk, b, key_head, i), 1, keys.gradient(b, key_head, i, dk_row).data(), p.Dk);
    }
    std::copy(dS.begin(), dS.end(), state_of(dinitial, n, h));
  });
  write(dq, gradients.dq);
  write(dk, gradients.dk);
  write(dv, gradients.dv);
  write(ddecay, gradients.dlog_decay);
  write(dbeta, gradients.dbeta);
  write(dinitial, gradients.dinitial_state);
}

}  // namespace attn::reference
