// The contract for everything around attention: elementwise functions, norms, losses, rotations, the optimiser.
//
// As in table.h: plain argument structs and a struct of function pointers for one arithmetic, `acc`: float for storage
// in float32, bfloat16 and float16, double for float64. Arrays are user memory, aligned to its element only, whose
// last stride is 1. Nothing outside a row's `columns` is read or written. Elements do not depend on how a job is cut
// into calls; sums do. Kernels check nothing.
#pragma once

#include "kernels/table.h"

namespace attn::kernels {

/// Element (r, c) is at data + r stride + c, in elements of `type`.
struct ConstRows {
  const void* data;
  int64_t stride;
  int type;
};
struct Rows {
  void* data;
  int64_t stride;
  int type;
};

/// The values are those of attn::ops::Activation.
enum Function : int { kNoFunction = -1, kRelu = 0, kGelu = 1, kGeluTanh = 2, kSilu = 3, kTanh = 4 };

struct ActivateArgs {
  int function;
  int64_t rows, columns;
  ConstRows x;
  ConstRows up;  // data null: plain
  Rows y;        // f(x), or f(x) up
};

struct ActivateGradArgs {
  int function;
  int64_t rows, columns;
  ConstRows x, dy;
  ConstRows up;  // data null: plain
  Rows dx;       // dy f'(x), or dy up f'(x)
  Rows dup;      // dy f(x), where `up` is given
};

struct AddArgs {
  int64_t rows, columns;
  ConstRows a, b;
  Rows y;
};

struct ScaleArgs {
  int64_t rows, columns;
  ConstRows x;
  double factor;
  Rows y;  // of any type where factor is 1
};

struct AddRowsArgs {
  int64_t rows, columns;
  ConstRows x;
  void* total;  // acc [columns], += the sum of the rows, in order from 0
};

struct DropArgs {
  int64_t rows, columns;
  ConstRows x;
  Rows y;
  uint64_t seed, stream;
  int64_t first, index_stride;  // element (r, c) draws word number first + r index_stride + c
  uint64_t threshold;           // a word below it drops the element
  double factor;
};

struct RotateArgs {
  int64_t rows, heads;
  int64_t width, rotated;  // features of a head, and how many of them turn
  bool interleaved;
  ConstRows x;
  Rows y;
  const void* cosine;  // acc [rows][rotated / 2]; interleaved: [rows][rotated], each twice
  const void* sine;    // the same; interleaved: -sin, sin
};

struct AnglesArgs {
  int64_t rows, pairs;
  const int64_t* position;  // [rows]
  const double* frequency;  // [pairs]
  double* cosine;           // [rows][pairs]
  double* sine;
};

struct NormArgs {
  int64_t rows, columns;
  bool centred;  // layer norm; otherwise RMS norm
  double epsilon;
  ConstRows x;
  const void* weight;  // acc [columns]
  const void* bias;    // acc [columns]; null = none
  Rows y;
  void* mean;  // acc [rows]; null = not wanted
  void* rstd;
};

struct NormGradArgs {
  int64_t rows, columns;
  bool centred;
  ConstRows x, dy;
  const void* weight;
  const void* mean;  // null unless centred
  const void* rstd;
  Rows dx;
  void* dweight;  // acc [columns], +=
  void* dbias;    // acc [columns], +=; null = not wanted
};

struct ExpSumArgs {
  int64_t rows, columns;
  ConstRows x;
  void* reference;  // acc [rows]: the maximum, 0 for a row of -infinity
  void* sum;        // acc [rows]: of exp(x - reference)
};

struct SoftmaxGradArgs {
  int64_t rows, columns;
  ConstRows x;
  const void* lse;  // acc [rows]
  double factor;
  Rows y;  // factor exp(x - lse)
};

struct AdamArgs {
  int64_t rows, columns;
  Rows parameter;  // these four of type acc
  ConstRows gradient;
  Rows first, second;
  Rows copy;  // of the new parameter, of any type; data null: none
  double gradient_factor;
  double keep;  // 1 - learning rate * decay
  double beta1, beta2;
  double step;        // learning rate / (1 - beta1^t)
  double root_scale;  // 1 / sqrt(1 - beta2^t)
  double epsilon;
};

struct SumArgs {
  int64_t rows, columns;
  ConstRows x;
};

struct MatvecPackArgs {
  int64_t rows, terms;
  ConstRows x;
  void* packed;  // matvec_bytes(rows, terms), aligned to 64
};

struct MatvecArgs {
  int64_t rows, columns, terms;  // at most 8 rows
  const void* packed;            // x [rows, terms], of matvec_pack
  ConstRows w;                   // [columns, terms]
  const float* bias;             // [columns]; null = none
  bool add;                      // to what y holds
  Rows y;                        // x w^T
};

/// One arithmetic.
struct ElementKernels {
  void (*activate)(const ActivateArgs&);
  void (*activate_grad)(const ActivateGradArgs&);
  void (*add)(const AddArgs&);
  void (*scale)(const ScaleArgs&);
  void (*add_rows)(const AddRowsArgs&);
  void (*drop)(const DropArgs&);
  void (*rotate)(const RotateArgs&);
  void (*angles)(const AnglesArgs&);
  void (*norm)(const NormArgs&);
  void (*norm_grad)(const NormGradArgs&);
  void (*exp_sum)(const ExpSumArgs&);
  void (*softmax_grad)(const SoftmaxGradArgs&);
  void (*adam)(const AdamArgs&);
  double (*sum_of_squares)(const SumArgs&);
  // Products of few rows, of float alone: null in double.
  int64_t (*matvec_bytes)(int64_t rows, int64_t terms) = nullptr;
  void (*matvec_pack)(const MatvecPackArgs&) = nullptr;
  void (*matvec)(const MatvecArgs&) = nullptr;
};

}  // namespace attn::kernels
