// Decode: a handful of rows against many keys. The same arithmetic as the panel kernels, in the same order for every
// row, with other things in the lanes; a token decoded alone therefore equals the same token in a long prompt, bitwise.
//
//   scores   W keys in lanes: blocks of W keys x W dims are transposed in registers, then every row adds
//            k[d] * q[row][d] for d in order; a second transpose writes [key][width], width = lanes of one vector
//   values   W dims in lanes: out[row][d] += p[key][row] v[key][d], keys in order, rows x vectors in registers
// Requires: rows <= W; depth of the keys a multiple of W (pack_keys pads); out is [rows][depth rounded up to W], and
// value rows are read up to `depth` only.
#pragma once

#include "kernels/rows.kernel.h"
#include "kernels/softmax.kernel.h"

namespace attn::kernels {
namespace {

/// The queries stay row-major: [rows][dense_stride], scaled.
template <class V>
void pack_query_few(const RowsArgs& args) {
  load_rows<V>(args);
}

template <class V, int RT>
struct FewAccumulate {
  using T = typename V::T;
  /// acc[r] += sum over the W dims of block: key_dims[d] * q[r][d]
  static inline __attribute__((always_inline)) void run(const typename V::Reg (&key_dims)[V::W], const T* query,
                                                        int64_t query_stride, typename V::Reg* acc) {
    typename V::Reg c[RT];
    ATTN_UNROLL
    for (int r = 0; r < RT; ++r) c[r] = acc[r];
    ATTN_UNROLL
    for (int d = 0; d < V::W; ++d) {
      ATTN_UNROLL
      for (int r = 0; r < RT; ++r) c[r] = V::fma(key_dims[d], V::set1(query[r * query_stride + d]), c[r]);
    }
    ATTN_UNROLL
    for (int r = 0; r < RT; ++r) acc[r] = c[r];
  }
};

/// Rows in blocks of 4, 2, 1.
template <class V>
inline void few_accumulate(const typename V::Reg (&key_dims)[V::W], const typename V::T* query, int64_t stride, int rows,
                           typename V::Reg* acc) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) FewAccumulate<V, 4>::run(key_dims, query + r * stride, stride, acc + r);
  for (; r + 2 <= rows; r += 2) FewAccumulate<V, 2>::run(key_dims, query + r * stride, stride, acc + r);
  for (; r < rows; ++r) FewAccumulate<V, 1>::run(key_dims, query + r * stride, stride, acc + r);
}

/// Writes the scores of up to W keys, rows in lanes.
template <class V>
inline void few_store(typename V::Reg (&acc)[V::W], const ScoresArgs& args, int64_t keys, typename V::T* out) {
  using T = typename V::T;
  const typename V::Reg highest = V::set1(static_cast<T>(args.highest));
  const typename V::Reg scale = V::set1(static_cast<T>(args.scale));
  for (int r = 0; r < V::W; ++r) acc[r] = V::min(highest, args.scale != 1 ? V::mul(acc[r], scale) : acc[r]);
  V::transpose(acc);
  for (int64_t key = 0; key < keys; ++key) V::store(out + key * V::W, acc[key]);
}

template <class V>
void scores_few(const ScoresArgs& args) {
  using T = typename V::T;
  const T* query = static_cast<const T*>(args.query);
  for (int64_t key = 0; key < args.count; key += V::W) {
    const int64_t keys = args.count - key < V::W ? args.count - key : V::W;
    const T* base = static_cast<const T*>(args.keys) + key * args.key_stride;
    typename V::Reg acc[V::W];
    for (int r = 0; r < V::W; ++r) acc[r] = V::zero();
    for (int64_t d = 0; d < args.depth; d += V::W) {
      typename V::Reg block[V::W];
      ATTN_UNROLL
      for (int i = 0; i < V::W; ++i) block[i] = i < keys ? V::loadu(base + i * args.key_stride + d) : V::zero();
      V::transpose(block);
      few_accumulate<V>(block, query + d, args.depth, args.rows, acc);
    }
    few_store<V>(acc, args, keys, static_cast<T*>(args.scores) + key * V::W);
  }
}

/// The first n < W elements at p, then zeros; reads nothing beyond them.
template <class V>
inline typename V::Reg load_part(const typename V::T* p, int64_t n) {
  alignas(64) typename V::T part[V::W] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = p[i];
  return V::load(part);
}

template <class V, int RT, int VT>
inline void values_few_tile(const ValuesArgs& args, int row, int64_t d, int64_t out_stride) {
  using T = typename V::T;
  T* out = static_cast<T*>(args.out) + row * out_stride + d;
  const T* weights = static_cast<const T*>(args.weights) + row;
  const T* values = static_cast<const T*>(args.values) + d;
  const int64_t part = args.depth - d < V::W ? args.depth - d : 0;
  typename V::Reg c[RT][VT];
  ATTN_UNROLL
  for (int r = 0; r < RT; ++r) {
    ATTN_UNROLL
    for (int v = 0; v < VT; ++v) c[r][v] = V::load(out + r * out_stride + v * V::W);
  }
  for (int64_t key = 0; key < args.count; ++key, weights += V::W, values += args.value_stride) {
    typename V::Reg x[VT];
    ATTN_UNROLL
    for (int v = 0; v < VT; ++v) x[v] = VT == 1 && part ? load_part<V>(values, part) : V::loadu(values + v * V::W);
    ATTN_UNROLL
    for (int r = 0; r < RT; ++r) {
      const typename V::Reg p = V::set1(weights[r]);
      ATTN_UNROLL
      for (int v = 0; v < VT; ++v) c[r][v] = V::fma(p, x[v], c[r][v]);
    }
  }
  ATTN_UNROLL
  for (int r = 0; r < RT; ++r) {
    ATTN_UNROLL
    for (int v = 0; v < VT; ++v) V::store(out + r * out_stride + v * V::W, c[r][v]);
  }
}

template <class V, int VT>
inline void values_few_columns(const ValuesArgs& args, int64_t d, int64_t out_stride) {
  int row = 0;
  for (; row + 4 <= args.rows; row += 4) values_few_tile<V, 4, VT>(args, row, d, out_stride);
  for (; row + 2 <= args.rows; row += 2) values_few_tile<V, 2, VT>(args, row, d, out_stride);
  for (; row < args.rows; ++row) values_few_tile<V, 1, VT>(args, row, d, out_stride);
}

template <class V>
void values_few(const ValuesArgs& args) {
  const int64_t out_stride = (args.depth + V::W - 1) / V::W * V::W;
  int64_t d = 0;
  for (; d + V::kFewVectors * V::W <= args.depth; d += V::kFewVectors * V::W)
    values_few_columns<V, V::kFewVectors>(args, d, out_stride);
  for (; d < args.depth; d += V::W) values_few_columns<V, 1>(args, d, out_stride);
}

template <class V>
void rescale_few(void* out, const void* alpha, int /*width*/, int rows, int64_t depth) {
  using T = typename V::T;
  const int64_t stride = (depth + V::W - 1) / V::W * V::W;
  for (int row = 0; row < rows; ++row) {
    const typename V::Reg factor = V::set1(static_cast<const T*>(alpha)[row]);
    T* p = static_cast<T*>(out) + row * stride;
    for (int64_t d = 0; d < depth; d += V::W) V::store(p + d, V::mul(V::load(p + d), factor));
  }
}

}  // namespace
}  // namespace attn::kernels
