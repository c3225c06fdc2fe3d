// Memory of matrices that live as long as a model.
#pragma once

#include <cstdint>
#include <memory>

namespace attn {

/// At least `bytes` bytes, 64-byte aligned, of undefined content; copies share them. A Buffer from 512 KiB on takes
/// whole pages of 2 MiB, of which a matrix of a small model fills a half or a quarter. SharedBuffers of 512 KiB to 8
/// MiB follow each other in blocks of 16 such pages; the last SharedBuffer of a block frees it.
class [[gnu::visibility("default")]] SharedBuffer {
 public:
  SharedBuffer() = default;
  explicit SharedBuffer(int64_t bytes);
  void* data() const { return memory_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<void> memory_;
  int64_t bytes_ = 0;
};

}  // namespace attn
