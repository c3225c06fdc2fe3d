// Memory of freed arrays, kept for the next ones of the same size: fresh pages cost a training step of a small model
// more than its arithmetic.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "attn/autograd.h"

namespace attn::autograd {

/// Not thread-safe: it belongs to the tapes of one thread.
class Recycler : public std::enable_shared_from_this<Recycler> {
 public:
  /// At least `bytes` bytes of undefined content, which come back here when the last owner lets go.
  std::shared_ptr<void> take(int64_t bytes);
  ~Recycler();

 private:
  std::map<int64_t, std::vector<Buffer>> free_;
};

}  // namespace attn::autograd
