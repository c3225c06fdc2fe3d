// ops: weights of 8 and 4 bits.
//
// ```cpp
// #include "attn/ops_quantized.h"
// int main() {
//   attn::Tensor<float, 2> x({4, 64}), weight({32, 64}), y({4, 32});
//   attn::Random random(1);
//   attn::fill_normal(x, random), attn::fill_normal(weight, random);
//   const attn::ops::PackedMatrix packed(attn::ops::quantize(weight, {.bits = 4, .group = 32}));
//   attn::ops::matmul_packed(x, packed, y);  // y = x weight^T, nearly
// }
// ```
//
// A product with such weights quantizes the rows of x too, to 8 bits in the groups of the weights: it multiplies whole
// numbers, exactly, and adds the groups in float32. docs/shrink.md has the formulas and the error.
#pragma once

#include <vector>

#include "attn/ops.h"

#pragma GCC visibility push(default)
namespace attn::ops {

/// The most terms that may have one scale.
constexpr int64_t kMostGroup = int64_t{1} << 15;

/// A weight matrix W [N, K] in whole numbers:
///   W[n][k] = scales[n][g] (codes[n][k] - zero) + offsets[n][g],   g = k / group
struct QuantizedMatrix {
  int64_t rows = 0, terms = 0;  ///< N, K
  int bits = 8;                 ///< 8: codes from 0 to 255; 4: from 0 to 15
  int zero = 128;               ///< the code of 0, in the same range
  int64_t group = 0;  ///< terms with one scale: a multiple of 16, or K; at most kMostGroup. The last may be shorter
  std::vector<uint8_t> codes = {};  ///< [N, K], a byte each
  std::vector<float> scales = {};   ///< [N, groups()]
  std::vector<float> offsets = {};  ///< [N, groups()], or empty: none
  int64_t groups() const { return group > 0 ? (terms + group - 1) / group : 0; }
};

struct QuantizeOptions {
  int bits = 8;       ///< 8 or 4
  int64_t group = 0;  ///< terms with one scale, a multiple of 16; 0 = a whole row, of at most kMostGroup terms
};
/// W [N, K], of any floating type, in 8 bits as scale x (-127 .. 127) with scale = max |W| / 127 of a group, or in 4
/// bits as scale x (-8 .. 7) with the scale of several that has the least squared error. Runs on parallel_for(). Throws
/// Error for other options and for numbers that are not finite.
QuantizedMatrix quantize(ConstView<2> w, const QuantizeOptions& options = {});
/// The numbers of the codes. out [N, K] of any floating type. Throws Error for a matrix that is not one.
void dequantize(const QuantizedMatrix& w, View<2> out);

/// out[r] = W[ids[r]] of a packed quantized W: an embedding whose table is also a weight of products. ids [R] in
/// [0, N); out [R, K] of float32, bfloat16 or float16. Throws Error for other ids and shapes.
void embedding(std::span<const int64_t> ids, const PackedMatrix& table, View<2> out);

}  // namespace attn::ops
#pragma GCC visibility pop
