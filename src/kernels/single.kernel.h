// Decode of one row that no option touches: the same products as few.kernel.h, added in another order.
//
//   scores   W dims in lanes: a key's W partial sums, then the sums of W keys at once; keys are in the lanes from here
//   softmax  w = 2^(2 (s - reference)); sum += w
//   values   W dims in lanes: out[d] += p[key] v[key][d], keys in order
// Loops: keys four at a time, each read from end to end, as the processor's own prefetcher follows it. Bringing keys
// into the lanes before the product, which a prefill's order of additions needs, takes twice as long as all of this.
// Scores and weights are [count]: a tile of one row needs no other lanes. Of the row's state lane 0 alone is in use.
// Requires: keys and the query padded with zeros to whole vectors; out is [depth rounded up to W].
#pragma once

#include "kernels/few.kernel.h"

namespace attn::kernels {
namespace {

// Rows that do not follow each other in memory are asked for so many rows ahead: 32768 keys of 8 heads, 26 ms unasked,
// 14 ms asked (bfloat16 17 and 8.4; Zen 4).
constexpr int64_t kSingleAhead = 64;
// Those that do the processor follows, but for long keys, of which four are read at once: 18.4 ms unasked, 13.6 asked
// so far ahead (bfloat16, half as long: 5.8 and 6.8).
constexpr int64_t kSingleLongBytes = 512;
constexpr int64_t kSingleAheadBytes = 4096;

/// x[i] = the partial sums of key i of KT keys.
template <class Dot, int KT>
inline void single_products(const typename Dot::Elem* query, const typename Dot::Key* (&key)[KT], int64_t depth,
                            typename Dot::Acc::Reg* x) {
  using V = typename Dot::Acc;
  typename V::Reg sum[KT];
  ATTN_UNROLL
  for (int i = 0; i < KT; ++i) sum[i] = V::zero();
  for (int64_t d = 0; d < depth; d += V::W) {
    const typename V::Reg q = V::load(query + d);
    ATTN_UNROLL
    for (int i = 0; i < KT; ++i) sum[i] = V::fma(q, Dot::load_key(key[i] + d), sum[i]);
  }
  ATTN_UNROLL
  for (int i = 0; i < KT; ++i) x[i] = sum[i];
}

template <class Dot>
void scores_single(const ScoresArgs& args) {
  using V = typename Dot::Acc;
  using T = typename V::T;
  using Key = typename Dot::Key;
  constexpr int kKeys = 4;  // 4 chains of additions are as long as one waits
  const int64_t depth = whole_steps(args.depth, V::W);
  const int64_t row_bytes = args.depth * int64_t{sizeof(Key)}, stride_bytes = args.key_stride * int64_t{sizeof(Key)};
  const int64_t ahead = row_bytes != stride_bytes       ? kSingleAhead
                        : row_bytes >= kSingleLongBytes ? kSingleAheadBytes / row_bytes + 1
                                                        : 0;
  const typename V::Reg highest = V::set1(static_cast<T>(args.highest));
  const auto* query = static_cast<const typename Dot::Elem*>(args.query);
  T* scores = static_cast<T*>(args.scores);
  typename V::Reg maximum = V::set1(-infinity<T>());
  for (int64_t first = 0; first < args.count; first += V::W) {
    const int64_t keys = args.count - first < V::W ? args.count - first : V::W;
    const Key* rows = static_cast<const Key*>(args.keys) + first * args.key_stride;
    if (ahead > 0) prefetch_rows(reinterpret_cast<uintptr_t>(rows), row_bytes, stride_bytes, ahead, ahead + keys);
    typename V::Reg x[V::W];
    ATTN_UNROLL
    for (int i = 0; i < V::W; i += kKeys) {
      const Key* key[kKeys];
      ATTN_UNROLL
      for (int j = 0; j < kKeys; ++j) key[j] = rows + (i + j < keys ? i + j : keys - 1) * args.key_stride;
      single_products<Dot, kKeys>(query, key, depth, x + i);
    }
    const typename V::Reg s = V::min(highest, V::sums(x));
    maximum = V::max(maximum, s);  // lanes beyond the keys repeat the last
    if (keys == V::W) V::storeu(scores + first, s);
    else V::store_part(scores + first, keys, s);
  }
  T* top = static_cast<T*>(args.maximum);
  const T largest = V::largest(maximum);
  if (top && largest > top[0]) top[0] = largest;
}

template <class V>
void softmax_single(const SoftmaxArgs& args) {
  using T = typename V::T;
  const T top = static_cast<const T*>(args.reference)[0];
  const typename V::Reg reference = V::set1(top == -infinity<T>() ? 0 : top);
  const T* scores = static_cast<const T*>(args.scores);
  T* weights = static_cast<T*>(args.weights);
  typename V::Reg sum = V::zero();
  int64_t key = 0;
  for (; key + V::W <= args.count; key += V::W) {
    const typename V::Reg w = weight<V>(V::sub(V::load(scores + key), reference));
    sum = V::add(sum, w);
    V::store(weights + key, w);
  }
  if (const int64_t rest = args.count - key; rest > 0) {
    const typename V::Reg w = weight<V>(V::sub(V::load_part(scores + key, rest), reference));
    V::store_part(weights + key, rest, w);
    sum = V::add(sum, V::load_part(weights + key, rest));
  }
  static_cast<T*>(args.sum)[0] += V::sum(sum);
}

/// VT vectors of the output over all keys of `args`.
template <class V, int kType, int VT>
inline void single_values_tile(const ValuesArgs& args, int64_t d) {
  using Values = FewValues<V, kType>;
  using T = typename V::T;
  T* out = static_cast<T*>(args.out) + d;
  const T* weights = static_cast<const T*>(args.weights);
  const auto* values = static_cast<const typename Values::Value*>(args.values) + d;
  typename V::Reg c[VT];
  ATTN_UNROLL
  for (int v = 0; v < VT; ++v) c[v] = V::load(out + v * V::W);
  for (int64_t key = 0; key < args.count; ++key, values += args.value_stride) {
    typename V::Reg x[VT];
    Values::template load<VT>(values, args.value_stride, 1, args.depth - d, x);
    const typename V::Reg p = V::set1(weights[key]);
    ATTN_UNROLL
    for (int v = 0; v < VT; ++v) c[v] = V::fma(p, x[v], c[v]);
  }
  ATTN_UNROLL
  for (int v = 0; v < VT; ++v) V::store(out + v * V::W, c[v]);
}

/// All columns from d on, VT vectors at a time, then fewer.
template <class V, int kType, int VT>
inline void single_values_columns(const ValuesArgs& args, int64_t d) {
  for (; d + VT * V::W <= args.depth; d += VT * V::W) single_values_tile<V, kType, VT>(args, d);
  if constexpr (VT > 1) return single_values_columns<V, kType, VT / 2>(args, d);
  if (d < args.depth) single_values_tile<V, kType, 1>(args, d);
}

template <class V, int kType>
void values_single(const ValuesArgs& args) {
  using Value = typename Stored<kType>::Type;
  const int64_t row_bytes = args.depth * int64_t{sizeof(Value)},
                stride_bytes = args.value_stride * int64_t{sizeof(Value)};
  ValuesArgs part = args;
  for (int64_t key = 0; key < args.count; key += kFewValueKeys) {
    part.weights = static_cast<const typename V::T*>(args.weights) + key;
    part.values = static_cast<const Value*>(args.values) + key * args.value_stride;
    part.count = args.count - key < kFewValueKeys ? args.count - key : kFewValueKeys;
    if (row_bytes != stride_bytes)
      prefetch_rows(reinterpret_cast<uintptr_t>(part.values), row_bytes, stride_bytes, kSingleAhead,
                    kSingleAhead + part.count);
    single_values_columns<V, kType, 8>(part, 0);
  }
}

}  // namespace
}  // namespace attn::kernels
