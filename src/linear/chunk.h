// A chunk of up to 64 tokens of one value head, in scratch: all its work is products of small matrices.
//
// With P_i the product of the decays from the chunk's first token to token i, and E_ij that from token j + 1 to i:
//   qk_ij = sum_d q_id k_jd E_ijd  (j <= i)     kk_ij the same with k_i  (j < i)
//   e = v - [delta] (kd S + kk u)     u = beta e     kd_i = k_i P_i
//   out = qk u + qd S                                qd_i = q_i P_i
//   S becomes P_last S + ke^T u                      ke_j = k_j E_last,j
// The rows of e are final one after the other: a triangular solve. Every E is a product of decays, all at most 1.
#pragma once

#include <cstdint>

#include "core/scratch.h"
#include "linear/problem.h"
#include "linear/rows.h"

namespace attn::linear {

constexpr int64_t kSubTokens = kernels::kMostPairRows;  // tokens whose decays by row are multiplied pair by pair

/// The state of one head: Dk rows of `columns`.
template <class T>
Matrix<T> take_state(const LinearProblem& p, Arena& arena) {
  const int64_t row = row_stride<T>(p.columns);
  return {arena.take<T>(p.Dk * row * int64_t{sizeof(T)}), row};
}
template <class T>
void load_state(const LinearProblem& p, const ConstView<4>& states, int64_t sequence, int64_t head,
                const Matrix<T>& to);
template <class T>
void store_state(const LinearProblem& p, const View<4>& states, int64_t sequence, int64_t head, const Matrix<T>& from);

template <class T>
class Chunk {
 public:
  /// Takes the memory of the matrices from `arena`.
  Chunk(const LinearProblem& problem, Arena& arena);

  /// Loads the tokens from `first` on, at most kChunkTokens, of a head of a sequence.
  void load(const TokenRange& sequence, int64_t head, int64_t first);
  /// Computes kk, kd and ke and, if wanted, qk and qd.
  void relate(bool with_queries);
  /// Computes e and u from the state before the chunk.
  void solve(const Matrix<T>& state);
  /// out = qk u + qd S, before normalisation.
  void outputs(const Matrix<T>& state);
  /// Divides rows of `out` by their last column, the sum of the weights, and keeps 1 / sum in `inverse`.
  void normalize();
  /// Turns the state before the chunk into that after it.
  void advance(const Matrix<T>& state);

  int64_t count = 0;  // tokens
  int64_t batch = 0, token = 0, head = 0;
  bool has_decay, delta;
  Matrix<T> q, k, kt;          // rows as they enter the recurrence; kt is k^T, with decays by row ke^T
  Matrix<T> qd, kd, ke;        // q and k themselves without decay; ke is unused with decays by row
  Matrix<T> qk, kk, gamma;     // gamma: E without decays by row
  Matrix<T> w;                 // decays by row
  Matrix<T> e, u, out, sub;    // sub: kSubTokens rows
  T *decay, *prefix, *suffix;  // [kChunkTokens]: E_ii-1, P_i, E_last,j of a decay a token
  T* beta;                     // [kChunkTokens]
  T *q_factor, *k_factor;      // [kChunkTokens]: what q and k were multiplied by
  T *total, *sub_total;        // [Dk]: P_last, and the same of kSubTokens rows
  T* inverse;                  // [kChunkTokens]

 private:
  void load_features(const ConstView<4>& x, int64_t first, double scale, const Matrix<T>& to, T* factor);
  void load_decays(int64_t first);
  void decay_by_token(bool with_queries);
  void decay_by_row(bool with_queries);
  Matrix<T> take(Arena& arena, int64_t rows, int64_t columns);
  T* take_row(Arena& arena, int64_t columns) { return take(arena, 1, columns).data; }

  const LinearProblem& p_;
  const kernels::LinearKernels& kernels_;
};

/// What Chunk says about its products, for a few more of them.
template <class T>
void multiply(const Matrix<T>& a, const Matrix<T>& x, const Matrix<T>& c, int64_t rows, int64_t steps, int64_t columns,
              kernels::Into into = kernels::Into::kSet, kernels::Triangle triangle = kernels::Triangle::kNone,
              bool lower_result = false) {
  linear_kernels<T>().multiply({a.data, a.row, 1, x, c, rows, steps, columns, triangle, lower_result, into});
}
/// The same with the transpose of a, which is steps x rows.
template <class T>
void multiply_transposed(const Matrix<T>& a, const Matrix<T>& x, const Matrix<T>& c, int64_t rows, int64_t steps,
                         int64_t columns, kernels::Into into = kernels::Into::kSet,
                         kernels::Triangle triangle = kernels::Triangle::kNone) {
  linear_kernels<T>().multiply({a.data, 1, a.row, x, c, rows, steps, columns, triangle, false, into});
}
template <class T>
void multiply_elements(const kernels::ConstMatrix& x, const kernels::ConstMatrix& z, const Matrix<T>& y, int64_t rows,
                       int64_t columns, kernels::Into into = kernels::Into::kSet) {
  linear_kernels<T>().elements({x, z, y, rows, columns, false, into});
}
template <class T>
void scale_rows(const Matrix<T>& x, const T* factor, const Matrix<T>& y, int64_t rows, int64_t columns) {
  linear_kernels<T>().scale_rows({x, factor, y, rows, columns});
}

}  // namespace attn::linear
