#include "linear/chunk.h"

#include <algorithm>
#include <cmath>

#include "core/plain.h"

namespace attn::linear {

using kernels::Into;
using kernels::Triangle;

template <class T>
void load_state(const LinearProblem& p, const ConstView<4>& states, int64_t sequence, int64_t head,
                const Matrix<T>& to) {
  if (!states) {
    std::fill_n(to.data, p.Dk * to.row, T{0});
    return;
  }
  for (int64_t d = 0; d < p.Dk; d += kChunkTokens)
    UserRows(states, sequence, head, d, std::min(kChunkTokens, p.Dk - d)).load(to.from(d));
}

template <class T>
void store_state(const LinearProblem& p, const View<4>& states, int64_t sequence, int64_t head, const Matrix<T>& from) {
  if (!states) return;
  for (int64_t d = 0; d < p.Dk; d += kChunkTokens)
    UserRows(states, sequence, head, d, std::min(kChunkTokens, p.Dk - d)).store(from.from(d));
}

template <class T>
Matrix<T> Chunk<T>::take(Arena& arena, int64_t rows, int64_t columns) {
  const int64_t row = row_stride<T>(columns);
  return {arena.take<T>(rows * row * int64_t{sizeof(T)}), row};
}

template <class T>
Chunk<T>::Chunk(const LinearProblem& p, Arena& arena)
    : has_decay(static_cast<bool>(p.options->log_decay)),
      delta(p.options->delta),
      p_(p),
      kernels_(linear_kernels<T>()) {
  constexpr int64_t n = kChunkTokens;
  q = take(arena, n, p.Dk);
  k = take(arena, n, p.Dk);
  kt = take(arena, p.Dk, n + 64 / int64_t{sizeof(T)});  // transposition writes whole vectors
  qd = has_decay ? take(arena, n, p.Dk) : q;
  kd = has_decay ? take(arena, n, p.Dk) : k;
  ke = has_decay ? take(arena, n, p.Dk) : k;
  qk = take(arena, n, n);
  kk = take(arena, n, n);
  gamma = take(arena, n, n);
  w = p.decay_per_row ? take(arena, n, p.Dk) : Matrix<T>{};
  e = take(arena, n, p.columns);
  u = take(arena, n, p.columns);
  out = take(arena, n, p.columns);
  sub = take(arena, kSubTokens, p.Dk);
  for (T** row : {&decay, &prefix, &suffix, &beta, &q_factor, &k_factor, &inverse}) *row = take_row(arena, n);
  total = take_row(arena, p.Dk);
  sub_total = take_row(arena, p.Dk);
}

// ------------------------------------------------------------------------------------------------------------- loading

template <class T>
void Chunk<T>::load(const TokenRange& sequence, int64_t value_head, int64_t first) {
  const LinearAttentionOptions& o = *p_.options;
  count = std::min(kChunkTokens, sequence.count - first);
  batch = sequence.batch;
  token = sequence.first + first;
  head = value_head;
  load_features(p_.q, token, o.normalize ? 1 : p_.scale, q, q_factor);
  load_features(p_.k, token, 1, k, k_factor);
  UserRows(p_.v, batch, head, token, count).load(e);
  for (int64_t i = 0; i < count; ++i) {
    beta[i] = o.beta ? reference::at<T, 3>(o.beta, {batch, head, token + i}) : T{1};
    if (o.normalize) e[i][p_.Dv] = 1;
  }
  if (has_decay) load_decays(token);
}

template <class T>
void Chunk<T>::load_features(const ConstView<4>& x, int64_t first, double scale, const Matrix<T>& to, T* factor) {
  const LinearAttentionOptions& o = *p_.options;
  UserRows(x, batch, head / p_.group, first, count).load(to, o.l2norm ? 1 : scale);
  std::fill_n(factor, count, static_cast<T>(scale));
  if (!o.l2norm) return;
  kernels_.row_dots({to, to, factor, count, p_.Dk});
  for (int64_t i = 0; i < count; ++i)
    factor[i] = static_cast<T>(scale) / std::sqrt(factor[i] + static_cast<T>(o.l2norm_epsilon));
  scale_rows(to, factor, to, count, p_.Dk);
}

template <class T>
void Chunk<T>::load_decays(int64_t first) {
  const ConstView<4>& log_decay = p_.options->log_decay;
  if (p_.decay_per_row) {
    UserRows(log_decay, batch, head, first, count).load(w);
    for (int64_t i = 0; i < count; ++i) kernels_.exponentials(w[i], w[i], p_.Dk);
    return;
  }
  for (int64_t i = 0; i < count; ++i) decay[i] = reference::at<T, 4>(log_decay, {batch, head, first + i, 0});
  std::fill(decay + count, decay + kChunkTokens, T{0});
  kernels_.exponentials(decay, decay, kChunkTokens);
}

// ------------------------------------------------------------------------------------------------------------ products

template <class T>
void Chunk<T>::relate(bool with_queries) {
  if (p_.decay_per_row) return decay_by_row(with_queries);
  if (with_queries || delta) kernels_.transpose({k, kt, count, p_.Dk});
  if (with_queries) multiply(q, kt, qk, count, p_.Dk, count, Into::kSet, Triangle::kNone, true);
  if (delta) multiply(k, kt, kk, count, p_.Dk, count, Into::kSet, Triangle::kNone, true);
  if (has_decay) decay_by_token(with_queries);
}

template <class T>
void Chunk<T>::decay_by_token(bool with_queries) {
  T product = 1;
  for (int64_t i = 0; i < count; ++i) prefix[i] = product *= decay[i];
  std::fill_n(total, p_.Dk, product);
  product = 1;
  for (int64_t i = count; i-- > 0; product *= decay[i]) suffix[i] = product;
  scale_rows(k, suffix, ke, count, p_.Dk);
  if (with_queries || delta) kernels_.decays({decay, gamma, count});
  if (with_queries) {
    kernels_.elements({qk, gamma, qk, count, count, true, Into::kSet});
    scale_rows(q, prefix, qd, count, p_.Dk);
  }
  if (delta) {
    kernels_.elements({kk, gamma, kk, count, count, true, Into::kSet});
    scale_rows(k, prefix, kd, count, p_.Dk);
  }
}

/// Groups of tokens, each against the groups before it, whose keys in kt are decayed to its first token. In a group,
/// pair by pair.
template <class T>
void Chunk<T>::decay_by_row(bool with_queries) {
  const int64_t depth = p_.Dk;
  std::fill_n(total, depth, T{1});
  for (int64_t s = 0; s < count; s += kSubTokens) {
    const int64_t n = std::min(kSubTokens, count - s);
    kernels_.running({k.from(s), w.from(s), kd.from(s), sub_total, n, depth, false});
    if (with_queries) kernels_.running({q.from(s), w.from(s), qd.from(s), nullptr, n, depth, false});
    if (s > 0 && with_queries) multiply(qd.from(s), kt, qk.from(s), n, depth, s);
    if (s > 0 && delta) multiply(kd.from(s), kt, kk.from(s), n, depth, s);
    kernels_.pairs({q.from(s), k.from(s), w.from(s), with_queries ? qk.from(s, s) : Matrix<T>{},
                    delta ? kk.from(s, s) : Matrix<T>{}, n, depth});
    const Matrix<T> before{total, 0};
    multiply_elements(kd.from(s), before, kd.from(s), n, depth);
    if (with_queries) multiply_elements(qd.from(s), before, qd.from(s), n, depth);
    if (s > 0) scale_rows(kt, sub_total, kt, depth, s);
    kernels_.running({k.from(s), w.from(s), sub, nullptr, n, depth, true});
    kernels_.transpose({sub, kt.from(0, s), n, depth});
    multiply_elements(before, Matrix<T>{sub_total, 0}, before, 1, depth);
  }
}

template <class T>
void Chunk<T>::solve(const Matrix<T>& state) {
  if (!delta) return scale_rows(e, beta, u, count, p_.columns);
  multiply(kd, state, e, count, p_.Dk, p_.columns, Into::kSubtract);
  kernels_.solve({kk.data, kk.row, 1, beta, e, u, count, p_.columns, false});
}

template <class T>
void Chunk<T>::outputs(const Matrix<T>& state) {
  multiply(qk, u, out, count, count, p_.columns, Into::kSet, Triangle::kLower);
  multiply(qd, state, out, count, p_.Dk, p_.columns, Into::kAdd);
}

template <class T>
void Chunk<T>::normalize() {
  for (int64_t i = 0; i < count; ++i) inverse[i] = out[i][p_.Dv] == 0 ? T{0} : 1 / out[i][p_.Dv];
  scale_rows(out, inverse, out, count, p_.columns);
}

template <class T>
void Chunk<T>::advance(const Matrix<T>& state) {
  if (has_decay) scale_rows(state, total, state, p_.Dk, p_.columns);
  if (p_.decay_per_row) multiply(kt, u, state, p_.Dk, count, p_.columns, Into::kAdd);
  else multiply_transposed(ke, u, state, p_.Dk, count, p_.columns, Into::kAdd);
}

template class Chunk<float>;
template class Chunk<double>;
template void load_state(const LinearProblem&, const ConstView<4>&, int64_t, int64_t, const Matrix<float>&);
template void load_state(const LinearProblem&, const ConstView<4>&, int64_t, int64_t, const Matrix<double>&);
template void store_state(const LinearProblem&, const View<4>&, int64_t, int64_t, const Matrix<float>&);
template void store_state(const LinearProblem&, const View<4>&, int64_t, int64_t, const Matrix<double>&);

}  // namespace attn::linear
