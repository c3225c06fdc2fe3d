// Attention of new tokens to those in a KV cache.
#pragma once

#include <span>
#include <vector>

#include "attn/nn.h"

namespace attn::nn {

/// A learned bias by distance: column c of [1, H, 1, n] is of key - query = first + c. As the operator takes any
/// strides, each query reads the same rows one column further left, and nothing of size Lq x Lk exists.
struct Distances {
  Value table = {};
  int64_t first = 0;

  ConstView<4> view(int64_t first_query, int64_t queries, int64_t keys) const {
    const int64_t origin = -first_query - first;
    return {static_cast<const char*>(table.data().data()) + origin * size_of(table.dtype()),
            table.dtype(),
            {1, table.shape()[1], queries, keys},
            {0, table.data().width(), -1, 1}};
  }
};

/// Where each of B sequences begins in the rows of x, then their number: packed ones, or L rows each.
inline std::vector<int64_t> starts_of(std::span<const int64_t> cu_seqlens, int64_t B, int64_t L) {
  std::vector<int64_t> starts(cu_seqlens.begin(), cu_seqlens.end());
  for (int64_t b = 0; cu_seqlens.empty() && b <= B; ++b) starts.push_back(b * L);
  return starts;
}

/// Keys and values of x [B, L, ..] join the cache, and x's queries see all that is cached.
Value attend_cached(Tape& tape, const QueryKeyValue& heads, const CacheSlot& slot, AttentionOptions options,
                    const Distances& distances, const Value& sink, AttentionTrace* trace);

/// Keys and values of this rank's part of a text join a cache that ranks share.
void append_shared(const QueryKeyValue& heads, const CacheSlot& slot);

}  // namespace attn::nn
