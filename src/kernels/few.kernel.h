// Decode: a handful of rows against many keys. The same arithmetic as the panel kernels, in the same order for every
// row, with other things in the lanes; a token decoded alone therefore equals the same token in a long prompt, bitwise.
//
//   scores   W keys in lanes: blocks of W keys x W steps are transposed in registers, then every row adds
//            k[d] * q[row][d] for d in order; exponentials as well, then a second transpose brings the rows into lanes
//   values   W dims in lanes: out[row][d] += p[key][row] v[key][d], keys in order, rows x vectors in registers
// Requires: rows <= W; keys and queries padded with zeros to whole vectors of steps; out is [rows][depth rounded up to
// W], and value rows are read up to `depth` only.
#pragma once

#include "kernels/prefetch.h"
#include "kernels/rows.kernel.h"
#include "kernels/softmax.kernel.h"

namespace attn::kernels {
namespace {

/// The queries stay row-major, [rows][n rounded up to whole vectors], scaled.
template <class V>
void pack_query_few(const RowsArgs& args) {
  RowsArgs rows = args;
  rows.dense_stride = whole_steps(args.n, V::W);
  load_rows<V>(rows);
}

/// The accumulator of a panel of few rows -> rows.
template <class V>
void unpack_out_few(const RowsArgs& args) {
  RowsArgs rows = args;
  rows.dense_stride = whole_steps(args.n, V::W);
  store_rows<V>(rows);
}

template <class V>
int64_t index_in_rows(int64_t d, int64_t row, int64_t depth, int64_t /*width*/) {
  return row * whole_steps(depth, V::W) + d;
}

// Keys are asked for this far ahead, in the order of memory: the rows of a block are read across, which the processor's
// own prefetcher does not follow (13 of 26 GB/s; 8 KiB ahead costs half of the gain).
constexpr int64_t kFewAheadBytes = 16384;
// Keys whose values stay in the first-level cache while tiles of rows and dims pass over them: 16 take 53 cycles a key
// for 8 rows from memory, 32 take 90.
constexpr int64_t kFewValueKeys = 16;
// Values of one row are read once, in order: the processor's prefetcher follows contiguous rows and loses the way in
// strided ones (8 heads of [B, L, H, D], 32768 keys: 26 ms; 18 ms where they are asked for so many rows ahead).
constexpr int64_t kFewValuesAhead = 64;

/// Reads a byte of every line, in the order of memory, for tiles that will not.
inline void few_touch(const void* rows, int64_t row_bytes, int64_t stride_bytes, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t at = 0; at < row_bytes; at += 64)
      (void)*(static_cast<const volatile char*>(rows) + i * stride_bytes + at);
}

/// The scales of W kInt8 keys from `first` on; lanes beyond the keys repeat the last.
template <class Dot>
inline typename Dot::Acc::Reg key_scales(const ScoresArgs& args, int64_t first) {
  using V = typename Dot::Acc;
  alignas(64) typename V::T scales[V::W];
  for (int i = 0; i < V::W; ++i) {
    const int64_t key = first + i < args.count ? first + i : args.count - 1;
    scales[i] = row_scale(static_cast<const int8_t*>(args.keys) + (key + 1) * args.key_stride);
  }
  return V::load(scales);
}

/// The products of for_few_scores() in the order of a prefill. Other orders are classes of the same shape.
template <class D>
struct InOrder {
  using Dot = D;
  using V = typename Dot::Acc;
  using Elem = typename Dot::Elem;
  using Key = typename Dot::Key;
  // Groups of W keys that are computed together: a single chain of additions would wait for its own latency.
  template <int RT>
  static constexpr int kGroups = RT < 4 ? 4 / RT : 1;

  /// Scores of RT rows, from `row` on, against NG groups of W keys each, from `first` on: acc[g][r] has keys in lanes.
  /// The last group may reach beyond the keys: its last lanes repeat the last key.
  template <int NG, int RT, bool kWhole>
  static inline void products(const ScoresArgs& args, int row, int64_t first, typename V::Reg (&acc)[NG][RT]) {
    constexpr int64_t kBlock = V::W * Dot::kPack;  // dims of one transposed block
    const int64_t stride = args.key_stride, depth = whole_steps(args.depth, kBlock);
    const int64_t row_bytes = depth * int64_t{sizeof(Key)};
    const Elem* query = static_cast<const Elem*>(args.query) + row * depth;
    const Key* keys = static_cast<const Key*>(args.keys) + first * stride;
    ATTN_UNROLL
    for (int g = 0; g < NG; ++g) {
      ATTN_UNROLL
      for (int r = 0; r < RT; ++r) acc[g][r] = V::zero();
    }
    if (depth == 0) return;
    const int64_t stride_bytes = stride * int64_t{sizeof(Key)};
    const int64_t near = kFewAheadBytes / row_bytes, next = NG * V::W;  // rows; at least those of the next call
    const uintptr_t ahead = reinterpret_cast<uintptr_t>(keys) + (near > next ? near : next) * stride_bytes;
    const int64_t share = (V::W * kBlock + depth - 1) / depth;  // rows to ask for at each block
    int64_t asked = 0;
    for (int64_t d = 0; d < depth; d += kBlock, query += kBlock) {
      ATTN_UNROLL
      for (int g = 0; g < NG; ++g, asked += share) {
        if (row == 0) prefetch_rows(ahead, row_bytes, stride_bytes, asked, asked + share);
        typename V::Reg x[V::W];
        ATTN_UNROLL
        for (int i = 0; i < V::W; ++i) {
          const int64_t key = g * V::W + i, last = args.count - first - 1;
          x[i] = Dot::load_key(keys + (kWhole || key < last ? key : last) * stride + d);
        }
        V::transpose(x);
        ATTN_UNROLL
        for (int step = 0; step < V::W; ++step) {
          ATTN_UNROLL
          for (int r = 0; r < RT; ++r)
            acc[g][r] =
                Dot::step(Dot::broadcast(query + r * depth + step * Dot::kPack), Dot::operand(x[step]), acc[g][r]);
        }
      }
    }
  }
};

/// NG groups of W keys from `first` on, of which `keys` exist: finish(key, keys, acc) for each, where acc[row] has the
/// scores of the keys in its lanes.
template <class Products, int NG, int RT, bool kWhole, class Finish>
inline void few_groups(const ScoresArgs& args, int64_t first, int64_t keys, Finish& finish) {
  using Dot = typename Products::Dot;
  using V = typename Dot::Acc;
  const typename V::Reg highest = V::set1(static_cast<typename V::T>(args.highest));
  const typename V::Reg scale = V::set1(static_cast<typename V::T>(args.scale));
  typename V::Reg scores[NG][V::W];
  typename V::Reg factor[NG];
  for (int g = 0; g < NG; ++g) {
    if constexpr (Dot::kScaleBytes > 0) factor[g] = key_scales<Dot>(args, first + g * V::W);
    else factor[g] = scale;
  }
  for (int row = 0; row < args.rows; row += RT) {
    typename V::Reg acc[NG][RT];
    Products::template products<NG, RT, kWhole>(args, row, first, acc);
    for (int g = 0; g < NG; ++g) {
      ATTN_UNROLL
      for (int r = 0; r < RT; ++r)
        scores[g][row + r] =
            V::min(highest, Dot::kPack > 1 || Dot::kScaleBytes > 0 ? V::mul(acc[g][r], factor[g]) : acc[g][r]);
    }
  }
  for (int g = 0; g < NG; ++g) finish(first + g * V::W, kWhole ? V::W : keys, scores[g]);
}

/// All keys. RT >= rows, or the largest there is; rows beyond the last are computed from whatever is there.
template <class Products, int RT, class Finish>
inline void for_few_scores(const ScoresArgs& args, Finish& finish) {
  constexpr int W = Products::V::W, NG = Products::template kGroups<RT>;
  int64_t first = 0;
  for (; first + NG * W <= args.count; first += NG * W) few_groups<Products, NG, RT, true>(args, first, NG * W, finish);
  if constexpr (NG > 1)
    for (; first + W <= args.count; first += W) few_groups<Products, 1, RT, true>(args, first, W, finish);
  if (first < args.count) few_groups<Products, 1, RT, false>(args, first, args.count - first, finish);
}

template <class Products, class Finish>
inline void for_few_scores(const ScoresArgs& args, Finish& finish) {
  constexpr int kRows = Products::V::kFewRows;
  if (args.rows == 1) return for_few_scores<Products, 1>(args, finish);
  if (args.rows == 2) return for_few_scores<Products, 2>(args, finish);
  if (args.rows == 3 || args.rows == 5 || args.rows == 6) return for_few_scores<Products, 3>(args, finish);
  if (args.rows <= 4 || kRows < 8) return for_few_scores<Products, 4>(args, finish);
  if constexpr (kRows == 8) return for_few_scores<Products, 8>(args, finish);
}

/// Turns rows in registers, keys in lanes, into the order of a tile: rows in lanes; lanes beyond the rows are 0.
template <class V>
inline void few_transpose(int rows, typename V::Reg (&acc)[V::W]) {
  for (int r = rows; r < V::W; ++r) acc[r] = V::zero();
  V::transpose(acc);
}

template <class Products>
void scores_few(const ScoresArgs& args) {
  using V = typename Products::V;
  using T = typename V::T;
  T* maxima = static_cast<T*>(args.maximum);
  typename V::Reg maximum = maxima ? V::load(maxima) : V::zero();
  auto store = [&](int64_t key, int64_t keys, typename V::Reg(&acc)[V::W]) {
    few_transpose<V>(args.rows, acc);
    for (int64_t i = 0; i < keys; ++i) {
      maximum = V::max(maximum, acc[i]);
      V::store(static_cast<T*>(args.scores) + (key + i) * V::W, acc[i]);
    }
  };
  for_few_scores<Products>(args, store);
  if (maxima) V::store(maxima, maximum);
}

/// scores_softmax with the exponentials taken while the keys are in the lanes: rows would fill a few of them only.
template <class Products>
bool scores_softmax_few(const FusedArgs& args, double limit) {
  using Dot = typename Products::Dot;
  using V = typename Dot::Acc;
  using T = typename V::T;
  using Reg = typename V::Reg;
  using Format = WeightFormat<Dot>;
  const T* reference = static_cast<const T*>(args.reference);
  auto* weights = static_cast<typename Format::Weight*>(args.weights);
  Reg maximum[V::W];
  for (int r = 0; r < args.in.rows; ++r) maximum[r] = V::set1(-infinity<T>());
  Reg sum = V::load(static_cast<const T*>(args.sum));
  auto softmax = [&](int64_t key, int64_t keys, Reg(&acc)[V::W]) {
    for (int r = 0; r < args.in.rows; ++r) {
      maximum[r] = V::max(maximum[r], acc[r]);  // lanes beyond the keys repeat the last
      acc[r] = weight<V>(V::sub(acc[r], V::set1(reference[r])));
    }
    few_transpose<V>(args.in.rows, acc);
    int64_t i = 0;
    for (; i + 2 <= keys; i += 2) {
      sum = V::add(V::add(sum, acc[i]), acc[i + 1]);
      Format::store(weights, key + i, V::W, 0, acc[i], acc[i + 1]);
    }
    if (i < keys) {
      sum = V::add(sum, acc[i]);
      Format::store_last(weights, key + i, V::W, 0, acc[i]);
    }
  };
  for_few_scores<Products>(args.in, softmax);
  V::store(static_cast<T*>(args.sum), sum);
  uint64_t above = 0;
  for (int r = 0; r < args.in.rows; ++r)
    above |= V::bits(V::greater(maximum[r], V::set1(reference[r] + static_cast<T>(limit))));
  return above == 0;
}

// ----------------------------------------------------------------------------------------------------------- values

/// The first n < W elements at p, then zeros; reads nothing beyond them.
template <class V, int kType>
inline typename V::Reg load_part(const void* p, int64_t n) {
  alignas(64) typename V::T part[V::W] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = load_element<typename V::T>(kType, p, i);
  return V::load(part);
}

/// How values_few_rows takes values of V's own type, and others, which it widens; bf16.kernel.h has the pairs.
template <class V, int kType>
struct FewValues {
  using Dot = FmaDot<V>;
  using Value = typename Stored<kType>::Type;
  using Reg = typename V::Reg;
  static constexpr int kLeast = 1;  // vectors that are loaded together
  static constexpr int kScaleBytes = kType == kInt8 ? kRowScaleBytes : 0;

  template <int VT>
  static void load(const Value* values, int64_t /*stride*/, int64_t /*keys*/, int64_t depth, Reg (&x)[VT]) {
    ATTN_UNROLL
    for (int v = 0; v < VT; ++v)
      x[v] = VT == 1 && depth < V::W ? load_part<V, kType>(values, depth) : load_vector<V>(kType, values, v * V::W);
  }
};

/// RT rows x VT vectors of the output over all keys of `args`. A function of its own: what its callers keep in
/// registers would spill in the loop.
template <class Values, int RT, int VT>
__attribute__((noinline)) void few_values_tile(const ValuesArgs& args, int row, int64_t d, int64_t out_stride) {
  using Dot = typename Values::Dot;
  using V = typename Dot::Acc;
  using Elem = typename Dot::Elem;
  constexpr int kPack = Dot::kPack;
  typename V::T* out = static_cast<typename V::T*>(args.out) + row * out_stride + d;
  const Elem* weights = static_cast<const Elem*>(args.weights) + row * kPack;
  const auto* values = static_cast<const typename Values::Value*>(args.values) + d;
  typename V::Reg c[RT][VT];
  ATTN_UNROLL
  for (int r = 0; r < RT; ++r) {
    ATTN_UNROLL
    for (int v = 0; v < VT; ++v) c[r][v] = V::load(out + r * out_stride + v * V::W);
  }
  for (int64_t key = 0; key < args.count; key += kPack, weights += kPack * V::W, values += kPack * args.value_stride) {
    typename Dot::Operand x[VT];
    Values::template load<VT>(values, args.value_stride, args.count - key, args.depth - d, x);
    if constexpr (Values::kScaleBytes > 0) {
      const typename V::Reg scale = V::set1(row_scale(values - d + args.value_stride));
      ATTN_UNROLL
      for (int v = 0; v < VT; ++v) x[v] = V::mul(scale, x[v]);
    }
    ATTN_UNROLL
    for (int r = 0; r < RT; ++r) {
      const typename Dot::Operand p = Dot::broadcast(weights + kPack * r);
      ATTN_UNROLL
      for (int v = 0; v < VT; ++v) c[r][v] = Dot::step(p, x[v], c[r][v]);
    }
  }
  ATTN_UNROLL
  for (int r = 0; r < RT; ++r) {
    ATTN_UNROLL
    for (int v = 0; v < VT; ++v) V::store(out + r * out_stride + v * V::W, c[r][v]);
  }
}

/// All columns from d on, VT vectors at a time, then fewer.
template <class Values, int RT, int VT>
inline void few_values_columns(const ValuesArgs& args, int row, int64_t d, int64_t out_stride) {
  constexpr int W = Values::Dot::Acc::W;
  for (; d + VT * W <= args.depth; d += VT * W) few_values_tile<Values, RT, VT>(args, row, d, out_stride);
  if constexpr (VT > Values::kLeast) return few_values_columns<Values, RT, VT / 2>(args, row, d, out_stride);
  for (; d < args.depth; d += W) few_values_tile<Values, RT, 1>(args, row, d, out_stride);
}

/// Vectors of the output that RT rows keep in registers: a power of two, at most 8.
template <class V, int RT>
constexpr int few_vectors() {
  int vectors = 1;
  while (vectors < 8 && 2 * vectors * RT <= V::kFewAccumulators) vectors *= 2;
  return vectors;
}

template <class Values, int RT>
inline void few_values_rows(const ValuesArgs& args, int row, int64_t out_stride) {
  using V = typename Values::Dot::Acc;
  for (; row + RT <= args.rows; row += RT)
    few_values_columns<Values, RT, few_vectors<V, RT>()>(args, row, 0, out_stride);
  if constexpr (RT == 4) {
    if (args.rows - row == 3) return few_values_columns<Values, 3, few_vectors<V, 3>()>(args, row, 0, out_stride);
  }
  if constexpr (RT > 1) few_values_rows<Values, RT / 2>(args, row, out_stride);
}

template <class Values>
void values_few(const ValuesArgs& args) {
  using V = typename Values::Dot::Acc;
  using Elem = typename Values::Dot::Elem;
  const int64_t out_stride = whole_steps(args.depth, V::W);
  using Value = typename Values::Value;
  constexpr int64_t bytes = sizeof(Value);
  ValuesArgs part = args;
  for (int64_t key = 0; key < args.count; key += kFewValueKeys) {
    part.weights = static_cast<const Elem*>(args.weights) + key * V::W;
    part.values = static_cast<const Value*>(args.values) + key * args.value_stride;
    part.count = args.count - key < kFewValueKeys ? args.count - key : kFewValueKeys;
    const int64_t row_bytes = args.depth * bytes + Values::kScaleBytes, stride_bytes = args.value_stride * bytes;
    if (args.rows > 2) few_touch(part.values, row_bytes, stride_bytes, part.count);
    else if (row_bytes != stride_bytes)
      prefetch_rows(reinterpret_cast<uintptr_t>(part.values), row_bytes, stride_bytes, kFewValuesAhead,
                    kFewValuesAhead + part.count);
    few_values_rows<Values, V::kFewRows>(part, 0, out_stride);
  }
}

template <class V>
void rescale_few(void* out, const void* alpha, int /*width*/, int rows, int64_t depth) {
  using T = typename V::T;
  const int64_t stride = whole_steps(depth, V::W);
  for (int row = 0; row < rows; ++row) {
    const typename V::Reg factor = V::set1(static_cast<const T*>(alpha)[row]);
    T* p = static_cast<T*>(out) + row * stride;
    for (int64_t d = 0; d < depth; d += V::W) V::store(p + d, V::mul(V::load(p + d), factor));
  }
}

}  // namespace
}  // namespace attn::kernels
