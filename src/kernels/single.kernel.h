// Decode of one row that no option touches: the same products as few.kernel.h, added in another order.
//
//   scores   W dims in lanes: a key's W partial sums, then the sums of W keys at once; keys are in the lanes from here
//   softmax  w = 2^(2 (s - reference)); sum += w
//   values   W dims in lanes: out[d] += p[key] v[key][d], keys in order
// Loops: keys in the order of memory, each read from end to end: those that follow each other one by one, as one stream
// that the processor's own prefetcher keeps up with; of heads that are between each other a few keys of each in turn.
// Bringing keys into the lanes before the product, which a prefill's order of additions needs, takes twice as long.
// Scores and weights are [count]: a tile of one row needs no other lanes. Of the row's state lane 0 alone is in use.
// Requires: keys and the query padded with zeros to whole vectors; out is [depth rounded up to W].
#pragma once

#include "kernels/few.kernel.h"

namespace attn::kernels {
namespace {

// Keys and values of a head that are read before the next head's.
constexpr int kSingleKeys = 4;
// Rows apart that come from memory are asked for so many rows ahead: 32768 keys of 8 heads, 26 ms unasked, 14 ms asked
// (bfloat16 17 and 8.4; Zen 4). Those that follow each other the processor finds itself, 15 % sooner than when asked.
constexpr int64_t kSingleAhead = 64;
// Of heads in turn so few, for the next head's rows come in between: 8 heads of 16 MiB of keys and values, float32 0.41
// ms head by head in pieces, 0.33 so (bfloat16 0.51, 0.39); 4 to 16 are alike, 2 too few.
constexpr int64_t kSingleHeadsAhead = 8;
// Rows of such a length are asked for wherever they are, as a few are read at once: 29 % longer unasked (D = 256,
// float32, 16384 keys).
constexpr int64_t kSingleLongBytes = 512;
// Heads whose partial sums are kept at once: 16 KiB with AVX-512.
constexpr int kSingleHeads = 16;

/// Asks for `keys` of `rows` from `first` on.
template <class Row>
inline void ask_for(const void* rows, int64_t stride, int64_t depth, int64_t first, int64_t keys) {
  constexpr int64_t bytes = sizeof(Row);
  prefetch_rows(reinterpret_cast<uintptr_t>(rows), depth * bytes, stride * bytes, first, first + keys);
}

/// True for keys that the processor does not foresee while it reads a few at once.
template <class Dot>
inline bool loses_its_way(int64_t stride, int64_t depth) {
  return stride != depth + Dot::kScaleBytes || depth * int64_t{sizeof(typename Dot::Key)} >= kSingleLongBytes;
}

/// x[i] = the partial sums of key first + i; keys beyond the last repeat it.
template <class Dot>
inline void single_products(const ScoresArgs& args, int64_t first, typename Dot::Acc::Reg* x) {
  using V = typename Dot::Acc;
  const auto* query = static_cast<const typename Dot::Elem*>(args.query);
  const typename Dot::Key* key[kSingleKeys];
  typename V::Reg sum[kSingleKeys];
  ATTN_UNROLL
  for (int i = 0; i < kSingleKeys; ++i) {
    const int64_t at = first + i < args.count ? first + i : args.count - 1;
    key[i] = static_cast<const typename Dot::Key*>(args.keys) + at * args.key_stride;
    sum[i] = V::zero();
  }
  for (int64_t d = 0; d < args.depth; d += V::W) {
    const typename V::Reg q = V::load(query + d);
    ATTN_UNROLL
    for (int i = 0; i < kSingleKeys; ++i) sum[i] = V::fma(q, Dot::load_key(key[i] + d), sum[i]);
  }
  ATTN_UNROLL
  for (int i = 0; i < kSingleKeys; ++i) x[i] = sum[i];
}

/// The scores of W keys from their partial sums; `maximum` is raised.
template <class Dot, class V = typename Dot::Acc>
inline void single_scores(const ScoresArgs& args, int64_t first, typename V::Reg (&x)[V::W], typename V::Reg& maximum) {
  using T = typename V::T;
  typename V::Reg s = V::sums(x);
  if constexpr (Dot::kScaleBytes > 0) s = V::mul(s, key_scales<Dot>(args, first));
  s = V::min(V::set1(static_cast<T>(args.highest)), s);
  maximum = V::max(maximum, s);  // lanes beyond the keys repeat the last
  T* scores = static_cast<T*>(args.scores) + first;
  if (args.count - first >= V::W) V::storeu(scores, s);
  else V::store_part(scores, args.count - first, s);
}

template <class V>
inline void raise_maximum(const ScoresArgs& args, typename V::Reg maximum) {
  using T = typename V::T;
  T* top = static_cast<T*>(args.maximum);
  const T largest = V::largest(maximum);
  if (top && largest > top[0]) top[0] = largest;
}

/// Up to kHeads heads: of each a few keys in turn. The sums of one stay in registers.
template <class Dot, int kHeads>
void scores_single_apart(const ScoresArgs* heads, int some) {
  using V = typename Dot::Acc;
  constexpr int64_t kAhead = kHeads == 1 ? kSingleAhead : kSingleHeadsAhead;
  const int count = kHeads == 1 ? 1 : some;
  typename V::Reg x[kHeads][V::W], maximum[kHeads];
  for (int h = 0; h < count; ++h) maximum[h] = V::set1(-infinity<typename V::T>());
  for (int64_t first = 0; first < heads[0].count; first += V::W) {
    ATTN_UNROLL
    for (int i = 0; i < V::W; i += kSingleKeys) {
      for (int h = 0; h < count; ++h) {
        const ScoresArgs& args = heads[h];
        if (args.from_memory && loses_its_way<Dot>(args.key_stride, args.depth))
          ask_for<typename Dot::Key>(args.keys, args.key_stride, args.depth, first + i + kAhead, kSingleKeys);
        single_products<Dot>(args, first + i, x[h] + i);
      }
    }
    for (int h = 0; h < count; ++h) single_scores<Dot>(heads[h], first, x[h], maximum[h]);
  }
  for (int h = 0; h < count; ++h) raise_maximum<V>(heads[h], maximum[h]);
}

/// Keys of NV vectors that follow each other: the query stays in registers, the keys are one stream.
template <class Dot, int NV>
void scores_single_stream(const ScoresArgs& args) {
  using V = typename Dot::Acc;
  const auto* query = static_cast<const typename Dot::Elem*>(args.query);
  typename V::Reg q[NV], maximum = V::set1(-infinity<typename V::T>());
  ATTN_UNROLL
  for (int v = 0; v < NV; ++v) q[v] = V::load(query + v * V::W);
  for (int64_t first = 0; first < args.count; first += V::W) {
    typename V::Reg x[V::W];
    ATTN_UNROLL
    for (int i = 0; i < V::W; ++i) {
      const int64_t at = first + i < args.count ? first + i : args.count - 1;
      const auto* key = static_cast<const typename Dot::Key*>(args.keys) + at * args.key_stride;
      x[i] = V::zero();
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) x[i] = V::fma(q[v], Dot::load_key(key + v * V::W), x[i]);
    }
    single_scores<Dot>(args, first, x, maximum);
  }
  raise_maximum<V>(args, maximum);
}

template <class Dot>
void scores_single(const ScoresArgs& args) {
  if (args.key_stride == args.depth + Dot::kScaleBytes) {
    if (args.depth == 4 * Dot::Acc::W) return scores_single_stream<Dot, 4>(args);
    if (args.depth == 8 * Dot::Acc::W) return scores_single_stream<Dot, 8>(args);
  }
  scores_single_apart<Dot, 1>(&args, 1);
}

template <class Dot>
void scores_single_of_heads(const ScoresArgs* heads, int count) {
  for (int h = 0; h < count; h += kSingleHeads)
    scores_single_apart<Dot, kSingleHeads>(heads + h, count - h < kSingleHeads ? count - h : kSingleHeads);
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
    typename V::T weight = weights[key];
    if constexpr (Values::kScaleBytes > 0) weight *= row_scale(values - d + args.value_stride);
    const typename V::Reg p = V::set1(weight);
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

/// The values of one head from row `first` on, `keys` at most; as many are asked for, `ahead` rows later.
template <class V, int kType>
inline void single_values_part(const ValuesArgs& args, int64_t first, int64_t keys, int64_t ahead) {
  using Value = typename Stored<kType>::Type;
  ValuesArgs part = args;
  part.weights = static_cast<const typename V::T*>(args.weights) + first;
  part.values = static_cast<const Value*>(args.values) + first * args.value_stride;
  part.count = args.count - first < keys ? args.count - first : keys;
  if (args.from_memory && args.value_stride != args.depth + FewValues<V, kType>::kScaleBytes)
    ask_for<Value>(args.values, args.value_stride, args.depth, first + ahead, part.count);
  single_values_columns<V, kType, 8>(part, 0);
}

template <class V, int kType>
void values_single(const ValuesArgs& args) {
  for (int64_t first = 0; first < args.count; first += kFewValueKeys)
    single_values_part<V, kType>(args, first, kFewValueKeys, kSingleAhead);
}

template <class V, int kType>
void values_single_of_heads(const ValuesArgs* heads, int count) {
  for (int64_t first = 0; first < heads[0].count; first += kSingleKeys)
    for (int h = 0; h < count; ++h) single_values_part<V, kType>(heads[h], first, kSingleKeys, kSingleHeadsAhead);
}

}  // namespace
}  // namespace attn::kernels
