// Asking for rows that will be read soon.
#pragma once

#include <cstdint>

namespace attn::kernels {

/// Prefetches rows [begin, end), line by line, into the second-level cache. An integer, for the rows may be outside of
/// the array. Always inline: GCC takes a call that only prefetches for one without effect, and removes it.
__attribute__((always_inline)) inline void prefetch_rows(uintptr_t rows, int64_t row_bytes, int64_t stride_bytes,
                                                         int64_t begin, int64_t end) {
  constexpr int64_t kLineBytes = 64;
  for (int64_t i = begin; i < end; ++i)
    for (int64_t at = 0; at < row_bytes; at += kLineBytes)
      __builtin_prefetch(reinterpret_cast<const void*>(rows + i * stride_bytes + at), 0, 2);
}

}  // namespace attn::kernels
