// Products of types of 16 bits: few processors multiply float16, and those with AVX2 alone not bfloat16 either, so
// tiles are widened to float32, which is exact, multiplied and summed there, and the result is rounded once.
//
//   for each tile of b's columns, for each tile of a's rows, for each part of the terms
//     C = A B (+ C), with A and B copies in float32
//
// A copy is used again by a whole tile of the other operand: next to that the widening is small.
#include "ops/matmul_half.h"

#include <algorithm>

namespace attn::ops {
namespace {

// A copy has at most 4 MB, which stays in the last cache. One of 768 terms, a common width, is used for 1024 rows.
constexpr int64_t kMostTerms = 2048;
constexpr int64_t kMostRows = 1024;  // or columns
constexpr int64_t kMostElements = int64_t{1} << 20;

/// The tiles of a thread: memory that grows and stays.
struct Copies {
  Buffer a, b, c;
};

View<2> copy_in(Buffer& memory, const Shape<2>& size) {
  const int64_t bytes = size[0] * size[1] * size_of(DType::float32);
  if (memory.bytes() < bytes) memory = Buffer(bytes);
  return {memory.data(), DType::float32, size};
}

/// Rows row .., columns column .., of this size.
template <class Matrix>
Matrix part_of(Matrix x, int64_t row, int64_t column, const Shape<2>& size) {
  const auto offset = (row * x.stride[0] + column * x.stride[1]) * size_of(x.dtype);
  x.data = const_cast<char*>(static_cast<const char*>(x.data)) + offset;
  x.size = size;
  return x;
}

template <class Matrix>
Matrix transposed(const Matrix& x) {
  return {x.data, x.dtype, {x.size[1], x.size[0]}, {x.stride[1], x.stride[0]}};
}

/// x in float32, rows and columns in the order of memory that they have.
ConstView<2> widened(const ConstView<2>& x, Buffer& memory) {
  const bool rows_lie = x.stride[1] == 1 || x.size[1] <= 1;
  const ConstView<2> stored = rows_lie ? x : transposed(x);
  const View<2> copy = copy_in(memory, stored.size);
  convert(stored, copy);
  return rows_lie ? copy : transposed(copy);
}

}  // namespace

void multiply_half(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options) {
  static thread_local Copies copies;
  const int64_t M = c.size[0], N = c.size[1], K = a.size[1];
  const int64_t terms = std::min(K, kMostTerms), side = std::min(kMostRows, kMostElements / terms);
  for (int64_t j = 0; j < N; j += side) {
    const int64_t columns = std::min(side, N - j);
    ConstView<2> wide_b;
    for (int64_t i = 0; i < M; i += side) {
      const int64_t rows = std::min(side, M - i);
      const View<2> out = part_of(c, i, j, {rows, columns});
      const View<2> sum = c.dtype == DType::float32 ? out : copy_in(copies.c, out.size);
      if (options.accumulate && c.dtype != DType::float32) convert(out, sum);
      for (int64_t k = 0; k < K; k += terms) {
        const int64_t depth = std::min(terms, K - k);
        if (i == 0 || K > terms) wide_b = widened(part_of(b, k, j, {depth, columns}), copies.b);
        MatmulOptions wide{.accumulate = options.accumulate || k > 0, .precision = Float32Precision::full};
        if (options.bias && k == 0) {
          wide.bias = options.bias;
          wide.bias.data = static_cast<const float*>(options.bias.data) + j;
          wide.bias.size = {columns};
        }
        matmul(widened(part_of(a, i, k, {rows, depth}), copies.a), wide_b, sum, wide);
      }
      if (c.dtype != DType::float32) convert(sum, out);
    }
  }
}

}  // namespace attn::ops
