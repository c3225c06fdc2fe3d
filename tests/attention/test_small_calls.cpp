// What a small call costs besides its arithmetic: in the steady state, no heap allocation.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "attn/attn.h"

namespace {
std::atomic<int64_t> allocations{0};
}

// Not inlined: where only one of a pair is, g++ sees malloc meet delete, or new meet free, and warns.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace attn::test {
namespace {

struct Small {
  int64_t H, L, D;
  DType dtype;
};

/// With and without options, on one thread and on several, the second call of a kind; or one of the next, as a thread
/// gets its scratch when it takes part for the first time, which may be later on a busy machine.
TEST(SmallCalls, AllocateNothing) {
  for (const Small& s : {Small{1, 1, 64, DType::float32}, Small{8, 32, 64, DType::float32},
                         Small{8, 32, 64, DType::bfloat16}, Small{2, 100, 40, DType::float64}}) {
    const Shape<4> shape = {1, s.H, s.L, s.D};
    const Buffer q(count_of(shape) * size_of(s.dtype), true), out(q.bytes()), lse(s.H * s.L * 8), mask(s.L * s.L, true);
    const View<4> x(q.data(), s.dtype, shape), y(out.data(), s.dtype, shape);
    const View<3> sums(lse.data(), s.dtype == DType::float64 ? DType::float64 : DType::float32, {1, s.H, s.L});
    AttentionOptions plain, busy;
    busy.causal = true;
    busy.dropout = 0.1;
    busy.mask = ConstView<4>(mask.data(), DType::boolean, {1, 1, s.L, s.L});
    for (const AttentionOptions* options : {&plain, &busy}) {
      attention(x, x, x, y, sums, *options);
      int64_t allocated = 1;
      for (int call = 0; allocated > 0 && call < 20; ++call) {
        const int64_t before = allocations;
        attention(x, x, x, y, sums, *options);
        allocated = allocations - before;
      }
      EXPECT_EQ(allocated, 0) << name_of(s.dtype) << " H " << s.H << " L " << s.L;
    }
  }
}

}  // namespace
}  // namespace attn::test
