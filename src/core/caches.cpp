#include "core/caches.h"

#include <algorithm>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace attn {

Caches described_caches() {
  Caches caches{};
#if defined(__x86_64__)
  constexpr unsigned kMostCaches = 16;               // a virtual machine may describe one for ever
  for (const unsigned leaf : {0x4u, 0x8000001du}) {  // Intel's and AMD's, alike but for the number
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    for (unsigned i = 0; i < kMostCaches && __get_cpuid_count(leaf, i, &eax, &ebx, &ecx, &edx); ++i) {
      if ((eax & 31) == 0) break;  // the last one is after us
      const int64_t line = (ebx & 0xfff) + 1, partitions = (ebx >> 12 & 0x3ff) + 1, ways = (ebx >> 22) + 1;
      const int64_t bytes = line * partitions * ways * (int64_t{ecx} + 1);
      if ((eax >> 5 & 7) == 2) caches.second = bytes;
      if ((eax >> 5 & 7) == 3) caches.third = bytes;
    }
    if (caches.second > 0) break;
  }
#endif
  return caches;
}

const Caches& caches() {
  static const Caches usable = [] {
    constexpr int64_t kMiB = int64_t{1} << 20;
    const Caches found = described_caches();
    const int64_t second = found.second > 0 ? std::clamp(found.second, kMiB / 4, 4 * kMiB) : kMiB;
    const int64_t third = found.third > 0 ? std::clamp(found.third, 2 * second, 32 * kMiB) : 32 * kMiB;
    return Caches{second, third};
  }();
  return usable;
}

}  // namespace attn
