// growing: bytes at whose end there will be more.
#pragma once

#include <cstdint>
#include <string>

namespace attn::io {

/// In memory, or in a file without a name, which the system writes out where memory is short and which is gone with the
/// object. A larger one may be elsewhere: data() changes with resize().
class GrowingBytes {
 public:
  /// `folder` is where the file is; empty = in memory.
  explicit GrowingBytes(std::string folder = {}) : folder_(std::move(folder)) {}
  GrowingBytes(GrowingBytes&& other) noexcept { swap(other); }
  GrowingBytes& operator=(GrowingBytes&& other) noexcept {
    swap(other);
    return *this;
  }
  ~GrowingBytes();

  char* data() const { return data_; }
  int64_t size() const { return size_; }
  /// What is after the old size is undefined. Throws Error, and changes nothing, where there is no room.
  void resize(int64_t size);

 private:
  void swap(GrowingBytes& other) noexcept;
  void reserve(int64_t capacity);
  std::string folder_;
  int file_ = -1;
  char* data_ = nullptr;
  int64_t size_ = 0, capacity_ = 0;
};

}  // namespace attn::io
