// The contract of matrix products with weights of 8 or 4 bits.
//
// As in table.h: plain argument structs and a struct of function pointers. Words: a *column* is a row of the weights
// W [N, K], that is a column of the result; a *group* is a run of terms with one scale; a *code* is the whole number
// of a weight or of an element of a row.
//
//   W[n][k] = factor[n] (scale[n][g] (code[n][k] - zero) + offset[n][g])        g = k / group
//   x[m][k] = scale[m][g] code[m][k]                                            code in -127 .. 127
// A row is quantized in the same groups, with the scale max |x| / 127 of each group; a group with a number that is not
// finite has the scale NaN. The sum over a group is exact, in 32-bit integers. Kernels check nothing.
#pragma once

#include "kernels/elements_table.h"

namespace attn::kernels {

struct QuantizedFormat {
  int bits;       // 8: codes 0 .. 255; 4: codes 0 .. 15
  int zero;       // the code of 0
  bool offsets;   // there are offsets
  int64_t terms;  // a multiple of `group`: columns and rows are padded with zeros
  int64_t group;  // a multiple of 16, at most 2^15
};

/// The columns of a panel, from user memory.
struct PackColumnsArgs {
  QuantizedFormat format;
  int64_t columns;       // at most `panel`
  int64_t terms;         // that exist
  const uint8_t* codes;  // [columns][terms]
  const float* factors;  // [columns]
  const float* scales;   // [columns][groups]
  const float* offsets;  // the same; null without
  void* packed;          // panel_bytes(format)
};

/// One column of a panel as numbers.
struct UnpackColumnArgs {
  QuantizedFormat format;
  const void* packed;
  int64_t column, terms;
  float* out;  // [terms]
};

struct QuantizeRowsArgs {
  QuantizedFormat format;
  int64_t rows, terms;  // that exist
  ConstRows x;
  void* packed;  // rows x row_bytes(format)
};

struct QuantizedProductArgs {
  QuantizedFormat format;
  int64_t rows, columns;
  const void* packed_rows;  // of quantize_rows, of all rows or from a multiple of `tile` on
  const void* panels;       // one after the other
  ProductResult result;
};

struct QuantizedKernels {
  int panel;  // columns
  int tile;   // rows
  int64_t (*panel_bytes)(const QuantizedFormat& format);
  int64_t (*row_bytes)(const QuantizedFormat& format);
  void (*pack_columns)(const PackColumnsArgs&);
  void (*unpack_column)(const UnpackColumnArgs&);
  void (*quantize_rows)(const QuantizeRowsArgs&);
  void (*multiply)(const QuantizedProductArgs&);
};

}  // namespace attn::kernels
