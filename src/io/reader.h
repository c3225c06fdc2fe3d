// reader: a regular file that is open, read at any place. It trusts no size that it has not seen twice.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace attn::io {

/// Throws Error for a path that is empty, or that goes on after a zero byte.
void require_path(std::string_view operation, const std::string& path);
/// In words what the system's `error` says of opening this path.
std::string why_not_opened(const std::string& path, int error);

class Reader {
 public:
  /// Throws Error "[read_file] path: ..." if it cannot be opened or is not a regular file.
  explicit Reader(const std::string& path);
  Reader(Reader&& other) noexcept;
  Reader& operator=(Reader&& other) noexcept;
  ~Reader();

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  ///< when it was opened
  /// `count` bytes from byte `at` on; throws Error if the file has fewer by now.
  void read(int64_t at, char* to, int64_t count) const;
  /// The first bytes, which tell what a file is; all of a short one.
  std::string start() const;
  /// The file's bytes where the system keeps them, at least one; what is written there stays in this process.
  std::shared_ptr<char> map() const;
  /// Throws Error unless the file still ends at size().
  void require_end() const;

 private:
  int64_t read_some(int64_t at, char* to, int64_t count) const;
  std::string path_;
  int file_ = -1;
  int64_t size_ = 0;
};

}  // namespace attn::io
