// Decode of a handful of rows, their scores added in another order than a prefill's.
//
//   scores   W dims in lanes: W partial sums of each key and row, then the sums of W keys at once, which are as
//   few.kernel.h
//            has them from here on: keys in the lanes
// Loops: keys a few at a time, each read from end to end, as the processor's own prefetcher follows it; of these all
// rows, so that a key is loaded once. Bringing W keys into the lanes before the product, which a prefill's order of
// additions needs, takes twice as long as all of this where four rows share their keys. Requires: as few.kernel.h.
#pragma once

#include "kernels/few.kernel.h"

namespace attn::kernels {
namespace {

// Keys are asked for so far ahead, and where they do not follow each other in memory so many rows: 32768 keys of 8
// heads in bfloat16, 4 rows a head, 8.5 ms unasked, 6.3 asked 4 or 16 KiB ahead, 6.9 at 32.
constexpr int64_t kAcrossAheadBytes = 4096;
constexpr int64_t kAcrossAhead = 64;

/// The products of for_few_scores() with dims in the lanes.
template <class D>
struct Across {
  using Dot = D;
  using V = typename Dot::Acc;
  using Elem = typename Dot::Elem;
  using Key = typename Dot::Key;
  // Groups of W keys that are computed together: a group has chains of additions enough.
  template <int RT>
  static constexpr int kGroups = 1;

  template <int NG, int RT, bool kWhole>
  static inline void products(const ScoresArgs& args, int row, int64_t first, typename V::Reg (&acc)[NG][RT]) {
    static_assert(NG == 1);
    typename V::Reg partial[RT][V::W];
    partial_sums<RT, kWhole>(args, row, first, partial);
    ATTN_UNROLL
    for (int r = 0; r < RT; ++r) acc[0][r] = V::sums(partial[r]);
  }

 private:
  /// partial[r][i] = the partial sums of row `row` + r and key `first` + i; keys that do not exist repeat the last one.
  /// A function of its own: what its callers keep in registers would spill in the inner loop.
  template <int RT, bool kWhole>
  __attribute__((noinline)) static void partial_sums(const ScoresArgs& args, int row, int64_t first,
                                                     typename V::Reg (&partial)[RT][V::W]) {
    constexpr int kKeys = V::kFewAccumulators / RT < 4 ? V::kFewAccumulators / RT : 4;
    const int64_t stride = args.key_stride, depth = whole_steps(args.depth, V::W * Dot::kPack);
    const int64_t keys = kWhole ? V::W : args.count - first;
    const Elem* query = static_cast<const Elem*>(args.query) + row * depth;
    const Key* rows = static_cast<const Key*>(args.keys) + first * stride;
    const int64_t row_bytes = args.depth * int64_t{sizeof(Key)} + Dot::kScaleBytes;
    const int64_t stride_bytes = stride * int64_t{sizeof(Key)};
    const int64_t ahead = row_bytes == stride_bytes ? kAcrossAheadBytes / (row_bytes + 1) + 1 : kAcrossAhead;
    for (int i = 0; i < V::W; i += kKeys) {
      if (row == 0)
        prefetch_rows(reinterpret_cast<uintptr_t>(rows), row_bytes, stride_bytes, ahead + i, ahead + i + kKeys);
      const Key* key[kKeys];
      ATTN_UNROLL
      for (int j = 0; j < kKeys; ++j) key[j] = rows + (kWhole || i + j < keys ? i + j : keys - 1) * stride;
      add_products<RT, kKeys>(query, depth, key, i, partial);
    }
  }

  /// partial[r][at + j] = the partial sums of key j and row r.
  template <int RT, int KT>
  static inline void add_products(const Elem* query, int64_t depth, const Key* (&key)[KT], int at,
                                  typename V::Reg (&partial)[RT][V::W]) {
    typename V::Reg sum[RT][KT];
    ATTN_UNROLL
    for (int r = 0; r < RT; ++r) {
      ATTN_UNROLL
      for (int j = 0; j < KT; ++j) sum[r][j] = V::zero();
    }
    for (int64_t d = 0; d < depth; d += V::W * Dot::kPack) {
      typename Dot::Operand x[KT];
      ATTN_UNROLL
      for (int j = 0; j < KT; ++j) x[j] = Dot::operand(Dot::load_key(key[j] + d));
      ATTN_UNROLL
      for (int r = 0; r < RT; ++r) {
        const typename Dot::Operand q = Dot::load(query + r * depth + d);
        ATTN_UNROLL
        for (int j = 0; j < KT; ++j) sum[r][j] = Dot::step(q, x[j], sum[r][j]);
      }
    }
    ATTN_UNROLL
    for (int r = 0; r < RT; ++r) {
      ATTN_UNROLL
      for (int j = 0; j < KT; ++j) partial[r][at + j] = sum[r][j];
    }
  }
};

}  // namespace
}  // namespace attn::kernels
