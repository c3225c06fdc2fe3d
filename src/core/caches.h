// The caches of the processor, as it describes them itself: when to ask for memory ahead depends on them, no result.
#pragma once

#include <cstdint>

namespace attn {

/// Bytes.
struct Caches {
  int64_t second;  // of one core
  int64_t third;   // shared by cores
};

/// What CPUID says; 0 where it says nothing.
Caches described_caches();

/// What to count on: the caches described, within bounds. Virtual machines describe none, or those of ten processors;
/// and of a larger third level a core has only a share.
const Caches& caches();

}  // namespace attn
