// Aligned memory. Large buffers ask the kernel for huge pages: attention streams through keys and values, and with
// 4 KiB pages a good part of that time goes into address translation.
#include <cstdlib>
#include <cstring>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "attn/core.h"
#include "core/profile.h"

namespace attn {
namespace {

void* allocate(int64_t bytes) {
  constexpr size_t kCacheLine = 64;
  const size_t alignment = bytes < kHugeFrom ? kCacheLine : kHugePage;
  const auto rounded = static_cast<size_t>(occupied_bytes(bytes));
  void* memory = std::aligned_alloc(alignment, rounded);
  if (!memory) throw std::bad_alloc();
#ifdef __linux__
  // A hint: where it is refused, the memory is as good, only slower.
  if (alignment == kHugePage) madvise(memory, rounded, MADV_HUGEPAGE);
#endif
  return memory;
}

}  // namespace

Buffer::Buffer(int64_t bytes, bool zero) {
  if (bytes < 0) throw Error("Buffer", {"the size is " + std::to_string(bytes) + " bytes, must not be negative"});
  if (bytes == 0) return;
  memory_ = {allocate(bytes), Free{bytes}};
  count_memory(occupied_bytes(bytes));
  if (zero) std::memset(data(), 0, static_cast<size_t>(bytes));
}

void Buffer::Free::operator()(void* pointer) const {
  std::free(pointer);
  count_memory(-occupied_bytes(bytes));
}

}  // namespace attn
