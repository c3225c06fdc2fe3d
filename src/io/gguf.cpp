// Reads GGUF. Nothing of the file is trusted: every length is compared with the bytes that are left before it is used.
#include "io/gguf.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "attn/core.h"
#include "attn/io.h"
#include "io/reader.h"

namespace attn::io {
namespace {

constexpr int64_t kMostEntries = int64_t{1} << 16;
constexpr int64_t kMostTensors = int64_t{1} << 20;
constexpr int64_t kMostElements = int64_t{1} << 22;  // of a list, as of a vocabulary
constexpr int64_t kMostName = int64_t{1} << 16;

struct TypeInfo {
  int number;
  const char* name;
  int64_t numbers, bytes;  // of a block; 0: not read
};
constexpr TypeInfo kGgufTypes[] = {
    {0, "F32", 1, 4},       {1, "F16", 1, 2},       {2, "Q4_0", 32, 18},    {3, "Q4_1", 32, 20},  {6, "Q5_0", 32, 22},
    {7, "Q5_1", 32, 24},    {8, "Q8_0", 32, 34},    {9, "Q8_1", 0, 0},      {10, "Q2_K", 0, 0},   {11, "Q3_K", 0, 0},
    {12, "Q4_K", 256, 144}, {13, "Q5_K", 256, 176}, {14, "Q6_K", 256, 210}, {15, "Q8_K", 0, 0},   {16, "IQ2_XXS", 0, 0},
    {17, "IQ2_XS", 0, 0},   {18, "IQ3_XXS", 0, 0},  {19, "IQ1_S", 0, 0},    {20, "IQ4_NL", 0, 0}, {21, "IQ3_S", 0, 0},
    {22, "IQ2_S", 0, 0},    {23, "IQ4_XS", 0, 0},   {24, "I8", 0, 0},       {25, "I16", 0, 0},    {26, "I32", 0, 0},
    {27, "I64", 0, 0},      {28, "F64", 0, 0},      {29, "IQ1_M", 0, 0},    {30, "BF16", 1, 2},   {34, "TQ1_0", 0, 0},
    {35, "TQ2_0", 0, 0},    {39, "MXFP4", 0, 0},
};

const TypeInfo* find_type(int64_t number) {
  for (const TypeInfo& type : kGgufTypes)
    if (type.number == number) return &type;
  return nullptr;
}

/// The bytes of a file, from front to back.
class FileBytes {
 public:
  FileBytes(const char* data, int64_t size, const std::string& path) : data_(data), size_(size), path_(path) {}
  int64_t at() const { return at_; }
  int64_t left() const { return size_ - at_; }

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error("open", {path_ + ": is no whole GGUF file: " + what + " at byte " + std::to_string(at_)});
  }
  const char* take(uint64_t count, const std::string& what) {
    if (count > static_cast<uint64_t>(left()))
      refuse(what + " of " + std::to_string(count) + " bytes, where " + std::to_string(left()) + " are left,");
    at_ += static_cast<int64_t>(count);
    return data_ + at_ - count;
  }
  template <class T>
  T number(const std::string& what) {
    static_assert(std::endian::native == std::endian::little);
    T value;
    std::memcpy(&value, take(sizeof value, what), sizeof value);
    return value;
  }
  int64_t count(const std::string& what, int64_t most) {
    const auto value = number<uint64_t>(what);
    if (value > static_cast<uint64_t>(most))
      refuse(what + " is " + std::to_string(value) + ", must be at most " + std::to_string(most) + ",");
    return static_cast<int64_t>(value);
  }
  std::string text(const std::string& what) {
    const auto length = number<uint64_t>("the length of " + what);
    return {take(length, what), static_cast<size_t>(length)};
  }

 private:
  const char* data_;
  int64_t size_, at_ = 0;
  const std::string& path_;
};

class GgufReader {
 public:
  GgufReader(FileBytes bytes, const char* data) : bytes_(bytes), data_(data) {}

  void read(Json& metadata, std::map<std::string, GgufTensor>& tensors, std::map<std::string, std::string>& foreign) {
    if (std::string(bytes_.take(4, "the beginning"), 4) != "GGUF") bytes_.refuse("it does not begin with GGUF");
    const auto version = bytes_.number<uint32_t>("the version");
    if (version != 2 && version != 3)
      bytes_.refuse("the version is " + std::to_string(version) + ", must be 2 or 3 (little-endian)");
    const int64_t tensor_count = bytes_.count("the number of tensors", kMostTensors);
    const int64_t entries = bytes_.count("the number of entries", kMostEntries);
    metadata = Json::object();
    for (int64_t n = 0; n < entries; ++n) {
      const std::string key = name("a key");
      const auto type = bytes_.number<uint32_t>("the type of " + key);
      if (!metadata.emplace(key, value(key, type)).second) bytes_.refuse("the key " + in_quotes(key) + " occurs twice");
    }
    read_tensors(tensor_count, alignment(metadata), tensors, foreign);
  }

 private:
  std::string name(const char* what) {
    std::string text = bytes_.text(what);
    if (text.empty() || static_cast<int64_t>(text.size()) > kMostName || !json_string(text))
      bytes_.refuse(std::string(what) + " is " + in_quotes(text) + ", must be UTF-8 of 1 to 65536 bytes,");
    return text;
  }

  Json scalar(const std::string& key, uint32_t type) {
    switch (type) {
      case GgufEntry::kU8: return bytes_.number<uint8_t>(key);
      case GgufEntry::kI8: return bytes_.number<int8_t>(key);
      case GgufEntry::kU16: return bytes_.number<uint16_t>(key);
      case GgufEntry::kI16: return bytes_.number<int16_t>(key);
      case GgufEntry::kU32: return bytes_.number<uint32_t>(key);
      case GgufEntry::kI32: return bytes_.number<int32_t>(key);
      case GgufEntry::kF32: return bytes_.number<float>(key);
      case GgufEntry::kBool: return bytes_.number<uint8_t>(key) != 0;
      case GgufEntry::kU64: return bytes_.number<uint64_t>(key);
      case GgufEntry::kI64: return bytes_.number<int64_t>(key);
      case GgufEntry::kF64: return bytes_.number<double>(key);
      case GgufEntry::kString: {
        std::string text = bytes_.text(key);
        if (!json_string(text)) bytes_.refuse(in_quotes(key) + " is not UTF-8");
        return text;
      }
      default: bytes_.refuse(in_quotes(key) + " has the unknown type " + std::to_string(type));
    }
  }

  Json value(const std::string& key, uint32_t type) {
    if (type != GgufEntry::kArray) return scalar(key, type);
    const auto element = bytes_.number<uint32_t>("the type of the list " + key);
    if (element == GgufEntry::kArray) bytes_.refuse("the list " + in_quotes(key) + " has lists, which are not read,");
    const int64_t count = bytes_.count("the length of the list " + key, kMostElements);
    Json list = Json::array();
    for (int64_t n = 0; n < count; ++n) list.push_back(scalar(key, element));
    return list;
  }

  int64_t alignment(const Json& metadata) const {
    const std::optional<int64_t> given = whole_number(metadata.value("general.alignment", Json(32)));
    if (!given || *given < 8 || *given > 1 << 20 || !std::has_single_bit(static_cast<uint64_t>(*given)))
      bytes_.refuse("general.alignment must be a power of two from 8 to 1048576,");
    return *given;
  }

  struct Pending {
    std::string name;
    GgufTensor tensor;
    int64_t bytes, offset;
  };

  /// Bytes of the tensor's data, of rows in whole blocks.
  int64_t size_of_tensor(const Pending& pending, const TypeInfo& type) {
    int64_t numbers = 1;
    for (const int64_t extent : pending.tensor.shape)
      if (extent < 1 || __builtin_mul_overflow(numbers, extent, &numbers) || numbers > int64_t{1} << 50)
        bytes_.refuse("tensor " + in_quotes(pending.name) + " has an impossible shape");
    if (pending.tensor.shape.back() % type.numbers != 0)
      bytes_.refuse("tensor " + in_quotes(pending.name) + " has rows of " +
                    std::to_string(pending.tensor.shape.back()) + " numbers, must be whole blocks of " +
                    std::to_string(type.numbers));
    return numbers / type.numbers * type.bytes;
  }

  void read_tensors(int64_t count, int64_t alignment, std::map<std::string, GgufTensor>& tensors,
                    std::map<std::string, std::string>& foreign) {
    std::vector<Pending> all;
    std::set<std::string> names;
    for (int64_t n = 0; n < count; ++n) {
      Pending pending{.name = name("the name of a tensor"), .tensor = {}, .bytes = 0, .offset = 0};
      if (!names.insert(pending.name).second) bytes_.refuse("there are two tensors " + in_quotes(pending.name));
      const auto axes = bytes_.number<uint32_t>("the axes of " + pending.name);
      if (axes < 1 || axes > 4)
        bytes_.refuse("tensor " + in_quotes(pending.name) + " has " + std::to_string(axes) +
                      " axes, must have 1 to 4,");
      for (uint32_t axis = 0; axis < axes; ++axis)
        pending.tensor.shape.insert(pending.tensor.shape.begin(),
                                    bytes_.count("an extent of " + pending.name, int64_t{1} << 50));
      const auto type = bytes_.number<uint32_t>("the type of " + pending.name);
      pending.offset = bytes_.count("the offset of " + pending.name, int64_t{1} << 60);
      const TypeInfo* info = find_type(type);
      if (!info || info->bytes == 0) {
        foreign.emplace(pending.name, name_of_gguf_type(type));
        continue;
      }
      pending.tensor.type = static_cast<GgufType>(type);
      pending.bytes = size_of_tensor(pending, *info);
      if (pending.offset % alignment != 0)
        bytes_.refuse("tensor " + in_quotes(pending.name) + " has the offset " + std::to_string(pending.offset) +
                      ", must be a multiple of " + std::to_string(alignment) + ",");
      all.push_back(std::move(pending));
    }
    const int64_t begin = (bytes_.at() + alignment - 1) / alignment * alignment;
    const int64_t size = bytes_.at() + bytes_.left() - begin;  // of the data
    for (Pending& pending : all) {
      if (pending.offset > size || pending.bytes > size - pending.offset)
        bytes_.refuse("tensor " + in_quotes(pending.name) + " has " + std::to_string(pending.bytes) + " bytes from " +
                      std::to_string(pending.offset) + " on, where the data has " +
                      std::to_string(std::max<int64_t>(size, 0)) + "; the file is cut off, or its header is wrong,");
      pending.tensor.data = reinterpret_cast<const uint8_t*>(data_ + begin + pending.offset);
      tensors.emplace(pending.name, std::move(pending.tensor));
    }
  }

  FileBytes bytes_;
  const char* data_;
};

}  // namespace

Gguf Gguf::map(const std::string& path) {
  Gguf file;
  const Reader reader(path);
  file.path_ = path;
  file.bytes_ = reader.map();
  GgufReader(FileBytes(file.bytes_.get(), reader.size(), path), file.bytes_.get())
      .read(file.metadata_, file.tensors_, file.foreign_);
  return file;
}

int64_t gguf_bytes(GgufType type, const std::vector<int64_t>& shape) {
  const TypeInfo& info = *find_type(static_cast<int64_t>(type));
  int64_t numbers = 1;
  for (const int64_t extent : shape) numbers *= extent;
  return numbers / info.numbers * info.bytes;
}

std::string name_of_gguf_type(int64_t type) {
  const TypeInfo* info = find_type(type);
  return info ? info->name : "number " + std::to_string(type);
}

bool is_gguf(const std::string& path) {
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(path, unknown)) return false;
  try {
    return Reader(path).start().starts_with("GGUF");
  } catch (const Error&) {
    return false;  // the caller that opens the file says why
  }
}

}  // namespace attn::io
