// Few rows times rows of weights: the rows are packed once, by the caller; tasks take groups of columns.
#include "ops/matvec.h"

#include <algorithm>

#include "ops/product_result.h"

namespace attn::ops {
namespace {

constexpr int64_t kTaskBytes = int64_t{1} << 17;   // of weights: 6 to 12 us from memory
constexpr int64_t kAloneBytes = int64_t{1} << 18;  // a smaller product is over before another thread would wake
constexpr int64_t kColumns = 16;                   // of a cache line of results, which has one writer

/// Columns of a task.
int64_t task_columns(int64_t N, int64_t row_bytes) {
  if (N <= kAloneBytes / row_bytes) return N;
  return round_up(div_up(kTaskBytes, row_bytes), kColumns);
}

/// Rows `first` to first + M of c.
void multiply_rows(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options,
                   int64_t first, int64_t M) {
  const int64_t N = c.size[1], K = a.size[1];
  const kernels::ElementKernels& k = kernels_for(a.dtype);
  void* packed = thread_scratch(k.matvec_bytes(M, K));
  k.matvec_pack({.rows = M, .terms = K, .x = rows_at(a, {.row = first}), .packed = packed});
  const ConstView<2> weights(b.data, b.dtype, {N, K}, {b.stride[1], 1});
  const int64_t step = task_columns(N, K * size_of(b.dtype));
  parallel_for_flushed(div_up(N, step), [&](int64_t task) {
    const int64_t column = task * step;
    k.matvec({.rows = M,
              .columns = std::min(step, N - column),
              .terms = K,
              .packed = packed,
              .w = rows_at(weights, {.row = column}),
              .bias = static_cast<const float*>(element_at(options.bias, column)),
              .add = options.accumulate,
              .y = rows_at(c, {.row = first, .column = column})});
  });
}

}  // namespace

void multiply_few_rows(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& given) {
  MatmulOptions options = given;
  begin_with_addend(c, options);
  for (int64_t first = 0; first < c.size[0]; first += kMostMatvecRows)
    multiply_rows(a, b, c, options, first, std::min(kMostMatvecRows, c.size[0] - first));
  if (options.activation) activate(*options.activation, c, c);
}

}  // namespace attn::ops
