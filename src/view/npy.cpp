// Attention from arrays that NumPy wrote. The format: "\x93NUMPY", a version of two bytes, the length of the header in
// two bytes (version 1) or four, the header, a Python dictionary, and the data (numpy/lib/format.py describes it).
#include <algorithm>
#include <array>
#include <cstring>

#include "attn/io.h"
#include "io/json.h"
#include "view/weights.h"

namespace attn::view {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::array kTypes = {std::pair{"<f2", DType::float16}, std::pair{"<f4", DType::float32},
                               std::pair{"<f8", DType::float64}};

/// One file on its way to a view.
class NpyFile {
 public:
  NpyFile(Checker& checker, const std::string& path) : checker_(checker), path_(path), bytes_(io::read_file(path)) {}

  /// The array with 1 in front of its axes until there are Rank; it lives in `memory`. Without data where a reason was
  /// given.
  template <int Rank>
  ConstView<Rank> view(std::vector<Buffer>& memory) {
    std::vector<int64_t> shape;
    DType dtype = DType::float32;
    if (!read_header(dtype, shape)) return {};
    if (shape.empty() || shape.size() > Rank)
      return wrong("must have 1 to " + std::to_string(Rank) + " axes"), View<Rank>();
    Shape<Rank> size;
    size.fill(1);
    std::copy_backward(shape.begin(), shape.end(), size.end());
    const int64_t there = static_cast<int64_t>(bytes_.size() - data_) / size_of(dtype);
    int64_t count = std::find(size.begin(), size.end(), 0) == size.end() ? 1 : 0;
    for (const int64_t extent : size) {
      if (count > 0 && count > there / extent) return wrong("the file is shorter than its shape says"), View<Rank>();
      count *= extent;
    }
    if (count * size_of(dtype) != static_cast<int64_t>(bytes_.size() - data_))
      return wrong("the file is longer than its shape says"), View<Rank>();
    memory.emplace_back(std::max<int64_t>(count * size_of(dtype), 1));
    std::memcpy(memory.back().data(), bytes_.data() + data_, static_cast<size_t>(count * size_of(dtype)));
    return ConstView<Rank>(memory.back().data(), dtype, size);
  }

 private:
  bool wrong(const std::string& reason) {
    checker_.require(false, path_ + ": " + reason);
    return false;
  }

  bool read_header(DType& dtype, std::vector<int64_t>& shape) {
    const std::string_view bytes = bytes_;
    if (bytes.size() < 12 || bytes.substr(0, kMagic.size()) != kMagic) return wrong("this is no .npy file");
    const auto byte = [&](size_t at) { return static_cast<size_t>(static_cast<uint8_t>(bytes[at])); };
    const size_t version = byte(6);
    if (version < 1 || version > 3) return wrong("version " + std::to_string(version) + " of .npy is not known");
    const size_t begin = version == 1 ? 10 : 12;
    const size_t length =
        version == 1 ? byte(8) | byte(9) << 8 : byte(8) | byte(9) << 8 | byte(10) << 16 | byte(11) << 24;
    if (length > bytes.size() - begin) return wrong("its header is cut off");
    data_ = begin + length;
    const std::string_view header = bytes.substr(begin, length);
    const std::string type = text_after(header, "'descr':", "'", "'");
    const auto* found = std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& one) { return type == one.first; });
    if (found == kTypes.end())
      return wrong("has the type " + io::in_quotes(type) + ", must be float16, float32 or float64, little-endian");
    dtype = found->second;
    if (header.find("'fortran_order': False") == std::string_view::npos) return wrong("must be in C order");
    return read_shape(text_after(header, "'shape':", "(", ")"), shape);
  }

  /// What is between two marks after a name, and between which there is nothing else but spaces.
  static std::string text_after(std::string_view header, std::string_view name, std::string_view open,
                                std::string_view close) {
    size_t at = header.find(name);
    if (at == std::string_view::npos) return "";
    at = header.find_first_not_of(' ', at + name.size());
    if (at == std::string_view::npos || header.substr(at, 1) != open) return "";
    const size_t end = header.find(close, at + 1);
    return end == std::string_view::npos ? "" : std::string(header.substr(at + 1, end - at - 1));
  }

  /// "2, 3", or "2," of one axis.
  bool read_shape(const std::string& text, std::vector<int64_t>& shape) {
    constexpr size_t kMostDigits = 15;
    for (size_t at = 0; at < text.size();) {
      const size_t digits = std::min(text.find_first_not_of("0123456789", at), text.size()) - at;
      if (digits == 0 || digits > kMostDigits) return wrong("has the shape " + io::in_quotes(text));
      shape.push_back(std::stoll(text.substr(at, digits)));
      at = std::min(text.find_first_not_of(", ", at + digits), text.size());
    }
    return true;
  }

  Checker& checker_;
  std::string path_, bytes_;
  size_t data_ = 0;  // where the data begin
};

}  // namespace

SavedAttention read_arrays(const std::string& q, const std::string& k, const std::string& lse,
                           const AttentionOptions& options) {
  Checker checker("read_arrays");
  auto memory = std::make_shared<std::vector<Buffer>>();
  Layer layer{.name = "layer 0", .options = options};
  layer.q = NpyFile(checker, q).view<4>(*memory);
  layer.k = NpyFile(checker, k).view<4>(*memory);
  if (!lse.empty()) layer.lse = NpyFile(checker, lse).view<3>(*memory);
  checker.done();
  if (lse.empty()) {
    try {
      layer.lse = forward_lse(layer, *memory);
    } catch (const Error& error) {
      throw Error("read_arrays", {q + " and " + k + ": " + error.reasons().at(0)});
    }
  }
  check_layers(checker, {layer});
  checker.done();
  return {.tokens = {}, .layers = {layer}, .memory = memory};
}

}  // namespace attn::view
