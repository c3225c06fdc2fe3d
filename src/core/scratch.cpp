#include "core/scratch.h"

#include <utility>

#include "attn/core.h"
#include "core/profile.h"

namespace attn {
namespace {

// A bare pointer, so that a destructor of some other static object can still compute after Release has run.
constinit thread_local Buffer* arena = nullptr;

void free_arena() {
  if (arena) count_scratch(-occupied_bytes(arena->bytes()));
  delete std::exchange(arena, nullptr);
}

struct Release {
  ~Release() { free_arena(); }
};

}  // namespace

void* thread_scratch(int64_t bytes) {
  if (!arena || arena->bytes() < bytes) {
    [[maybe_unused]] thread_local Release at_thread_exit;
    free_arena();  // first, so that the old and the new never exist together
    arena = new Buffer(bytes);
    count_scratch(occupied_bytes(bytes));
  }
  return arena->data();
}

}  // namespace attn
