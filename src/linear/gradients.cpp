#include "linear/gradients.h"

#include <algorithm>
#include <numeric>

namespace attn::linear {

using kernels::Into;
using kernels::Triangle;

namespace {

template <class T>
Matrix<T> take(Arena& arena, int64_t rows, int64_t columns) {
  const int64_t row = row_stride<T>(columns);
  return {arena.take<T>(rows * row * int64_t{sizeof(T)}), row};
}

template <class T>
Matrix<T> one_row(T* data) {
  return {data, 0};
}

}  // namespace

template <class T>
ChunkGradients<T>::ChunkGradients(const LinearProblem& p, Arena& arena, bool with_decay)
    : p_(p), kernels_(linear_kernels<T>()), with_decay_(with_decay) {
  constexpr int64_t n = kChunkTokens, whole = 64 / int64_t{sizeof(T)};  // transposition writes whole vectors
  dq = take<T>(arena, n, p.Dk);
  dk = take<T>(arena, n, p.Dk);
  dkey_ = take<T>(arena, n, p.Dk);
  r = take<T>(arena, n, p.columns);
  t_ = take<T>(arena, n, p.columns);
  dout_ = take<T>(arena, n, p.columns);
  ut_ = take<T>(arena, p.columns, n + whole);
  transposed_ = take<T>(arena, p.columns, p.Dk + whole);
  dqk_ = take<T>(arena, n, n);
  dkk_ = take<T>(arena, n, n);
  ddecay = take<T>(arena, n, p.Dk);
  dlast_ = take<T>(arena, 1, p.Dk);
  if (p.decay_per_row) {
    keys_ = take<T>(arena, n, p.Dk);
    group_ = take<T>(arena, 3 * kSubTokens, p.Dk);
    before_ = take<T>(arena, n / kSubTokens + 1, p.Dk).data;
  }
  for (T** row : {&dbeta, &dots_, &shares_}) *row = take<T>(arena, 1, std::max(n, p.Dk)).data;
}

template <class T>
void ChunkGradients<T>::load(const Chunk<T>& c, const ConstView<4>& dout) {
  UserRows(dout, c.batch, c.head, c.token, c.count).load(dout_);
  if (!p_.options->normalize) return;
  // The last column of a sum takes its gradient through the quotient.
  kernels_.row_dots({dout_, c.out, dots_, c.count, p_.Dv});
  scale_rows(dout_, c.inverse, dout_, c.count, p_.columns);
  for (int64_t i = 0; i < c.count; ++i) dout_[i][p_.Dv] = -dots_[i] * c.inverse[i];
}

template <class T>
void ChunkGradients<T>::compute(const Chunk<T>& c, const Matrix<T>& state, const Matrix<T>& state_after,
                                const Matrix<T>& dstate) {
  solve(c, dstate);
  kernels_.row_dots({t_, c.e, dbeta, c.count, p_.columns});
  if (with_decay_) kernels_.row_dots({dstate, state_after, dlast_.data, p_.Dk, p_.columns});
  relate(c, state, dstate);
  if (p_.decay_per_row) by_row(c);
  else without_row_decay(c);
  if (with_decay_) logarithms(c);
  retreat(c, dstate);
}

template <class T>
void ChunkGradients<T>::solve(const Chunk<T>& c, const Matrix<T>& dstate) {
  multiply_transposed(c.qk, dout_, t_, c.count, c.count, p_.columns, Into::kSet, Triangle::kUpper);
  if (p_.decay_per_row) multiply_transposed(c.kt, dstate, t_, c.count, p_.Dk, p_.columns, Into::kAdd);
  else multiply(c.ke, dstate, t_, c.count, p_.Dk, p_.columns, Into::kAdd);
  if (c.delta) kernels_.solve({c.kk.data, 1, c.kk.row, c.beta, t_, r, c.count, p_.columns, true});
  else scale_rows(t_, c.beta, r, c.count, p_.columns);
}

/// dqk, dkk, and dqd, dkd and dke, which are in dq, dk and dkey.
template <class T>
void ChunkGradients<T>::relate(const Chunk<T>& c, const Matrix<T>& state, const Matrix<T>& dstate) {
  const int64_t n = c.count, depth = p_.Dk, columns = p_.columns;
  kernels_.transpose({c.u, ut_, n, columns});
  multiply(dout_, ut_, dqk_, n, columns, n, Into::kSet, Triangle::kNone, true);
  kernels_.transpose({state, transposed_, depth, columns});
  multiply(dout_, transposed_, dq, n, columns, depth);
  for (int64_t i = 0; i < n; ++i) std::fill_n(dk[i], dk.row, T{0});
  if (c.delta) {
    for (int64_t i = 0; i < n; ++i) std::fill_n(dkk_[i], dkk_.row, T{0});
    multiply(r, ut_, dkk_, n, columns, n, Into::kSubtract, Triangle::kNone, true);
    for (int64_t i = 0; i < n; ++i) dkk_[i][i] = 0;
    multiply(r, transposed_, dk, n, columns, depth, Into::kSubtract);
  }
  kernels_.transpose({dstate, transposed_, depth, columns});
  multiply(c.u, transposed_, dkey_, n, columns, depth);
}

template <class T>
void ChunkGradients<T>::without_row_decay(const Chunk<T>& c) {
  const int64_t n = c.count, depth = p_.Dk;
  if (c.has_decay) {
    scale_rows(dq, c.prefix, dq, n, depth);
    scale_rows(dkey_, c.suffix, dkey_, n, depth);
    kernels_.elements({dqk_, c.gamma, dqk_, n, n, true, Into::kSet});
    if (c.delta) {
      scale_rows(dk, c.prefix, dk, n, depth);
      kernels_.elements({dkk_, c.gamma, dkk_, n, n, true, Into::kSet});
    }
  }
  multiply(dqk_, c.k, dq, n, n, depth, Into::kAdd, Triangle::kLower);
  multiply_transposed(dqk_, c.q, dkey_, n, n, depth, Into::kAdd, Triangle::kUpper);
  if (!c.delta) return;
  multiply(dkk_, c.k, dk, n, n, depth, Into::kAdd, Triangle::kLower);
  multiply_transposed(dkk_, c.k, dkey_, n, n, depth, Into::kAdd, Triangle::kUpper);
}

/// Groups of tokens as in Chunk::decay_by_row(), forward for dq and dk, whose keys are decayed to a group's first token
/// on the way, and backward for dkey, which is decayed in the same steps.
template <class T>
void ChunkGradients<T>::by_row(const Chunk<T>& c) {
  const int64_t depth = p_.Dk, groups = (c.count + kSubTokens - 1) / kSubTokens;
  const Matrix<T> before{before_, row_stride<T>(depth)};
  std::fill_n(before[0], depth, T{1});
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t s = g * kSubTokens, n = std::min(kSubTokens, c.count - s);
    const Matrix<T> total{c.sub_total, 0};
    multiply_elements(dq.from(s), one_row(before[g]), dq.from(s), n, depth);
    multiply_elements(dk.from(s), one_row(before[g]), dk.from(s), n, depth);
    if (s > 0) multiply(dqk_.from(s), keys_, dq.from(s), n, s, depth, Into::kAdd);
    if (s > 0 && c.delta) multiply(dkk_.from(s), keys_, dk.from(s), n, s, depth, Into::kAdd);
    kernels_.running({c.k.from(s), c.w.from(s), keys_.from(s), c.sub_total, n, depth, true});
    if (s > 0) multiply_elements(keys_, total, keys_, s, depth);
    multiply_elements(one_row(before[g]), total, before.from(g + 1), 1, depth);
  }
  for (int64_t g = groups; g-- > 0;) group_by_row(c, g * kSubTokens, std::min(kSubTokens, c.count - g * kSubTokens));
}

/// dkey of the tokens before the group, relative to its first one, then all that is inside of it.
template <class T>
void ChunkGradients<T>::group_by_row(const Chunk<T>& c, int64_t s, int64_t n) {
  const int64_t depth = p_.Dk;
  const Matrix<T> queries = group_, keys = group_.from(kSubTokens), inside = group_.from(2 * kSubTokens);
  kernels_.running({c.q.from(s), c.w.from(s), queries, c.sub_total, n, depth, false});
  kernels_.running({c.k.from(s), c.w.from(s), keys, nullptr, n, depth, false});
  kernels_.running({dkey_.from(s), c.w.from(s), inside, nullptr, n, depth, true});
  for (int64_t i = 0; i < n; ++i) std::copy_n(inside[i], depth, dkey_[s + i]);
  if (s > 0) {
    multiply_elements(dkey_, one_row(c.sub_total), dkey_, s, depth);
    multiply_transposed(dqk_.from(s), queries, dkey_, s, n, depth, Into::kAdd);
    if (c.delta) multiply_transposed(dkk_.from(s), keys, dkey_, s, n, depth, Into::kAdd);
  }
  kernels_.running({dq.from(s), c.w.from(s), dq.from(s), nullptr, n, depth, false});
  kernels_.running({dk.from(s), c.w.from(s), dk.from(s), nullptr, n, depth, false});
  kernels_.pairs_grad({c.q.from(s), c.k.from(s), c.w.from(s), dqk_.from(s, s), c.delta ? dkk_.from(s, s) : Matrix<T>{},
                       dq.from(s), dk.from(s), dkey_.from(s), n, depth});
}

/// ddecay_t: the sum over tokens from t on of <q, dq> + <k, dk - dkey>, and of the state after the chunk.
template <class T>
void ChunkGradients<T>::logarithms(const Chunk<T>& c) {
  const int64_t n = c.count, depth = p_.Dk;
  multiply_elements(c.q, dq, ddecay, n, depth);
  multiply_elements(c.k, dk, ddecay, n, depth, Into::kAdd);
  multiply_elements(c.k, dkey_, ddecay, n, depth, Into::kSubtract);
  if (p_.decay_per_row) {
    const T* later = dlast_.data;
    for (int64_t i = n; i-- > 0; later = ddecay[i])
      for (int64_t d = 0; d < depth; ++d) ddecay[i][d] += later[d];
    return;
  }
  const auto sum = [&](const T* row) { return std::accumulate(row, row + depth, T{0}); };
  T later = sum(dlast_.data);
  for (int64_t i = n; i-- > 0;) ddecay[i][0] = later += sum(ddecay[i]);
}

/// dk takes what k gets as a key, and dstate becomes the gradient of the state before the chunk.
template <class T>
void ChunkGradients<T>::retreat(const Chunk<T>& c, const Matrix<T>& dstate) {
  const int64_t n = c.count, depth = p_.Dk;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t d = 0; d < depth; ++d) dk[i][d] += dkey_[i][d];
  if (c.has_decay) scale_rows(dstate, c.total, dstate, depth, p_.columns);
  multiply_transposed(c.qd, dout_, dstate, depth, n, p_.columns, Into::kAdd);
  if (c.delta) multiply_transposed(c.kd, r, dstate, depth, n, p_.columns, Into::kSubtract);
}

template class ChunkGradients<float>;
template class ChunkGradients<double>;

}  // namespace attn::linear
