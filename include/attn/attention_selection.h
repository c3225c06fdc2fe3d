// attention_selection: lists of key blocks that depend on the contents: the blocks, or keys, with the largest scores.
//
// ```cpp
// #include "attn/attention.h"
// #include "attn/attention_selection.h"
// int main() {
//   const attn::Tensor<float, 4> q({1, 8, 1000, 64}), k({1, 2, 1000, 64}), v({1, 2, 1000, 64});
//   attn::Tensor<float, 4> out({1, 8, 1000, 64});
//   const attn::BlockLists chosen = attn::select_blocks(q, k, {.key_block = 64, .count = 4, .causal = true});
//   attn::attention(q, k, v, out, {.causal = true, .blocks = chosen});
// }
// ```
//
// The largest are exact, in float64: of equal scores the one with the lower number is taken, and no score that is NaN
// or -infinity. With causal, query i is at position p_i = i + Lk - Lq, the last query at the last key; give the call of
// attention() causal and, where Lq < Lk, the alignment bottom_right. No gradient flows through a selection, as in MoBA.
// Results own their lists; views are borrowed until a function returns. The functions throw attn::Error with every
// reason.
//
// Sources: MoBA, Lu et al. 2025 (arXiv:2502.13189); the indexer of DeepSeek-V3.2 (arXiv:2512.02556).
#pragma once

#include "attn/attention_layouts.h"

#pragma GCC visibility push(default)
namespace attn {

struct BlockSelection {
  int64_t query_block = 1;  ///< queries that share a list; with 1 each query has its own, as in MoBA
  int64_t key_block = 0;    ///< keys per block
  int64_t count = 0;        ///< blocks of a list, MoBA's top-k; the queries' own blocks are among them
  bool causal = false;      ///< no block after the last query's; the blocks of the queries' positions always
};

/// For each query block the `count` key blocks of the largest score <mean of its queries, mean of the block's keys>.
///   q [B, H, Lq, D], k [B, Hk, Lk, D], as in attention(); any floating types. Lq <= Lk if causal.
/// If causal and its queries are in more than `count` blocks, a list has all of these.
BlockLists select_blocks(ConstView<4> q, ConstView<4> k, const BlockSelection& selection);

/// For each query the `count` keys of the largest of the given scores: lists with query_block = key_block = 1.
///   scores [B, H|1, Lq, Lk], floating. With causal, Lq <= Lk, only keys up to p_i.
BlockLists select_keys(ConstView<4> scores, int64_t count, bool causal = false);

}  // namespace attn
#pragma GCC visibility pop
