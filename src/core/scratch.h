// Working memory for kernels: one grow-only arena a thread, so that a call in the steady state allocates nothing.
#pragma once

#include <cstdint>

namespace attn {

/// At least `bytes` bytes, 64-byte aligned, content undefined. One task at a time owns all of it: the next call on the
/// same thread hands out the same memory. Freed when the thread ends. Throws std::bad_alloc. Exported for attn::models.
[[gnu::visibility("default")]] void* thread_scratch(int64_t bytes);

}  // namespace attn
