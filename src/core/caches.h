// The caches of the processor, as it describes them itself: when to ask for memory ahead depends on them, no result.
#pragma once

#include <cstdint>

namespace attn {

/// Bytes.
struct Caches {
  int64_t second;  // of one core
  int64_t third;   // shared by cores
};

/// What CPUID says; 0 where it says nothing. (sysconf() of glibc 2.36 says 320 MiB of an EPYC whose cores share 32.)
Caches described_caches();

/// What to count on: the caches described, within bounds. Some virtual machines describe none, and of a
/// larger third level a core has only a share.
const Caches& caches();

}  // namespace attn
