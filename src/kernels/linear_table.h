// The contract of linear attention: small products in cache, a triangular solve, decays, and a step of decoding.
//
// As in table.h: plain argument structs and a struct of function pointers for one arithmetic, `acc`. A *matrix* is rows
// of acc in scratch: 64-byte aligned, a row a whole number of 64-byte lines, its columns rounded up to whole vectors,
// of which those beyond its extent hold anything. Kernels check nothing.
#pragma once

#include "kernels/table.h"

namespace attn::kernels {

/// The triangle of a square factor that is read: kLower has a(i, s) for s <= i, kUpper for s >= i.
enum class Triangle { kNone, kLower, kUpper };
enum class Into { kSet, kAdd, kSubtract };

struct Matrix {
  void* data;
  int64_t row;  // elements from row to row
};
struct ConstMatrix {
  const void* data;
  int64_t row;
};

/// c = a x, c += a x or c -= a x: an element is one sum in the order of the steps.
struct MultiplyArgs {
  const void* a;  // element (i, s) at a[i a_row + s a_step]
  int64_t a_row, a_step;
  ConstMatrix x;  // steps x columns
  Matrix c;       // rows x columns
  int64_t rows, steps, columns;
  Triangle triangle;  // of a; kNone = all of it is read
  bool lower_result;  // only c(i, j) with j <= i is wanted
  Into into;
};

/// e_i -= sum over s < i of a(i, s) u_s, with u_i = factor_i e_i, for i = 0, 1, ...; `upper`: over s > i, from the
/// last.
struct SolveArgs {
  const void* a;
  int64_t a_row, a_step;
  const void* factor;  // acc [rows]
  Matrix e, u;         // rows x columns
  int64_t rows, columns;
  bool upper;
};

/// y = x z, element by element; `into` as in MultiplyArgs.
struct ElementsArgs {
  ConstMatrix x, z;  // z.row = 0: one row for all
  Matrix y;
  int64_t rows, columns;
  bool lower;  // only elements (r, c) with c <= r are wanted
  Into into;
};

/// y_r = factor_r x_r
struct ScaleRowsArgs {
  ConstMatrix x;
  const void* factor;  // acc [rows]
  Matrix y;
  int64_t rows, columns;
};

/// Forward: y_r = x_r w_0 ... w_r. Backward: y_r = x_r w_{r+1} ... w_{rows-1}.
struct RunningArgs {
  ConstMatrix x, w;
  Matrix y;
  void* total;  // acc [columns]: w_0 ... w_{rows-1}; null = not wanted
  int64_t rows, columns;
  bool backward;
};

/// y(i, j) = w_{j+1} ... w_i for j <= i.
struct DecayArgs {
  const void* w;  // acc [rows]
  Matrix y;
  int64_t rows;
};

constexpr int kMostPairRows = 8;

/// Products of few rows whose distance decays by column, with E(i, j) = w_{j+1} ... w_i:
///   qk(i, j) = sum_c q(i, c) k(j, c) E(i, j)(c) for j <= i,   kk(i, j) the same of k(i, c) for j < i
struct PairsArgs {
  ConstMatrix q, k, w;
  Matrix qk, kk;  // data null: not wanted
  int64_t rows, columns;
};

/// What the gradients of qk and kk give:
///   dq_i += dqk(i, j) k_j E(i, j)   dk_i += dkk(i, j) k_j E(i, j)   dkey_j += (dqk(i, j) q_i + dkk(i, j) k_i) E(i, j)
struct PairsGradArgs {
  ConstMatrix q, k, w, dqk, dkk;  // dkk.data null: there is none
  Matrix dq, dk, dkey;
  int64_t rows, columns;
};

/// out[r] = sum_c x(r, c) z(r, c)
struct RowDotsArgs {
  ConstMatrix x, z;
  void* out;  // acc [rows]
  int64_t rows, columns;
};

/// y(c, r) = x(r, c); columns of y beyond `rows`, to a whole vector, become 0. y is aligned to its elements only.
struct TransposeArgs {
  ConstMatrix x;
  Matrix y;
  int64_t rows, columns;
};

/// One token: S = decay S + k u^T, u = beta (v - [delta] (decay S)^T k), out = S^T q. States are aligned to their
/// element only, and nothing beyond their columns is touched.
struct StepArgs {
  const void* q;  // acc [depth]
  const void* k;
  const void* decay;     // acc [depth]; null = 1
  void* u;               // acc [columns]: v, which becomes u
  void* out;             // acc [columns]
  const void* state_in;  // acc, rows of `in_row`; null = zeros
  int64_t in_row;
  void* state_out;  // may be state_in
  int64_t out_row;
  int64_t depth, columns;
  double beta;
  bool delta;
};

/// Rows that a convolution reads: tap j of row r is at row[r step + j], contiguous columns of `type`.
struct TapRows {
  const void* const* row;
  int64_t step;
  int type;
};

/// y_r = act(bias + sum_j weight_j tap(r, j)), column by column.
struct ConvolveArgs {
  TapRows x;
  ConstMatrix weight;  // taps x columns
  int64_t taps;
  const void* bias;  // acc [columns], as a row of a matrix; null = 0
  bool silu;
  int64_t rows, columns;
  void* y;  // row r at y + r y_row, in elements of y_type
  int64_t y_row;
  int y_type;
};

/// With z_r what the activation of `forward` takes: dz_r = act'(z_r) dy_r. Sums: row j += sum_r dz_r tap(r, j), and row
/// `taps` += sum_r dz_r.
struct ConvolveGradArgs {
  ConvolveArgs forward;  // y is not written
  const void* const* dy;
  int dy_type;
  Matrix dz;    // rows x columns
  Matrix sums;  // (taps + 1) x columns; data null: not wanted
};

struct LinearKernels {
  void (*multiply)(const MultiplyArgs&);
  void (*solve)(const SolveArgs&);
  void (*elements)(const ElementsArgs&);
  void (*scale_rows)(const ScaleRowsArgs&);
  void (*running)(const RunningArgs&);
  void (*decays)(const DecayArgs&);
  void (*pairs)(const PairsArgs&);
  void (*pairs_grad)(const PairsGradArgs&);
  void (*row_dots)(const RowDotsArgs&);
  void (*transpose)(const TransposeArgs&);
  void (*exponentials)(const void* x, void* y, int64_t n);  // y = exp(x), acc, whole vectors
  void (*step)(const StepArgs&);
  double (*largest)(const RowsArgs&);  // of all elements but NaN; -infinity of none
  void (*convolve)(const ConvolveArgs&);
  void (*convolve_grad)(const ConvolveGradArgs&);
};

}  // namespace attn::kernels
