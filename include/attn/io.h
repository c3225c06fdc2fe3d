// io: files and safetensors. Readers check everything against the length of the file before they use it. Writers
// replace a file in one step, or not at all.
//
// ```cpp
// #include "attn/io.h"
// using namespace attn;
// int main() {
//   const float values[] = {1, 2, 3, 4, 5, 6};
//   const io::NamedTensor x{.name = "x", .dtype = DType::float32, .shape = {2, 3}, .data = values};
//   const io::Safetensors file = io::Safetensors::parse(io::format_safetensors({&x, 1}, {{"format", "pt"}}), "memory");
//   return file.tensors().at("x").shape == std::vector<int64_t>{2, 3} ? 0 : 1;
// }
// ```
//
// safetensors: 8 bytes little-endian N, N bytes of JSON {"name": {"dtype", "shape", "data_offsets"}, "__metadata__"},
// then the data (the format's own rules: no holes, no overlap, N <= 100,000,000).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/core.h"

#pragma GCC visibility push(default)
namespace attn::io {

/// True if something has this name, after following symbolic links.
bool exists(const std::string& path);
/// Recognises files of other programs by their first bytes or name and says what to do with them: "a GGUF file of
/// llama.cpp, which is not read: take ...". Empty for unknown files and for files that cannot be read.
std::string describe_foreign(const std::string& path);
/// Reads a regular file. Throws Error that names the file if it cannot be read or has more than `limit` bytes.
std::string read_file(const std::string& path, int64_t limit = int64_t{1} << 32);
/// Reads a file, a pipe or a device until it ends, or "-", the standard input. For paths that a user gives.
std::string read_input(const std::string& path, int64_t limit = int64_t{1} << 32);

/// Replaces a file in one step: writes a temporary file beside it, syncs it, renames it and syncs the directory. On a
/// failure the old file is untouched, the temporary file is removed, and Error says what failed. If only the last sync
/// fails, the new file is in place, and Error says so. The mode of the old file is kept, a symbolic link is followed,
/// and a path that is not a regular file is an Error.
void write_file(const std::string& path, std::string_view bytes);
/// Writes to a path that a user gives: a regular file as write_file(), a pipe, a device or "-", the standard output,
/// directly.
void write_output(const std::string& path, std::string_view bytes);

/// An exclusive advisory lock on a folder. The destructor releases it, and so does the end of the process, even a
/// crash. It creates no file and excludes only other FolderLocks.
class FolderLock {
 public:
  /// Throws Error if the folder cannot be opened or is locked. On file systems without locks it succeeds without a
  /// lock.
  explicit FolderLock(const std::string& path);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

 private:
  int folder_;
};

/// Appends one line to a log; the line has no line break, and nothing is synced.
void append_line(const std::string& path, std::string_view line);

/// Throws Error with the byte offset unless `text` is one JSON value without duplicate keys and of bounded depth. Call
/// it before you parse untrusted text with a less strict parser.
void check_json(std::string_view operation, const std::string& source, std::string_view text);

/// Creates the directory and its parents.
void make_directory(const std::string& path);

/// CRC-32 (ISO 3309) of bytes, continued from `seed`.
uint32_t crc32(std::string_view bytes, uint32_t seed = 0);
/// The CRC-32 of two concatenated texts from those of each; the second has `length` bytes.
uint32_t crc32_combined(uint32_t first, uint32_t second, int64_t length);

/// One tensor to write. Name and shape are owned, data is borrowed.
struct NamedTensor {
  std::string name = {};
  DType dtype = DType::float32;
  std::vector<int64_t> shape = {};
  const void* data = nullptr;
  std::vector<int64_t> stride = {};  ///< in elements, one per axis; empty = dense row-major; not for booleans
  /// In place of data, of a dense tensor that need not be in memory before: returns it whenever it is read, valid until
  /// the next tensor is.
  std::function<const void*()> load = {};
};

/// The bytes of a dense tensor. Throws Error where format_safetensors() would.
std::string_view bytes_of(const NamedTensor& tensor);

struct TensorInfo {
  DType dtype = DType::float32;
  std::vector<int64_t> shape = {};
  int64_t begin = 0;  ///< bytes from the start of the data
  int64_t end = 0;
};

class [[gnu::visibility("hidden")]] Reader;

/// A safetensors file: in memory after read() or parse(), where later changes of the file have no effect; on disk after
/// open(), where copy() reads one tensor at a time; or mapped after map(), where share() needs no copy.
class Safetensors {
 public:
  /// Reads the whole file. Throws Error that names the file and the tensor or byte offset for everything that the
  /// format forbids.
  static Safetensors read(const std::string& path, int64_t limit = int64_t{1} << 40);
  /// Reads a file that is already in memory; `source` is the name that errors show.
  static Safetensors parse(std::string bytes, const std::string& source);
  /// Reads the header only. copy() and crc32() then read one tensor each and throw Error if it is no longer there.
  static Safetensors open(const std::string& path);
  /// Maps the file: share() and bytes() need no copy. The file must not be shortened while they are used.
  static Safetensors map(const std::string& path);

  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Names and types of tensors whose type has no DType, as "U8". They are checked but cannot be read.
  const std::map<std::string, std::string>& foreign() const { return foreign_; }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  /// Throws Error if there is no tensor of this name, type and shape.
  void require(const std::string& name, DType dtype, std::span<const int64_t> shape) const;
  /// Copies a tensor to `to`. Throws Error as require() does.
  void copy(const std::string& name, DType dtype, std::span<const int64_t> shape, void* to) const;
  /// The bytes of a tensor of a mapped file; the pointer keeps the mapping alive. They need not be aligned. Writes to
  /// them are private to this process. Throws Error unless the file is mapped.
  std::shared_ptr<void> share(const std::string& name) const;
  /// The bytes of a tensor in memory, not necessarily aligned; valid while this object lives. Throws Error after
  /// open().
  std::string_view bytes(const std::string& name) const;
  uint32_t crc32(const std::string& name) const;  ///< of the tensor's bytes

 private:
  void read_header(std::string_view header, int64_t data_size);
  void require_booleans(const std::string& name, std::string_view bytes) const;
  const TensorInfo& info(const std::string& name) const;
  std::string source_, bytes_;
  std::shared_ptr<const Reader> file_;
  std::shared_ptr<char> mapped_;
  int64_t data_begin_ = 0;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_, foreign_;
};

/// The bytes of a safetensors file. The order of `tensors` does not change them. Throws Error for everything that
/// parse() would refuse.
std::string format_safetensors(std::span<const NamedTensor> tensors,
                               const std::map<std::string, std::string>& metadata);
/// Writes these bytes as write_file() does, without holding all of them in memory.
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata);

/// An array of one of NumPy's .npy files, dense and row-major.
struct NpyArray {
  DType dtype = DType::float32;
  std::vector<int64_t> shape = {};
  Buffer data = {};
};

/// Reads a .npy file of float16, float32 or float64, little-endian, in C order. Throws Error that names the file.
NpyArray read_npy(const std::string& path);
/// The bytes of such a file, of a dense row-major array. Throws Error for another type.
std::string format_npy(DType dtype, std::span<const int64_t> shape, const void* data);

}  // namespace attn::io
#pragma GCC visibility pop
