// Writes GGUF; io/gguf.h has the format.
#include <cstring>
#include <limits>

#include "attn/core.h"
#include "io/gguf.h"
#include "io/sink.h"

namespace attn::io {
namespace {

constexpr int64_t kAlignment = 32;

template <class T>
void put(std::string& to, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof value);
  to.append(bytes, sizeof bytes);
}

void put_text(std::string& to, const std::string& text) {
  put<uint64_t>(to, text.size());
  to += text;
}

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error("write_gguf", {path + ": " + what});
}

GgufEntry::Type type_of(const Json& value) {
  if (value.is_boolean()) return GgufEntry::kBool;
  if (value.is_string()) return GgufEntry::kString;
  if (value.is_array()) return GgufEntry::kArray;
  if (value.is_number_float()) return GgufEntry::kF32;
  return value < 0 ? GgufEntry::kI32 : GgufEntry::kU32;
}

void put_value(std::string& to, const Json& value, GgufEntry::Type type) {
  switch (type) {
    case GgufEntry::kU32: return put(to, value.get<uint32_t>());
    case GgufEntry::kI32: return put(to, value.get<int32_t>());
    case GgufEntry::kF32: return put(to, value.get<float>());
    case GgufEntry::kBool: return put<uint8_t>(to, value.get<bool>());
    default: return put_text(to, value.get<std::string>());
  }
}

/// Lists of whole numbers are of 32 bits with a sign, as llama.cpp wants them.
void put_entry(std::string& to, const std::string& key, const Json& value) {
  put_text(to, key);
  const GgufEntry::Type type = type_of(value);
  put<uint32_t>(to, type);
  if (type != GgufEntry::kArray) return put_value(to, value, type);
  const GgufEntry::Type first = value.empty() ? GgufEntry::kI32 : type_of(value.front());
  const GgufEntry::Type element = first == GgufEntry::kU32 ? GgufEntry::kI32 : first;
  put<uint32_t>(to, element);
  put<uint64_t>(to, value.size());
  for (const Json& each : value) put_value(to, each, element);
}

int64_t aligned(int64_t at) { return (at + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void write_gguf(const std::string& path, const Json& metadata, const std::vector<GgufContent>& tensors) {
  std::string head = "GGUF";
  put<uint32_t>(head, 3);
  put<uint64_t>(head, tensors.size());
  put<uint64_t>(head, metadata.size());
  for (const auto& [key, value] : metadata.items()) put_entry(head, key, value);
  int64_t offset = 0;
  std::vector<int64_t> sizes;
  for (const GgufContent& tensor : tensors) {
    put_text(head, tensor.name);
    put<uint32_t>(head, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t axis = tensor.shape.size(); axis-- > 0;) put<uint64_t>(head, static_cast<uint64_t>(tensor.shape[axis]));
    put<uint32_t>(head, static_cast<uint32_t>(tensor.type));
    put<uint64_t>(head, static_cast<uint64_t>(offset));
    sizes.push_back(gguf_bytes(tensor.type, tensor.shape));
    offset = aligned(offset + sizes.back());
  }
  head.resize(static_cast<size_t>(aligned(static_cast<int64_t>(head.size()))), '\0');
  write_file(path, [&](const Sink& sink) {
    sink(head);
    for (size_t n = 0; n < tensors.size(); ++n) {
      std::vector<char> bytes = tensors[n].bytes();
      if (static_cast<int64_t>(bytes.size()) != sizes[n])
        refuse(path, tensors[n].name + " has " + std::to_string(bytes.size()) + " bytes, must have " +
                         std::to_string(sizes[n]));
      bytes.resize(static_cast<size_t>(aligned(sizes[n])), '\0');
      sink({bytes.data(), bytes.size()});
    }
  });
}

}  // namespace attn::io
