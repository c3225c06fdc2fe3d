// One call of linear_attention(): its arguments, its results by the kernels, by the float64 reference, and by plain
// loops in the arithmetic of the kernels, whose error is the measure of theirs.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "attn/linear_attention.h"
#include "support/arrays.h"
#include "support/tolerance.h"

namespace attn::test {

enum class Decay { none, head, token, row };

struct LinearDims {
  int64_t B = 1, H = 1, Hv = 1, L = 1, Dk = 1, Dv = 1;
};

struct LinearCase {
  LinearDims dims;
  DType dtype = DType::float32;
  bool delta = false, beta = true, l2norm = false, normalize = false, initial = true;
  Decay decay = Decay::token;
  std::vector<int64_t> cu_seqlens = {};
  double slowest = 0.0, fastest = 1.0;  // range of -log_decay

  Array<4> q = {}, k = {}, v = {}, dout = {}, log_decay = {}, initial_state = {}, dfinal_state = {};
  Array<3> beta_values = {};

  std::string name() const {
    const char* decays[] = {"no decay", "a decay a head", "a decay a token", "a decay a row"};
    return "[" + std::to_string(dims.B) + ", " + std::to_string(dims.H) + "/" + std::to_string(dims.Hv) + ", " +
           std::to_string(dims.L) + ", " + std::to_string(dims.Dk) + "/" + std::to_string(dims.Dv) + "] " +
           std::string(name_of(dtype)) + ", " + decays[static_cast<int>(decay)] + (delta ? ", delta" : "") +
           (beta ? ", beta" : "") + (l2norm ? ", l2norm" : "") + (normalize ? ", normalize" : "") +
           (initial ? ", initial" : "") + (cu_seqlens.empty() ? "" : ", packed");
  }

  int64_t sequences() const { return cu_seqlens.empty() ? dims.B : static_cast<int64_t>(cu_seqlens.size()) - 1; }
  int64_t columns() const { return dims.Dv + normalize; }
  DType state_type() const { return dtype == DType::float64 ? DType::float64 : DType::float32; }
  Shape<4> state_size() const { return {sequences(), dims.Hv, dims.Dk, columns()}; }

  /// Draws all arguments. q and k of a normalised call are positive; keys of the delta rule have norms of about 1.
  LinearCase& draw(uint64_t seed) {
    Random random(seed);
    const auto [B, H, Hv, L, Dk, Dv] = dims;
    const double length = delta && !l2norm ? 1 / std::sqrt(static_cast<double>(std::max<int64_t>(Dk, 1))) : 1;
    q = Array<4>(dtype, {B, H, L, Dk}).fill_normal(random);
    k = Array<4>(dtype, {B, H, L, Dk}).fill_normal(random, length);
    v = Array<4>(dtype, {B, Hv, L, Dv}).fill_normal(random);
    dout = Array<4>(dtype, {B, Hv, L, Dv}).fill_normal(random);
    if (normalize)
      for (Array<4>* x : {&q, &k})
        for (int64_t n = 0; n < x->count(); ++n) x->set(n, std::abs(x->get(n)) + 0.1);
    if (decay != Decay::none)
      log_decay = Array<4>(
          state_type(), {decay == Decay::head ? 1 : B, Hv, decay == Decay::head ? 1 : L, decay == Decay::row ? Dk : 1});
    for (int64_t n = 0; n < log_decay.count() && log_decay.given(); ++n)
      log_decay.set(n, -slowest - (fastest - slowest) * random.uniform());
    if (beta) beta_values = Array<3>(dtype, {B, Hv, L});
    for (int64_t n = 0; n < B * Hv * L && beta; ++n) beta_values.set(n, random.uniform());
    if (initial) initial_state = Array<4>(state_type(), state_size()).fill_normal(random);
    for (int64_t n = 0; normalize && initial && n < initial_state.count(); ++n)
      initial_state.set(n, std::abs(initial_state.get(n)));
    dfinal_state = Array<4>(state_type(), state_size()).fill_normal(random);
    return *this;
  }

  LinearAttentionOptions options() const {
    LinearAttentionOptions o;
    if (log_decay.given()) o.log_decay = log_decay.view();
    if (beta) o.beta = beta_values.view();
    o.delta = delta;
    o.l2norm = l2norm;
    o.normalize = normalize;
    if (initial) o.initial_state = initial_state.view();
    o.cu_seqlens = cu_seqlens;
    return o;
  }
};

/// All results of a call, in an order that the names give.
struct LinearResults {
  Array<4> out, final_state, dq, dk, dv, dlog_decay, dinitial_state;
  Array<3> dbeta;

  static constexpr const char* names[] = {"out", "final_state", "dq",    "dk",
                                          "dv",  "dlog_decay",  "dbeta", "dinitial_state"};
  std::vector<Values> values() const {
    return {out.values(), final_state.values(), dq.values(),    dk.values(),
            dv.values(),  dlog_decay.values(),  dbeta.values(), dinitial_state.values()};
  }
  bool same_bits_as(const LinearResults& other) const {
    return same_bits(out, other.out) && same_bits(final_state, other.final_state) && same_bits(dq, other.dq) &&
           same_bits(dk, other.dk) && same_bits(dv, other.dv) && same_bits(dlog_decay, other.dlog_decay) &&
           same_bits(dbeta, other.dbeta) && same_bits(dinitial_state, other.dinitial_state);
  }
};

/// Forward and backward by these two functions, which write results of this type.
template <class Forward, class Backward>
LinearResults run_linear(const LinearCase& c, DType dtype, DType state, const Forward& forward,
                         const Backward& backward) {
  const auto like = [](const auto& x, DType type) { return std::decay_t<decltype(x)>(type, x.size()).fill_with_nan(); };
  LinearResults r{like(c.v, dtype),
                  like(c.dfinal_state, state),
                  like(c.q, dtype),
                  like(c.k, dtype),
                  like(c.v, dtype),
                  {},
                  like(c.dfinal_state, state),
                  {}};
  if (c.log_decay.given()) r.dlog_decay = like(c.log_decay, state);
  if (c.beta) r.dbeta = like(c.beta_values, dtype);
  forward(c.q.view(), c.k.view(), c.v.view(), r.out.view(), c.options(), r.final_state.view());
  LinearAttentionGradients g{.dq = r.dq.view(), .dk = r.dk.view(), .dv = r.dv.view()};
  g.dinitial_state = r.dinitial_state.view();
  if (c.log_decay.given()) g.dlog_decay = r.dlog_decay.view();
  if (c.beta) g.dbeta = r.dbeta.view();
  backward(c.q.view(), c.k.view(), c.v.view(), c.dout.view(), g, c.options(), c.dfinal_state.view());
  return r;
}

inline LinearResults run_kernels(const LinearCase& c) {
  return run_linear(
      c, c.dtype, c.state_type(), [](auto&&... a) { attn::linear_attention(a...); },
      [](auto&&... a) { attn::linear_attention_backward(a...); });
}
inline LinearResults run_reference(const LinearCase& c) {
  return run_linear(
      c, DType::float64, DType::float64, [](auto&&... a) { attn::reference::linear_attention(a...); },
      [](auto&&... a) { attn::reference::linear_attention_backward(a...); });
}

/// The recurrence and its gradients in T, token by token, every number rounded to T.
template <class T>
class NaiveLinear {
 public:
  explicit NaiveLinear(const LinearCase& c)
      : c_(c),
        magnitude_(c.log_decay.given() ? c.log_decay.count() : 0),
        S_(c.dims.Dk * c.columns()),
        out_(c.v.count()),
        dq_(c.q.count()),
        dk_(c.k.count()),
        dv_(c.v.count()),
        ddecay_(c.log_decay.given() ? c.log_decay.count() : 0),
        dbeta_(c.beta ? c.beta_values.count() : 0),
        final_(c.dfinal_state.count()),
        dinitial_(c.dfinal_state.count()) {
    for (int64_t n = 0; n < c.sequences(); ++n)
      for (int64_t h = 0; h < c.dims.Hv; ++h) run(n, h);
  }
  std::vector<Values> values() const {
    std::vector<Values> all;
    for (const std::vector<T>* x : {&out_, &final_, &dq_, &dk_, &dv_, &ddecay_, &dbeta_, &dinitial_})
      all.emplace_back(x->begin(), x->end());
    return all;
  }
  /// The largest sum of magnitudes in a gradient of log_decay, which is a sum of many products of either sign: of the
  /// gradient of the state and the state, or, as the kernels have it, of q and dq and of k and dk.
  double decay_magnitude() const { return max_abs(magnitude_); }

 private:
  using Row = std::vector<T>;
  struct Token {
    Row q, k, a, e, u, before, after;
    T beta;
  };

  T factor(const Array<4>& x, int64_t row) const {
    if (!c_.l2norm) return 1;
    T sum = 0;
    for (int64_t d = 0; d < c_.dims.Dk; ++d) sum += static_cast<T>(x.get(row + d) * x.get(row + d));
    return 1 / std::sqrt(sum + T{1e-6f});
  }
  int64_t decay_index(int64_t b, int64_t h, int64_t t, int64_t d) const {
    const Shape<4>& s = c_.log_decay.size();
    return c_.log_decay.index({s[0] == 1 ? 0 : b, h, s[2] == 1 ? 0 : t, s[3] == 1 ? 0 : d});
  }

  void run(int64_t n, int64_t h) {
    const auto [B, H, Hv, L, Dk, Dv] = c_.dims;
    const int64_t C = c_.columns(), b = c_.cu_seqlens.empty() ? n : 0;
    const int64_t first = c_.cu_seqlens.empty() ? 0 : c_.cu_seqlens[n];
    const int64_t count = c_.cu_seqlens.empty() ? L : c_.cu_seqlens[n + 1] - first;
    const int64_t state = (n * Hv + h) * Dk * C, kh = h / (Hv / H);
    const T scale = c_.normalize ? T{1} : 1 / std::sqrt(static_cast<T>(Dk));
    for (int64_t i = 0; i < Dk * C; ++i) S_[i] = c_.initial ? static_cast<T>(c_.initial_state.get(state + i)) : T{0};
    std::vector<Token> tokens;
    for (int64_t t = first; t < first + count; ++t) {
      const int64_t x = ((b * H + kh) * L + t) * Dk, y = ((b * Hv + h) * L + t) * Dv;
      Token k{Row(Dk), Row(Dk), Row(Dk, 1), Row(C, 1), Row(C), {}, {}, 1};
      const T fq = factor(c_.q, x) * scale, fk = factor(c_.k, x);
      for (int64_t d = 0; d < Dk; ++d) {
        k.q[d] = static_cast<T>(c_.q.get(x + d)) * fq;
        k.k[d] = static_cast<T>(c_.k.get(x + d)) * fk;
        if (c_.log_decay.given()) k.a[d] = std::exp(static_cast<T>(c_.log_decay.get(decay_index(b, h, t, d))));
        for (int64_t j = 0; j < C; ++j) S_[d * C + j] *= k.a[d];
      }
      k.before = S_;
      if (c_.beta) k.beta = static_cast<T>(c_.beta_values.get((b * Hv + h) * L + t));
      for (int64_t j = 0; j < C; ++j) {
        if (j < Dv) k.e[j] = static_cast<T>(c_.v.get(y + j));
        T returned = 0;
        for (int64_t d = 0; d < Dk && c_.delta; ++d) returned += S_[d * C + j] * k.k[d];
        k.e[j] -= returned;
        k.u[j] = k.beta * k.e[j];
        for (int64_t d = 0; d < Dk; ++d) S_[d * C + j] += k.k[d] * k.u[j];
      }
      k.after = S_;
      const Row sums = read_out(k);
      for (int64_t j = 0; j < Dv; ++j) out_[y + j] = c_.normalize ? sums[j] / sums[Dv] : sums[j];
      tokens.push_back(k);
    }
    for (int64_t i = 0; i < Dk * C; ++i) final_[state + i] = S_[i];
    back(tokens, n, h, b, first);
  }

  Row read_out(const Token& k) const {
    const int64_t C = c_.columns();
    Row sums(C);
    for (int64_t d = 0; d < c_.dims.Dk; ++d)
      for (int64_t j = 0; j < C; ++j) sums[j] += k.after[d * C + j] * k.q[d];
    return sums;
  }

  void back(const std::vector<Token>& tokens, int64_t n, int64_t h, int64_t b, int64_t first) {
    const auto [B, H, Hv, L, Dk, Dv] = c_.dims;
    const int64_t C = c_.columns(), state = (n * Hv + h) * Dk * C, kh = h / (Hv / H);
    const T scale = c_.normalize ? T{1} : 1 / std::sqrt(static_cast<T>(Dk));
    Row dS(Dk * C);
    for (int64_t i = 0; i < Dk * C; ++i) dS[i] = static_cast<T>(c_.dfinal_state.get(state + i));
    for (int64_t t = first + static_cast<int64_t>(tokens.size()); t-- > first;) {
      const Token& k = tokens[t - first];
      const int64_t x = ((b * H + kh) * L + t) * Dk, y = ((b * Hv + h) * L + t) * Dv;
      const Row sums = read_out(k);
      Row dsum(C), du(C), dq(Dk), dk(Dk);
      for (int64_t j = 0; j < Dv; ++j) {
        const T g = static_cast<T>(c_.dout.get(y + j));
        dsum[j] = c_.normalize ? g / sums[Dv] : g;
        if (c_.normalize) dsum[Dv] -= g * sums[j] / (sums[Dv] * sums[Dv]);
      }
      for (int64_t d = 0; d < Dk; ++d)
        for (int64_t j = 0; j < C; ++j) {
          T& ds = dS[d * C + j];
          ds += k.q[d] * dsum[j];
          dq[d] += k.after[d * C + j] * dsum[j];
          du[j] += ds * k.k[d];
          dk[d] += ds * k.u[j];
        }
      for (int64_t j = 0; j < C; ++j) {
        if (c_.beta) dbeta_[(b * Hv + h) * L + t] += du[j] * k.e[j];
        if (j < Dv) dv_[y + j] = k.beta * du[j];
      }
      for (int64_t d = 0; d < Dk; ++d)
        for (int64_t j = 0; j < C; ++j) {
          T& ds = dS[d * C + j];
          if (c_.delta) {
            dk[d] -= k.before[d * C + j] * k.beta * du[j];
            ds -= k.k[d] * k.beta * du[j];
          }
          if (c_.log_decay.given()) {
            ddecay_[decay_index(b, h, t, d)] += ds * k.before[d * C + j];
            magnitude_[decay_index(b, h, t, d)] += static_cast<double>(std::abs(ds * k.before[d * C + j]));
          }
          ds *= k.a[d];
        }
      for (int64_t d = 0; d < Dk && c_.log_decay.given(); ++d)
        magnitude_[decay_index(b, h, t, d)] += static_cast<double>(std::abs(k.q[d] * dq[d]) + std::abs(k.k[d] * dk[d]));
      add_through_norm(c_.q, x, k.q, dq, scale, dq_);
      add_through_norm(c_.k, x, k.k, dk, 1, dk_);
    }
    for (int64_t i = 0; i < Dk * C; ++i) dinitial_[state + i] = dS[i];
  }

  void add_through_norm(const Array<4>& from, int64_t row, const Row& x, const Row& dx, T scale, Row& sum) {
    const T f = factor(from, row) * scale;
    T product = 0;
    for (int64_t d = 0; d < c_.dims.Dk; ++d) product += x[d] * dx[d];
    for (int64_t d = 0; d < c_.dims.Dk; ++d)
      sum[row + d] += f * (dx[d] - (c_.l2norm ? x[d] * product / (scale * scale) : 0));
  }

  const LinearCase& c_;
  Values magnitude_;
  Row S_, out_, dq_, dk_, dv_, ddecay_, dbeta_, final_, dinitial_;
};

}  // namespace attn::test
