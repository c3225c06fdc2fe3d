// growing: an array of bytes that grows at its end.
#pragma once

#include <cstdint>
#include <string>

namespace attn::detail {

/// In memory, or in an unnamed file that is mapped: the system writes it out where memory is short, and removes it with
/// the object. data() may change with resize().
class GrowingBytes {
 public:
  /// In a file in `folder`; empty = in memory.
  explicit GrowingBytes(std::string folder = {}) : folder_(std::move(folder)) {}
  GrowingBytes(GrowingBytes&& other) noexcept { swap(other); }
  GrowingBytes& operator=(GrowingBytes&& other) noexcept {
    swap(other);
    return *this;
  }
  ~GrowingBytes();

  char* data() const { return data_; }
  int64_t size() const { return size_; }
  /// New bytes are undefined. Throws Error, and changes nothing, if there is no room.
  void resize(int64_t size);

 private:
  void swap(GrowingBytes& other) noexcept;
  void reserve(int64_t capacity);
  std::string folder_;
  int file_ = -1;
  char* data_ = nullptr;
  int64_t size_ = 0, capacity_ = 0;
};

}  // namespace attn::detail
