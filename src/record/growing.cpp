// Both kinds of memory are mappings. Room in a file is allocated before it is mapped: a full disk is an Error of
// resize(), not a signal at a later store.
#include "record/growing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "attn/core.h"

namespace attn::detail {
namespace {

constexpr int64_t kLeast = 1 << 16;

[[noreturn]] void fail(const std::string& where, const std::string& step, int number) {
  throw Error("grow_file", {where + ": cannot " + step + ": " + std::generic_category().message(number)});
}

/// A new file whose name is removed at once.
int open_unnamed(const std::string& folder) {
  const std::string pattern = folder + "/.attn-XXXXXX";
  std::vector<char> name(pattern.c_str(), pattern.c_str() + pattern.size() + 1);
  const int file = ::mkostemp(name.data(), O_CLOEXEC);
  if (file < 0) fail(folder, "create a file", errno);
  ::unlink(name.data());
  return file;
}

}  // namespace

GrowingBytes::~GrowingBytes() {
  if (data_) ::munmap(data_, static_cast<size_t>(capacity_));
  if (file_ >= 0) ::close(file_);
}

void GrowingBytes::swap(GrowingBytes& other) noexcept {
  std::swap(folder_, other.folder_);
  std::swap(file_, other.file_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
}

void GrowingBytes::resize(int64_t size) {
  if (size > capacity_) reserve(std::max({size, 2 * capacity_, kLeast}));
  size_ = size;
}

void GrowingBytes::reserve(int64_t capacity) {
  const auto bytes = static_cast<size_t>(capacity);
  if (!folder_.empty()) {
    if (file_ < 0) file_ = open_unnamed(folder_);
    if (const int failed = ::posix_fallocate(file_, 0, capacity)) fail(folder_, "make room in a file", failed);
  }
  void* memory = nullptr;
  if (data_) memory = ::mremap(data_, static_cast<size_t>(capacity_), bytes, MREMAP_MAYMOVE);
  else if (file_ >= 0) memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  else memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    fail(folder_.empty() ? "memory" : folder_, "map " + std::to_string(capacity) + " bytes", errno);
  data_ = static_cast<char*>(memory);
  capacity_ = capacity;
}

}  // namespace attn::detail
