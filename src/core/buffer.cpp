// Aligned memory. Large buffers ask the kernel for huge pages: attention streams through keys and values, and with
// 4 KiB pages a good part of that time goes into address translation.
#include <cstdlib>
#include <cstring>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "attn/core.h"

namespace attn {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kHugeFrom = kHugePage / 4;  // the scratch of one thread (0.6 MiB at D = 128) gains from it already

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

void* allocate(size_t bytes) {
  const size_t alignment = bytes < kHugeFrom ? kCacheLine : kHugePage;
  const size_t rounded = round_up(bytes, alignment);
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
  memory_.reset(allocate(static_cast<size_t>(bytes)));
  bytes_ = bytes;
  if (zero) std::memset(data(), 0, static_cast<size_t>(bytes));
}

void Buffer::Free::operator()(void* pointer) const { std::free(pointer); }

}  // namespace attn
