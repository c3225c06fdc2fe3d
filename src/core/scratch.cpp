#include "core/scratch.h"

#include <utility>

#include "attn/core.h"

namespace attn {
namespace {

// A bare pointer, so that a destructor of some other static object can still compute after Release has run.
constinit thread_local Buffer* arena = nullptr;

struct Release {
  ~Release() { delete std::exchange(arena, nullptr); }
};

}  // namespace

void* thread_scratch(int64_t bytes) {
  if (!arena || arena->bytes() < bytes) {
    [[maybe_unused]] thread_local Release at_thread_exit;
    delete std::exchange(arena, nullptr);  // first, so that the old and the new never exist together
    arena = new Buffer(bytes);
  }
  return arena->data();
}

}  // namespace attn
