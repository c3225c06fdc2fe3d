// io: files. Everything read is checked against the file's length before it is used; everything written appears whole
// or not at all.
//
// safetensors: 8 bytes little-endian N, N bytes of JSON {"name": {"dtype", "shape", "data_offsets"}, "__metadata__"},
// then the data (the format's own rules: no holes, no overlap, N <= 100,000,000).
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/core.h"

#pragma GCC visibility push(default)
namespace attn::io {

/// True if anything has this name, at the end of its links.
bool exists(const std::string& path);
/// What a file of another program is, by its first bytes or its name, and what to do instead of opening it: "a GGUF
/// file of llama.cpp, which is not read: take ..."; empty for all that is not known, and for what cannot be read.
std::string describe_foreign(const std::string& path);
/// The whole of a regular file. Throws Error that names the file, if it cannot be read or is larger than `limit` bytes.
std::string read_file(const std::string& path, int64_t limit = int64_t{1} << 32);
/// The same of whatever a person names: a file, a pipe or a device until it ends, or "-", the standard input.
std::string read_input(const std::string& path, int64_t limit = int64_t{1} << 32);

/// Replaces the file in one step: written beside it under a temporary name, synced, renamed, directory synced. On any
/// failure the old file is untouched, the temporary one is removed, and Error says what failed; only if the last step
/// fails is the new file in place, and Error says that. An old file's mode stays, a symbolic link is followed, and what
/// is not a regular file is refused.
void write_file(const std::string& path, std::string_view bytes);
/// The same for whatever a person names; what goes to a pipe, a device or "-", the standard output, is simply written.
void write_output(const std::string& path, std::string_view bytes);

/// Keeps a folder for whoever has this, until it is gone or its program ends, however that ends. It leaves no file, and
/// stops only those who ask for the same.
class FolderLock {
 public:
  /// Throws Error if the folder cannot be opened, or is somebody else's now. Where the file system has no locks it is
  /// everybody's.
  explicit FolderLock(const std::string& path);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

 private:
  int folder_;
};

/// Appends one line, which has no line break inside, and syncs nothing: logs.
void append_line(const std::string& path, std::string_view line);

/// Throws Error, with the byte offset, unless `text` is one JSON value without duplicate keys and of bounded depth:
/// for whoever parses text from outside with a parser that is less strict.
void check_json(std::string_view operation, const std::string& source, std::string_view text);

/// Creates the directory and its parents.
void make_directory(const std::string& path);

/// CRC-32 (ISO 3309) of bytes, continued from `seed`.
uint32_t crc32(std::string_view bytes, uint32_t seed = 0);
/// That of two texts, one after the other, from theirs; the second has `length` bytes.
uint32_t crc32_combined(uint32_t first, uint32_t second, int64_t length);

/// One tensor of a file that is to be written.
struct NamedTensor {
  std::string name;
  DType dtype = DType::float32;
  std::vector<int64_t> shape = {};
  const void* data = nullptr;
  std::vector<int64_t> stride = {};  ///< in elements, one an axis; empty = dense row-major. Of numbers, not of booleans
};

/// The bytes of such a tensor, a dense one. Throws Error for what format_safetensors() would refuse of it.
std::string_view bytes_of(const NamedTensor& tensor);

struct TensorInfo {
  DType dtype = DType::float32;
  std::vector<int64_t> shape;
  int64_t begin = 0;  ///< bytes from the start of the data
  int64_t end = 0;
};

class [[gnu::visibility("hidden")]] Reader;

/// A safetensors file: in memory, where later changes to the file do no harm; open(), where tensors are read one by one
/// into the caller's memory; or mapped, where they are used as they lie.
class Safetensors {
 public:
  /// Throws Error that names the file, and the tensor or byte offset, for anything the format forbids.
  static Safetensors read(const std::string& path, int64_t limit = int64_t{1} << 40);
  /// The same from bytes; `source` is the name that errors use.
  static Safetensors parse(std::string bytes, const std::string& source);
  /// Reads the header alone; each copy() and crc32() then reads one tensor, and throws Error if it is no longer there.
  static Safetensors open(const std::string& path);
  /// The same, with the data mapped: share() and bytes() give them without a copy. The file must stay as long as it is
  /// while they are used, as any mapped file must.
  static Safetensors map(const std::string& path);

  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Tensors of types of the format that have no DType, as "U8", with the type: they are checked, not read.
  const std::map<std::string, std::string>& foreign() const { return foreign_; }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  /// Throws Error if there is no tensor of this name, type and shape.
  void require(const std::string& name, DType dtype, std::span<const int64_t> shape) const;
  /// Copies a tensor's bytes, which must be there.
  void copy(const std::string& name, DType dtype, std::span<const int64_t> shape, void* to) const;
  /// The bytes of a tensor of a mapped file, which need not be aligned, and the mapping with them. What is written
  /// there stays in this process. Throws Error unless the file is mapped.
  std::shared_ptr<void> share(const std::string& name) const;
  /// The bytes of a tensor in memory, which need not be aligned; throws Error after open().
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

/// The bytes of a safetensors file; the same tensors, in any order, give the same bytes. Throws Error for whatever
/// parse() would refuse.
std::string format_safetensors(std::span<const NamedTensor> tensors,
                               const std::map<std::string, std::string>& metadata);
/// write_file() of these bytes, which are never in memory as a whole.
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace attn::io
#pragma GCC visibility pop
