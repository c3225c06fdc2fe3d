// The contract of matrix products on matrix tiles, C = A B, of float32 and 16-bit numbers.
//
// As in table.h: plain argument structs and a struct of function pointers. Words: a *line* is a row of A or a column of
// B, a *term* an index of the sum; a *panel* is `panel` lines. Numbers enter the products as sums of `parts` bfloat16
// numbers. Of float32, 3 are its accuracy, 2 have 16 bits, 1 is rounded to 8; bfloat16 is one part, float16 two. What a
// packed factor looks like is the kernels' own business. Kernels check nothing; packed factors are 64-byte aligned,
// everything else to its element only.
#pragma once

#include "kernels/elements_table.h"
#include "kernels/table.h"

namespace attn::kernels {

/// Lines of A or B, in user memory.
struct Factor {
  const void* data;
  int type;                          // kFloat32, kBfloat16 or kFloat16
  int64_t line_stride, term_stride;  // one of them is 1
  int64_t lines, terms;
};

struct PackFactorArgs {
  Factor x;
  bool left;  // A
  int parts;
  void* packed;  // bytes(lines, terms, parts)
};

/// c = a b (+ bias) (+ addend): an element's bits depend on its own row, column and addend alone.
///
/// A line is irregular if it has an infinity, a NaN or a magnitude from 2^60 up, or is not all 0 and below 2^-48: parts
/// or their products would leave the range of tiles. Its results are sums of float32 fma in the order of the terms,
/// whatever the number of parts. bfloat16, which tiles multiply as it is, has no irregular lines.
struct ProductArgs {
  Factor a, b;       // of one type and the same terms, at most `most_terms`
  int64_t in_place;  // the first lines of a, whole panels, are multiplied where they are; packed_a has the others
  const void* packed_a;
  const void* packed_b;  // should stay in the second-level cache while the panels of a pass by
  int parts;
  ProductResult result;  // of float32 or the type of a and b
  int activation;        // a Function, applied to rounded results of bfloat16; kNoFunction for other types
};

struct ProductKernels {
  int panel;              // lines
  int step;               // terms: a part of the sum is a multiple of it, but the last
  int64_t most_terms;     // of one product. Longer sums are cut, and their parts added by `add`: that is more accurate
  int64_t b_block_bytes;  // of packed b in one product, so that they stay in the second-level cache
  int64_t a_group_bytes;  // of the lines of a that are packed at a time

  int64_t (*bytes)(int64_t lines, int64_t terms, int parts);  // packed; also where line `lines` begins, if whole panels
  bool (*takes_in_place)(const Factor& a);  // whole panels of these lines can be multiplied where they are
  void (*pack)(const PackFactorArgs&);
  void (*multiply)(const ProductArgs&);  // between enter() and leave(), as those of TileKernels
  void (*enter)(void* before);
  void (*leave)(const void* before);
};

}  // namespace attn::kernels
