// Memory of matrices that live as long as a model.
#pragma once

#include <cstdint>
#include <memory>

namespace attn {

/// At least `bytes` bytes, 64-byte aligned, of undefined content; copies share them. A Buffer from 512 KiB on takes
/// whole pages of 2 MiB, of which a matrix of a small model fills a half or a quarter. Here matrices of this size are
/// one after the other in pages of 32 MiB together, which are given back with the last of them.
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
