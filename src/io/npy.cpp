// NumPy's .npy format: "\x93NUMPY", a version of two bytes, the length of the header in two bytes (version 1) or four,
// the header, a Python dictionary, and the data (numpy/lib/format.py describes it).
#include <algorithm>
#include <array>
#include <cstring>

#include "attn/io.h"
#include "io/json.h"

namespace attn::io {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::array kNpyTypes = {std::pair{"<f2", DType::float16}, std::pair{"<f4", DType::float32},
                                  std::pair{"<f8", DType::float64}};

class NpyReader {
 public:
  explicit NpyReader(const std::string& path) : path_(path), bytes_(read_file(path)) {}

  NpyArray read() {
    NpyArray array;
    const std::string_view data = read_header(array);
    const int64_t available = static_cast<int64_t>(data.size()) / size_of(array.dtype);
    int64_t count = std::find(array.shape.begin(), array.shape.end(), 0) == array.shape.end() ? 1 : 0;
    for (const int64_t extent : array.shape) {
      if (count > 0 && count > available / extent) refuse("the file is shorter than its shape says");
      count *= extent;
    }
    const int64_t bytes = count * size_of(array.dtype);
    if (bytes > static_cast<int64_t>(data.size())) refuse("the file is shorter than its shape says");
    if (bytes < static_cast<int64_t>(data.size())) refuse("the file is longer than its shape says");
    array.data = Buffer(std::max<int64_t>(bytes, 1));
    std::memcpy(array.data.data(), data.data(), data.size());
    return array;
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const { throw Error("read_npy", {path_ + ": " + reason}); }

  /// Fills in type and shape, and returns the bytes after the header.
  std::string_view read_header(NpyArray& array) const {
    const std::string_view bytes = bytes_;
    if (bytes.size() < 12 || bytes.substr(0, kMagic.size()) != kMagic) refuse("this is not a .npy file");
    const auto byte = [&](size_t at) { return static_cast<size_t>(static_cast<uint8_t>(bytes[at])); };
    const size_t version = byte(6);
    if (version < 1 || version > 3) refuse("the version of .npy is " + std::to_string(version) + ", must be 1 to 3");
    const size_t begin = version == 1 ? 10 : 12;
    const size_t length =
        version == 1 ? byte(8) | byte(9) << 8 : byte(8) | byte(9) << 8 | byte(10) << 16 | byte(11) << 24;
    if (length > bytes.size() - begin) refuse("its header is cut off");
    const std::string_view header = bytes.substr(begin, length);
    const std::string type = text_after(header, "'descr':", "'", "'");
    const auto* found =
        std::find_if(kNpyTypes.begin(), kNpyTypes.end(), [&](const auto& one) { return type == one.first; });
    if (found == kNpyTypes.end())
      refuse("has the type " + in_quotes(type) + ", must be float16, float32 or float64, little-endian");
    array.dtype = found->second;
    if (header.find("'fortran_order': False") == std::string_view::npos) refuse("must be in C order");
    array.shape = shape_of(text_after(header, "'shape':", "(", ")"));
    return bytes.substr(begin + length);
  }

  /// The text between `open` and `close` that follows a name, with nothing but spaces between name and `open`.
  static std::string text_after(std::string_view header, std::string_view name, std::string_view open,
                                std::string_view close) {
    size_t at = header.find(name);
    if (at == std::string_view::npos) return "";
    at = header.find_first_not_of(' ', at + name.size());
    if (at == std::string_view::npos || header.substr(at, 1) != open) return "";
    const size_t end = header.find(close, at + 1);
    return end == std::string_view::npos ? "" : std::string(header.substr(at + 1, end - at - 1));
  }

  /// Of "2, 3", or of "2," for one axis.
  std::vector<int64_t> shape_of(const std::string& text) const {
    constexpr size_t kMostDigits = 15;
    std::vector<int64_t> shape;
    for (size_t at = 0; at < text.size();) {
      const size_t digits = std::min(text.find_first_not_of("0123456789", at), text.size()) - at;
      if (digits == 0 || digits > kMostDigits)
        refuse("has the shape " + in_quotes(text) + ", must be numbers of at most 15 digits");
      shape.push_back(std::stoll(text.substr(at, digits)));
      at = std::min(text.find_first_not_of(", ", at + digits), text.size());
    }
    return shape;
  }

  std::string path_, bytes_;
};

}  // namespace

NpyArray read_npy(const std::string& path) { return NpyReader(path).read(); }

std::string format_npy(DType dtype, std::span<const int64_t> shape, const void* data) {
  const auto* type =
      std::find_if(kNpyTypes.begin(), kNpyTypes.end(), [&](const auto& one) { return one.second == dtype; });
  if (type == kNpyTypes.end())
    throw Error("format_npy",
                {"the array is " + std::string(name_of(dtype)) + ", must be float16, float32 or float64"});
  std::string header = std::string("{'descr': '") + type->first + "', 'fortran_order': False, 'shape': (";
  for (const int64_t extent : shape) header += std::to_string(extent) + ", ";
  if (!shape.empty()) header.resize(header.size() - (shape.size() > 1 ? 2 : 1));  // one axis is "(2,)"
  header += "), }";
  header.append(63 - (10 + header.size()) % 64, ' ').append("\n");
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 255);
  bytes += static_cast<char>(header.size() >> 8);
  bytes += header;
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return bytes.append(static_cast<const char*>(data), static_cast<size_t>(count * size_of(dtype)));
}

}  // namespace attn::io
