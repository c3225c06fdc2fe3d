// Subnormal results: an Intel core takes over a hundred cycles for each operation that makes or meets one. A softmax
// makes them by nature: a key far down an ALiBi slope weighs 2^-130. They are rounding noise next to weights that sum
// to 1.
#pragma once

#include <cstdint>

#include "attn/core.h"

namespace attn {

/// While it lives, results of this thread below the smallest normal number become 0: the flush-to-zero bit of MXCSR,
/// or of FPCR, where 64-bit ARM takes subnormal operands as 0 too. Then the bit is what it was; exception flags stay.
class FlushSubnormals {
 public:
  FlushSubnormals() : before_(control() & kFlush) { set_control(control() | kFlush); }
  ~FlushSubnormals() { set_control((control() & ~kFlush) | before_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kFlush = uint64_t{1} << 15;
  static uint64_t control() { return __builtin_ia32_stmxcsr(); }
  static void set_control(uint64_t bits) { __builtin_ia32_ldmxcsr(static_cast<unsigned>(bits)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = uint64_t{1} << 24;
  static uint64_t control() {
    uint64_t bits;
    asm volatile("mrs %0, fpcr" : "=r"(bits));
    return bits;
  }
  static void set_control(uint64_t bits) { asm volatile("msr fpcr, %0" : : "r"(bits) : "memory"); }
#else
  static constexpr uint64_t kFlush = 0;
  static uint64_t control() { return 0; }
  static void set_control(uint64_t) {}
#endif

  uint64_t before_;
};

/// parallel_for() with tasks that flush.
template <class Body>
void parallel_for_flushed(int64_t tasks, const Body& body) {
  parallel_for(tasks, [&](int64_t task) {
    const FlushSubnormals flush;
    body(task);
  });
}

}  // namespace attn
