// gguf: the model files of llama.cpp, versions 2 and 3, mapped.
//
// "GGUF", u32 version, u64 tensors, u64 entries; then entries (string key, u32 type, value), tensors (string name, u32
// axes, u64 extents with the fastest first, u32 type, u64 offset), and, from the next multiple of the alignment on, the
// data. A string is a u64 length and its bytes; everything is little-endian.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/json.h"

namespace attn::io {

/// The types of tensors that are read, by their numbers in the file.
enum class GgufType {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  bf16 = 30
};

/// The types of metadata, by their numbers in the file.
struct GgufEntry {
  enum Type : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };
};

struct GgufTensor {
  GgufType type = GgufType::f32;
  std::vector<int64_t> shape = {};  ///< the slowest axis first
  const uint8_t* data = nullptr;    ///< borrowed from the file
};

class Gguf {
 public:
  /// Throws Error "[open] path: ..." for everything that contradicts the file's length or the format.
  static Gguf map(const std::string& path);

  const std::string& path() const { return path_; }
  /// Values by key: numbers, booleans, texts, lists of them. A text that is not UTF-8 is refused.
  const Json& metadata() const { return metadata_; }
  const std::map<std::string, GgufTensor>& tensors() const { return tensors_; }
  /// Names and types of tensors that are not read, as "IQ2_XXS".
  const std::map<std::string, std::string>& foreign() const { return foreign_; }

 private:
  std::string path_;
  std::shared_ptr<char> bytes_;
  Json metadata_;
  std::map<std::string, GgufTensor> tensors_;
  std::map<std::string, std::string> foreign_;
};

/// A tensor to write.
struct GgufContent {
  std::string name = {};
  GgufType type = GgufType::f32;
  std::vector<int64_t> shape = {};                ///< the slowest axis first
  std::function<std::vector<char>()> bytes = {};  ///< its content, asked for once
};
/// Writes version 3, or replaces the file: `metadata` is an object of whole numbers, numbers, booleans, texts and lists
/// of one of them. Throws Error.
void write_gguf(const std::string& path, const Json& metadata, const std::vector<GgufContent>& tensors);

/// The bytes of a tensor.
int64_t gguf_bytes(GgufType type, const std::vector<int64_t>& shape);
/// "Q4_K"
std::string name_of_gguf_type(int64_t type);
/// True for a regular file that begins as GGUF does.
bool is_gguf(const std::string& path);

}  // namespace attn::io
