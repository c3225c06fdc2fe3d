// Products of linear attention: c = a x of matrices in cache, the solve of a unit triangular system, and transposition.
//
//   multiply   rows of c in blocks of MT, vectors in blocks of NV, steps innermost, as in gemm.kernel.h. A triangular
//              factor ends each row's sum at the diagonal: the steps of a diagonal block are unrolled.
//   solve      the same, in place: the rows of a diagonal block are final one after the other, in registers
//   transpose  W x W blocks in registers
// Loops: blocks of vectors, blocks of rows, steps. Requires: what linear_table.h says.
#pragma once

#include "kernels/gemm.kernel.h"
#include "kernels/linear_table.h"

namespace attn::kernels {
namespace {

template <class T>
inline T* row_at(const Matrix& m, int64_t r) {
  return static_cast<T*>(m.data) + r * m.row;
}
template <class T>
inline const T* row_at(const ConstMatrix& m, int64_t r) {
  return static_cast<const T*>(m.data) + r * m.row;
}

inline int64_t vectors_of(int64_t columns, int lanes) { return (columns + lanes - 1) / lanes; }

template <class V>
inline typename V::Reg negated(typename V::Reg x) {
  return V::sub(V::zero(), x);
}

/// c += the diagonal block: rows and steps `first` .. `first` + MT - 1.
template <class V, int NV, int MT, Triangle triangle>
inline __attribute__((always_inline)) void diagonal(const typename V::T* a, int64_t a_row, int64_t a_step,
                                                    const typename V::T* x, int64_t x_row,
                                                    typename V::Reg (&c)[MT][NV]) {
  ATTN_UNROLL
  for (int s = 0; s < MT; ++s) {
    typename V::Reg lane[NV];
    ATTN_UNROLL
    for (int v = 0; v < NV; ++v) lane[v] = V::load(x + s * x_row + v * V::W);
    ATTN_UNROLL
    for (int i = triangle == Triangle::kLower ? s : 0; i < (triangle == Triangle::kLower ? MT : s + 1); ++i) {
      const typename V::Reg b = V::set1(a[i * a_row + s * a_step]);
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) c[i][v] = V::fma(b, lane[v], c[i][v]);
    }
  }
}

template <class V, int NV>
struct MultiplyTile {
  using T = typename V::T;
  using Reg = typename V::Reg;
  const MultiplyArgs& args;
  int64_t column;

  template <int MT>
  void run(int64_t i) const {
    const T* a = static_cast<const T*>(args.a) + i * args.a_row;
    Reg c[MT][NV];
    load<MT>(i, c);
    if (args.triangle == Triangle::kUpper) {
      diagonal<V, NV, MT, Triangle::kUpper>(a + i * args.a_step, args.a_row, args.a_step, x_at(i), args.x.row, c);
      add_steps<MT>(a, i + MT, args.steps, c);
    } else if (args.triangle == Triangle::kLower) {
      add_steps<MT>(a, 0, i, c);
      diagonal<V, NV, MT, Triangle::kLower>(a + i * args.a_step, args.a_row, args.a_step, x_at(i), args.x.row, c);
    } else {
      add_steps<MT>(a, 0, args.steps, c);
    }
    ATTN_UNROLL
    for (int r = 0; r < MT; ++r) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v)
        V::store(c_at(i + r) + v * V::W, args.into == Into::kSubtract ? negated<V>(c[r][v]) : c[r][v]);
    }
  }

 private:
  const T* x_at(int64_t s) const { return row_at<T>(args.x, s) + column; }
  T* c_at(int64_t i) const { return row_at<T>(args.c, i) + column; }

  template <int MT>
  inline __attribute__((always_inline)) void load(int64_t i, Reg (&c)[MT][NV]) const {
    ATTN_UNROLL
    for (int r = 0; r < MT; ++r) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) {
        if (args.into == Into::kSet) {
          c[r][v] = V::zero();
        } else {
          const Reg before = V::load(c_at(i + r) + v * V::W);
          c[r][v] = args.into == Into::kSubtract ? negated<V>(before) : before;
        }
      }
    }
  }
  template <int MT>
  inline __attribute__((always_inline)) void add_steps(const T* a, int64_t begin, int64_t end, Reg (&c)[MT][NV]) const {
    if (begin < end)
      tile<FmaDot<V>, NV, MT>(a + begin * args.a_step, args.a_row, args.a_step, x_at(begin), args.x.row, end - begin,
                              c);
  }
};

template <class V>
struct Multiply {
  const MultiplyArgs& args;
  template <int NV>
  void run(int64_t vector) const {
    const int64_t column = vector * V::W;
    const int64_t first = args.lower_result ? column / V::kOuterKeys * V::kOuterKeys : 0;
    for_tiles<V::kOuterKeys>(first < args.rows ? first : args.rows, args.rows, MultiplyTile<V, NV>{args, column});
  }
};

/// body.template run<N>(vector) for blocks of NV vectors, and smaller ones at the end. None of them is a single vector,
/// whose few sums would wait for each other, unless it is the only one.
template <int NV, class Body>
inline __attribute__((always_inline)) void for_column_blocks(int64_t vector, int64_t end, const Body& body) {
  for (; vector + NV <= end && (NV == 1 || end - vector != NV + 1); vector += NV) body.template run<NV>(vector);
  if constexpr (NV > 1) for_column_blocks<NV - 1>(vector, end, body);
}

template <class V>
void multiply(const MultiplyArgs& args) {
  for_column_blocks<V::kOuterVectors>(0, vectors_of(args.columns, V::W), Multiply<V>{args});
}

// ------------------------------------------------------------------------------------------------------------- solve

/// Blocks as in for_tiles, from the last to the first.
template <int MT, class Body>
inline __attribute__((always_inline)) void for_tiles_backward(int64_t begin, int64_t end, const Body& body) {
  const int64_t whole = begin + (end - begin) / MT * MT;
  if constexpr (MT > 1) for_tiles_backward<(MT + 1) / 2>(whole, end, body);
  for (int64_t i = whole; i > begin; i -= MT) body.template run<MT>(i - MT);
}

template <class V, int NV>
struct SolveTile {
  using T = typename V::T;
  using Reg = typename V::Reg;
  const SolveArgs& args;
  int64_t column;

  template <int MT>
  void run(int64_t i) const {
    Reg c[MT][NV];
    ATTN_UNROLL
    for (int r = 0; r < MT; ++r) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) c[r][v] = negated<V>(V::load(row_at<T>(args.e, i + r) + column + v * V::W));
    }
    const int64_t begin = args.upper ? i + MT : 0, end = args.upper ? args.rows : i;
    if (begin < end)
      tile<FmaDot<V>, NV, MT>(element(i, begin), args.a_row, args.a_step, row_at<T>(args.u, begin) + column, args.u.row,
                              end - begin, c);
    ATTN_UNROLL
    for (int n = 0; n < MT; ++n) {
      const int r = args.upper ? MT - 1 - n : n;
      const Reg factor = V::set1(static_cast<const T*>(args.factor)[i + r]);
      Reg u[NV];
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) {
        const Reg e = negated<V>(c[r][v]);
        u[v] = V::mul(factor, e);
        V::store(row_at<T>(args.e, i + r) + column + v * V::W, e);
        V::store(row_at<T>(args.u, i + r) + column + v * V::W, u[v]);
      }
      for (int m = n + 1; m < MT; ++m) {
        const int next = args.upper ? MT - 1 - m : m;
        const Reg b = V::set1(*element(i + next, i + r));
        ATTN_UNROLL
        for (int v = 0; v < NV; ++v) c[next][v] = V::fma(b, u[v], c[next][v]);
      }
    }
  }

 private:
  const T* element(int64_t i, int64_t s) const {
    return static_cast<const T*>(args.a) + i * args.a_row + s * args.a_step;
  }
};

template <class V>
struct Solve {
  const SolveArgs& args;
  template <int NV>
  void run(int64_t vector) const {
    const SolveTile<V, NV> body{args, vector * V::W};
    if (args.upper) for_tiles_backward<V::kOuterKeys>(0, args.rows, body);
    else for_tiles<V::kOuterKeys>(0, args.rows, body);
  }
};

template <class V>
void solve(const SolveArgs& args) {
  for_column_blocks<V::kOuterVectors>(0, vectors_of(args.columns, V::W), Solve<V>{args});
}

// --------------------------------------------------------------------------------------------------------- transpose

template <class V>
void transpose(const TransposeArgs& args) {
  using T = typename V::T;
  for (int64_t r0 = 0; r0 < args.rows; r0 += V::W) {
    for (int64_t c0 = 0; c0 < args.columns; c0 += V::W) {
      typename V::Reg block[V::W];
      ATTN_UNROLL
      for (int r = 0; r < V::W; ++r)
        block[r] = r0 + r < args.rows ? V::load(row_at<T>(args.x, r0 + r) + c0) : V::zero();
      V::transpose(block);
      ATTN_UNROLL
      for (int c = 0; c < V::W; ++c)
        if (c0 + c < args.columns) V::storeu(row_at<T>(args.y, c0 + c) + r0, block[c]);
    }
  }
}

}  // namespace
}  // namespace attn::kernels
