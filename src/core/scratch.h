// Working memory for kernels: one grow-only arena a thread, so that a call in the steady state allocates nothing.
#pragma once

#include <cstdint>

#include "attn/tensor.h"
#include "core/numbers.h"

namespace attn {

/// At least `bytes` bytes, 64-byte aligned, content undefined. One task at a time owns all of it: the next call on the
/// same thread hands out the same memory. Freed when the thread ends. Throws std::bad_alloc. Exported for attn::models.
[[gnu::visibility("default")]] void* thread_scratch(int64_t bytes);

/// Memory that grows and stays, for what a function needs beside thread_scratch(): a static thread_local of it.
class GrowingBuffer {
 public:
  /// At least `bytes` bytes, 64-byte aligned, content undefined; valid until the next call. Throws std::bad_alloc.
  void* at_least(int64_t bytes) {
    if (memory_.bytes() < bytes) {
      memory_ = {};  // first, so that the old and the new never exist together
      memory_ = Buffer(bytes);
    }
    return memory_.data();
  }

 private:
  Buffer memory_;
};

/// Hands out 64-byte aligned parts of one scratch area; over a null base it only counts.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}
  template <class T = void>
  T* take(int64_t bytes) {
    char* part = base_ ? base_ + used_ : nullptr;
    used_ += round_up(bytes, 64);
    return static_cast<T*>(static_cast<void*>(part));
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

}  // namespace attn
