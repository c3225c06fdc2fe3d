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

/// The type of a value of metadata, by its number in the file.
uint32_t type_of(const Json& value) {
  constexpr uint32_t kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9;
  if (value.is_boolean()) return kBool;
  if (value.is_string()) return kString;
  if (value.is_array()) return kArray;
  if (value.is_number_float()) return kF32;
  return value.is_number_integer() && value < 0 ? kI32 : kU32;
}

void put_value(std::string& to, const Json& value, uint32_t type) {
  switch (type) {
    case 4: return put(to, value.get<uint32_t>());
    case 5: return put(to, value.get<int32_t>());
    case 6: return put(to, value.get<float>());
    case 7: return put<uint8_t>(to, value.get<bool>());
    default: return put_text(to, value.get<std::string>());
  }
}

/// Lists of whole numbers are of 32 bits with a sign, as llama.cpp wants them.
void put_entry(std::string& to, const std::string& key, const Json& value) {
  constexpr uint32_t kU32 = 4, kI32 = 5, kArray = 9;
  put_text(to, key);
  const uint32_t type = type_of(value);
  put(to, type);
  if (type != kArray) return put_value(to, value, type);
  uint32_t element = value.empty() ? kI32 : type_of(value.front());
  if (element == kU32) element = kI32;
  put(to, element);
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
