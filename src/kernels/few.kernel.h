// Decode: a handful of rows against many keys. The same arithmetic as the panel kernels, in the same order for every
// row, with other things in the lanes; a token decoded alone therefore equals the same token in a long prompt, bitwise.
//
//   scores   W keys in lanes: blocks of W keys x W steps are transposed in registers, then every row adds
//            k[d] * q[row][d] for d in order; a second transpose brings the rows into lanes for the epilogue
//   values   W dims in lanes: out[row][d] += p[key][row] v[key][d], keys in order, rows x vectors in registers
// Requires: rows <= W; depth of the keys a multiple of W steps (pack_keys pads); out is [rows][depth rounded up to W],
// and value rows are read up to `depth` only.
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

// Groups of W keys whose chains of additions are in flight together; one group alone waits for its own latency.
constexpr int kFewGroups = 4;

/// acc[r] += sum over the steps of a block: x[step] * query[r][step], RT rows in registers.
template <class Dot, int RT>
inline void few_accumulate(const typename Dot::Acc::Reg (&x)[Dot::Acc::W], const typename Dot::Elem* query,
                           int64_t query_stride, typename Dot::Acc::Reg* acc) {
  typename Dot::Acc::Reg c[RT];
  ATTN_UNROLL
  for (int r = 0; r < RT; ++r) c[r] = acc[r];
  ATTN_UNROLL
  for (int step = 0; step < Dot::Acc::W; ++step) {
    ATTN_UNROLL
    for (int r = 0; r < RT; ++r)
      c[r] = Dot::step(Dot::broadcast(query + r * query_stride + step * Dot::kPack), Dot::operand(x[step]), c[r]);
  }
  ATTN_UNROLL
  for (int r = 0; r < RT; ++r) acc[r] = c[r];
}

/// Hands the scores of up to W keys, rows in lanes, to the epilogue.
template <class V, class Epilogue>
inline void few_finish(typename V::Reg (&acc)[V::W], const ScoresArgs& args, int64_t key, int64_t keys,
                       const Epilogue& epilogue) {
  using T = typename V::T;
  const typename V::Reg highest = V::set1(static_cast<T>(args.highest));
  const typename V::Reg scale = V::set1(static_cast<T>(args.scale));
  for (int r = 0; r < V::W; ++r) acc[r] = V::min(highest, args.scale != 1 ? V::mul(acc[r], scale) : acc[r]);
  V::transpose(acc);
  int64_t i = 0;
  for (; i + 2 <= keys; i += 2) {
    const typename V::Reg pair[2][1] = {{acc[i]}, {acc[i + 1]}};
    epilogue.template apply<2>(key + i, pair);
  }
  if (i < keys) {
    const typename V::Reg last[1][1] = {{acc[i]}};
    epilogue.template apply<1>(key + i, last);
  }
}

template <class Dot, class Epilogue>
inline void for_few_scores(const ScoresArgs& args, const Epilogue& epilogue) {
  using V = typename Dot::Acc;
  constexpr int64_t kBlock = V::W * Dot::kPack;  // dims of one transposed block
  const auto* query = static_cast<const typename Dot::Elem*>(args.query);
  for (int64_t first = 0; first < args.count; first += kFewGroups * V::W) {
    const int64_t left = args.count - first;
    typename V::Reg acc[kFewGroups][V::W];
    for (int g = 0; g < kFewGroups; ++g)
      for (int r = 0; r < V::W; ++r) acc[g][r] = V::zero();
    for (int64_t d = 0; d < args.depth; d += kBlock) {
      for (int g = 0; g < kFewGroups && g * V::W < left; ++g) {
        const int64_t keys = left - g * V::W;
        const auto* base = static_cast<const typename Dot::Elem*>(args.keys) + (first + g * V::W) * args.key_stride + d;
        typename V::Reg x[V::W];
        ATTN_UNROLL
        for (int i = 0; i < V::W; ++i)
          x[i] = i < keys ? V::loadu(reinterpret_cast<const typename V::T*>(base + i * args.key_stride)) : V::zero();
        V::transpose(x);
        int r = 0;
        for (; r + 4 <= args.rows; r += 4)
          few_accumulate<Dot, 4>(x, query + r * args.depth + d, args.depth, acc[g] + r);
        for (; r + 2 <= args.rows; r += 2)
          few_accumulate<Dot, 2>(x, query + r * args.depth + d, args.depth, acc[g] + r);
        for (; r < args.rows; ++r) few_accumulate<Dot, 1>(x, query + r * args.depth + d, args.depth, acc[g] + r);
      }
    }
    for (int g = 0; g < kFewGroups && g * V::W < left; ++g) {
      const int64_t keys = left - g * V::W < V::W ? left - g * V::W : V::W;
      few_finish<V>(acc[g], args, first + g * V::W, keys, epilogue);
    }
  }
}

/// The products of few rows, for scores_softmax.
template <class D>
struct FewProducts {
  using Dot = D;
  template <int NV, class Epilogue>
  static void run(const ScoresArgs& args, const Epilogue& epilogue) {
    if constexpr (NV == 1) for_few_scores<D>(args, epilogue);
  }
};

template <class Dot>
void scores_few(const ScoresArgs& args) {
  using V = typename Dot::Acc;
  for_few_scores<Dot>(args, StoreScores<V, 1>{static_cast<typename V::T*>(args.scores)});
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
