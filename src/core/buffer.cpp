// Aligned memory. Large buffers ask the kernel for huge pages: attention streams through keys and values, and with
// 4 KiB pages a good part of that time goes into address translation.
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "attn/core.h"
#include "core/numbers.h"
#include "core/profile.h"
#include "core/shared_buffer.h"

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

/// Huge pages whose memory take() hands out from the beginning on. What it has handed out counts as in use, in whole
/// pages.
class SharedPages {
 public:
  static constexpr int64_t kBytes = int64_t{32} << 20;

  SharedPages() : memory_(static_cast<char*>(allocate(kBytes))) {}
  ~SharedPages() {
    std::free(memory_);
    count_memory(-round_up(used_, kHugePage));
  }
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;

  /// Null where there is no room.
  void* take(int64_t bytes) {
    constexpr int64_t kCacheLine = 64;
    if (used_ + bytes > kBytes) return nullptr;
    char* part = memory_ + used_;
    const int64_t used = used_ + round_up(bytes, kCacheLine);
    count_memory(round_up(used, kHugePage) - round_up(used_, kHugePage));
    used_ = used;
    return part;
  }

 private:
  char* memory_;
  int64_t used_ = 0;
};

std::mutex pages_mutex;
std::weak_ptr<SharedPages> last_pages;  // the one that is not full, as long as something is in it

std::shared_ptr<void> part_of_pages(int64_t bytes) {
  const std::lock_guard lock(pages_mutex);
  std::shared_ptr<SharedPages> pages = last_pages.lock();
  void* part = pages ? pages->take(bytes) : nullptr;
  if (!part) {
    pages = std::make_shared<SharedPages>();
    part = pages->take(bytes);
    last_pages = pages;
  }
  return {pages, part};
}

}  // namespace

SharedBuffer::SharedBuffer(int64_t bytes) : bytes_(bytes) {
#ifdef __SANITIZE_ADDRESS__
  constexpr int64_t kMost = 0;  // the sanitizer sees no access beyond a matrix where another matrix follows
#else
  constexpr int64_t kMost = SharedPages::kBytes / 4;  // larger ones waste little in pages of their own
#endif
  if (bytes >= kHugeFrom && bytes < kMost) {
    memory_ = part_of_pages(bytes);
    return;
  }
  const auto own = std::make_shared<Buffer>(bytes);
  memory_ = {own, own->data()};
}

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
