// The gradients of one chunk. With t the gradient of u, and dS that of the state, from after the chunk to before it:
//   t = qk^T do + ke dS     [delta] t_j -= sum over i > j of kk_ij r_i     r = beta t     dv = r     dbeta = <t, e>
//   dqk = do u^T            dkk = -[delta] r u^T
//   dqd = do S^T            dkd = -[delta] r S^T            dke = u dS^T
//   dS becomes P_last dS + qd^T do - [delta] kd^T r
// A factor e^(G_i - G_j) of the logarithms G of the decays adds its share of <x, dx> to dG_i and takes it from dG_j;
// the decay of a token is in G of every token from it on.
#pragma once

#include "linear/chunk.h"

namespace attn::linear {

template <class T>
class ChunkGradients {
 public:
  ChunkGradients(const LinearProblem& problem, Arena& arena, bool with_decay);

  /// Loads dout of the chunk. For a normalised output it needs chunk.out, normalised, and chunk.inverse.
  void load(const Chunk<T>& chunk, const ConstView<4>& dout);
  /// Computes r, dbeta, and the gradients of the chunk's rows, from the state before it, that after it and the
  /// latter's gradient, which becomes that of the state before.
  void compute(const Chunk<T>& chunk, const Matrix<T>& state, const Matrix<T>& state_after, const Matrix<T>& dstate);

  Matrix<T> dq, dk;  // of the rows as they enter the recurrence
  Matrix<T> r;       // dv
  T* dbeta;          // [kChunkTokens]
  Matrix<T> ddecay;  // of the logarithms, [kChunkTokens][Dk], or in column 0 if it is one a token

 private:
  void solve(const Chunk<T>& chunk, const Matrix<T>& dstate);
  void relate(const Chunk<T>& chunk, const Matrix<T>& state, const Matrix<T>& dstate);
  void without_row_decay(const Chunk<T>& chunk);
  void by_row(const Chunk<T>& chunk);
  void group_by_row(const Chunk<T>& chunk, int64_t first, int64_t count);
  void logarithms(const Chunk<T>& chunk);
  void retreat(const Chunk<T>& chunk, const Matrix<T>& dstate);

  const LinearProblem& p_;
  const kernels::LinearKernels& kernels_;
  const bool with_decay_;
  Matrix<T> dout_, t_, ut_, transposed_, dqk_, dkk_, dkey_, keys_, group_, dlast_;
  T *dots_, *shares_, *before_;
};

}  // namespace attn::linear
