// safetensors, read and written. The reader believes nothing: every number of the header is checked against the bytes
// that are there before it is used. The writer makes what the format's reference writer makes of the same tensors.
#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "attn/io.h"
#include "core/checker.h"
#include "io/foreign.h"
#include "io/json.h"
#include "io/reader.h"
#include "io/sink.h"

namespace attn::io {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr int64_t kMaxRank = 64;             // PyTorch's and numpy's
constexpr std::string_view kMetadata = "__metadata__";

struct FormatType {
  std::string_view name;
  DType dtype;
};

/// In the order in which the reference writer lays tensors out: the largest elements first, so that all are aligned.
constexpr FormatType kTypes[] = {{"I64", DType::int64},   {"F64", DType::float64},   {"F32", DType::float32},
                                 {"I32", DType::int32},   {"BF16", DType::bfloat16}, {"F16", DType::float16},
                                 {"BOOL", DType::boolean}};
constexpr const char* kKnownTypes = "F64, F32, F16, BF16, I64, I32 or BOOL";

/// Types of the format whose numbers are not read, and the bits of one.
struct ForeignType {
  std::string_view name;
  int64_t bits;
};
constexpr ForeignType kForeignTypes[] = {{"U64", 64},    {"C64", 64},        {"U32", 32},    {"U16", 16},
                                         {"I16", 16},    {"U8", 8},          {"I8", 8},      {"F8_E4M3", 8},
                                         {"F8_E5M2", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E8M0", 8}, {"F8_E5M2FNUZ", 8},
                                         {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"F4", 4}};

int64_t order_of(DType dtype) {
  return std::find_if(std::begin(kTypes), std::end(kTypes), [&](const FormatType& t) { return t.dtype == dtype; }) -
         std::begin(kTypes);
}

std::string to_text(const std::vector<int64_t>& shape) {
  return to_string(shape.data(), static_cast<int>(shape.size()));
}

/// Bytes of a dense array of elements of so many bits, or -1 if these, or the elements without the axes of no extent,
/// are more than 2^63 - 1, or end inside a byte: code that multiplies extents in any order is then safe.
int64_t bytes_of_bits(int64_t bits, const std::vector<int64_t>& shape) {
  int64_t all = bits % 8 ? bits : bits / 8;
  bool is_empty = false;
  for (int64_t extent : shape) {
    is_empty |= extent == 0;
    if (__builtin_mul_overflow(all, std::max<int64_t>(extent, 1), &all)) return -1;
  }
  if (is_empty) return 0;
  if (bits % 8 == 0) return all;
  return all % 8 ? -1 : all / 8;
}

int64_t bytes_of(DType dtype, const std::vector<int64_t>& shape) { return bytes_of_bits(8 * size_of(dtype), shape); }

/// The place of the first byte that is not a bool; -1 if there is none. Such a byte in a bool is undefined behaviour.
int64_t first_bad_boolean(std::string_view bytes) {
  const auto bad = std::find_if(bytes.begin(), bytes.end(), [](char byte) { return byte != 0 && byte != 1; });
  return bad == bytes.end() ? -1 : bad - bytes.begin();
}

/// What is wrong with one tensor, into a Checker that may be that of many.
class TensorChecker {
 public:
  TensorChecker(Checker& checker, std::string before, std::string_view name)  // name: borrowed
      : checker_(checker), before_(std::move(before)), name_(name) {}
  template <class Reason>
  bool require(bool condition, const Reason& reason) {
    return checker_.require(condition, [&] { return before_ + "tensor " + in_quotes(name_) + ": " + reason(); });
  }

 private:
  Checker& checker_;
  std::string before_;
  std::string_view name_;
};

// ------------------------------------------------------------------------------------------------------------- reading

/// The length of the JSON text, from the first bytes of a file of `size` bytes; throws unless it can be whole. A good
/// file may begin as files of other kinds do, so their names are for what is refused anyway.
int64_t header_length(std::string_view bytes, int64_t size, const std::string& source) {
  const auto refuse = [&](const std::string& reason) {
    const std::string kind = kind_of_bytes(bytes);
    throw Error("safetensors", {source + ": " + (kind.empty() ? reason : "is " + kind)});
  };
  if (size < kLengthBytes)
    refuse("has " + std::to_string(size) + " bytes, must begin with " + std::to_string(kLengthBytes) +
           " that hold the length of its header");
  uint64_t length = 0;
  for (int64_t n = kLengthBytes - 1; n >= 0; --n) length = length << 8 | static_cast<uint8_t>(bytes[n]);
  if (length > static_cast<uint64_t>(kMaxHeader))
    refuse("the header has " + std::to_string(length) + " bytes by the number at byte 0, at most " +
           std::to_string(kMaxHeader) + " are allowed");
  if (length > static_cast<uint64_t>(size - kLengthBytes))
    refuse("the header has " + std::to_string(length) + " bytes by the number at byte 0, but the file ends " +
           std::to_string(size - kLengthBytes) + " bytes after it: the file is cut off, or is not a safetensors file");
  return static_cast<int64_t>(length);
}

/// One entry of the header.
struct Entry {
  TensorInfo info;        // its dtype is none where the type is foreign
  std::string_view type;  // as the format names it
  int64_t bits = 0;
  bool is_foreign = false;
};

bool read_dtype(TensorChecker& checker, const Json& value, Entry& entry) {
  const std::string name = value.is_string() ? value.get<std::string>() : "";
  for (const FormatType& type : kTypes)
    if (type.name == name) {
      entry.info.dtype = type.dtype;
      entry.type = type.name;
      entry.bits = 8 * size_of(type.dtype);
      return true;
    }
  for (const ForeignType& type : kForeignTypes)
    if (type.name == name) {
      entry.is_foreign = true;
      entry.type = type.name;
      entry.bits = type.bits;
      return true;
    }
  return checker.require(false, [&] { return "dtype is " + as_shown(value) + ", must be one of " + kKnownTypes; });
}

bool read_numbers(TensorChecker& checker, const std::string& what, const Json& value, std::vector<int64_t>& numbers) {
  if (!checker.require(value.is_array(), [&] { return what + " is " + as_shown(value) + ", must be a list"; }) ||
      !checker.require(static_cast<int64_t>(value.size()) <= kMaxRank, [&] {
        return what + " has " + std::to_string(value.size()) + " entries, at most " + std::to_string(kMaxRank);
      }))
    return false;
  for (const Json& entry : value) {
    const std::optional<int64_t> number = whole_number(entry);
    if (!checker.require(number.has_value(), [&] {
          return what + " has the entry " + as_shown(entry) + ", must hold whole numbers from 0 to 2^63 - 1";
        }))
      return false;
    numbers.push_back(*number);
  }
  return true;
}

bool read_range(TensorChecker& checker, const Json& value, TensorInfo& info) {
  std::vector<int64_t> numbers;
  if (!read_numbers(checker, "data_offsets", value, numbers) ||
      !checker.require(numbers.size() == 2, [] { return "data_offsets must be two numbers, begin and end"; }))
    return false;
  info.begin = numbers[0];
  info.end = numbers[1];
  return checker.require(info.begin <= info.end,
                         [&] { return "data_offsets are " + to_text(numbers) + ", must rise"; });
}

/// Records in `checker` all that is wrong with it.
Entry read_entry(TensorChecker& checker, const Json& value) {
  Entry entry;
  TensorInfo& info = entry.info;
  if (!checker.require(value.is_object(), [&] { return "is " + as_shown(value) + ", must be an object"; }))
    return entry;
  bool is_known = true;
  for (const auto& [key, ignored] : value.items())
    if (key != "dtype" && key != "shape" && key != "data_offsets" && is_known)
      is_known =
          checker.require(false, [&, &key = key] { return "has " + in_quotes(key) + ", unknown to the format"; });
  bool is_whole = true;
  for (const char* key : {"dtype", "shape", "data_offsets"})
    is_whole &= checker.require(value.contains(key), [&] { return std::string("has no ") + key; });
  if (!is_known || !is_whole) return entry;

  const bool has_type = read_dtype(checker, value["dtype"], entry);
  const bool has_shape = read_numbers(checker, "shape", value["shape"], info.shape);
  const bool has_range = read_range(checker, value["data_offsets"], info);
  if (!has_type || !has_shape) return entry;
  const int64_t bytes = bytes_of_bits(entry.bits, info.shape);
  const std::string type(entry.is_foreign ? entry.type : name_of(info.dtype));
  const char* part = entry.bits % 8 ? " or no whole number of them" : "";
  if (checker.require(bytes >= 0,
                      [&] { return "shape " + to_text(info.shape) + " has more than 2^63 - 1 bytes" + part; }) &&
      has_range)
    checker.require(bytes == info.end - info.begin, [&] {
      return type + " " + to_text(info.shape) + " has " + std::to_string(bytes) + " bytes, but data_offsets are " +
             to_text({info.begin, info.end});
    });
  return entry;
}

std::map<std::string, std::string> read_metadata(const Json& value, const std::string& source) {
  const auto refuse = [&](const std::string& reason) {
    throw Error("safetensors", {source + ": __metadata__ " + reason});
  };
  if (!value.is_object()) refuse("is " + as_shown(value) + ", must be an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, entry] : value.items()) {
    if (!entry.is_string()) refuse("has " + as_shown(entry) + " at " + in_quotes(key) + ", must hold strings");
    metadata[key] = entry.get<std::string>();
  }
  return metadata;
}

/// Throws unless the tensors are side by side from the first byte of the data, at `begin` of the file, to the last.
void require_cover(const std::map<std::string, TensorInfo>& tensors, int64_t begin, int64_t size,
                   const std::string& source) {
  std::vector<const std::pair<const std::string, TensorInfo>*> order;
  order.reserve(tensors.size());
  for (const auto& entry : tensors) order.push_back(&entry);
  const auto place = [](const auto* entry) { return std::pair(entry->second.begin, entry->second.end); };
  std::stable_sort(order.begin(), order.end(), [&](const auto* a, const auto* b) { return place(a) < place(b); });
  int64_t covered = 0;
  for (const auto* entry : order) {
    const auto& [name, info] = *entry;
    if (info.begin != covered)
      throw Error("safetensors",
                  {source + ": tensor " + in_quotes(name) + " begins at byte " + std::to_string(info.begin) +
                   " of the data, where the tensors before it end at " + std::to_string(covered) +
                   (info.begin < covered ? ": they overlap" : ": there is a hole")});
    covered = info.end;
  }
  const auto in_file = [&](int64_t bytes) {
    return std::to_string(static_cast<uint64_t>(begin) + static_cast<uint64_t>(bytes));
  };
  if (covered > size)
    throw Error("safetensors", {source + ": the file is cut off: it has " + in_file(size) +
                                " bytes, its header promises " + in_file(covered)});
  if (covered != size)
    throw Error("safetensors", {source + ": the tensors end at byte " + std::to_string(covered) +
                                " of the data, which has " + std::to_string(size)});
}

// ------------------------------------------------------------------------------------------------------------- writing

/// Records what the format cannot hold, or the reader would refuse.
void check_tensor(TensorChecker& checker, const NamedTensor& tensor) {
  checker.require(tensor.name != kMetadata, [] { return "the format keeps this name for itself"; });
  checker.require(json_string(tensor.name).has_value(), [] { return "the name is not UTF-8"; });
  checker.require(order_of(tensor.dtype) < std::ssize(kTypes), [] { return "its element type is unknown"; });
  const std::vector<int64_t>& shape = tensor.shape;
  const bool is_positive = std::all_of(shape.begin(), shape.end(), [](int64_t extent) { return extent >= 0; });
  if (!checker.require(static_cast<int64_t>(shape.size()) <= kMaxRank,
                       [&] {
                         return "shape has " + std::to_string(shape.size()) + " entries, at most " +
                                std::to_string(kMaxRank);
                       }) ||
      !checker.require(is_positive, [&] { return "shape " + to_text(shape) + " has a negative extent"; }))
    return;
  const int64_t bytes = bytes_of(tensor.dtype, shape);
  if (!checker.require(bytes >= 0, [&] { return "shape " + to_text(shape) + " has more than 2^63 - 1 bytes"; }) ||
      !checker.require(bytes == 0 || tensor.data || tensor.load, [] { return "has no data"; }) || bytes == 0)
    return;
  if (tensor.load) {
    checker.require(!tensor.data && tensor.stride.empty() && tensor.dtype != DType::boolean,
                    [] { return "has load(), beside which it must have neither data nor strides, nor be boolean"; });
    return;
  }
  if (!tensor.stride.empty()) {
    checker.require(tensor.stride.size() == shape.size() && tensor.dtype != DType::boolean, [&] {
      return "strides " + to_text(tensor.stride) + " do not fit shape " + to_text(shape) +
             (tensor.dtype == DType::boolean ? ": booleans are dense" : "");
    });
    return;
  }
  const std::string_view data(static_cast<const char*>(tensor.data), static_cast<size_t>(bytes));
  const int64_t bad = tensor.dtype == DType::boolean ? first_bad_boolean(data) : -1;
  checker.require(bad < 0, [&] { return "byte " + std::to_string(bad) + " is neither 0 nor 1, as a boolean must be"; });
}

std::string entry_of(const NamedTensor& tensor, int64_t begin, int64_t end) {
  std::string text = *json_string(tensor.name) + ":{\"dtype\":\"";
  text += kTypes[order_of(tensor.dtype)].name;
  text += "\",\"shape\":[";
  for (size_t axis = 0; axis < tensor.shape.size(); ++axis)
    text += (axis > 0 ? "," : "") + std::to_string(tensor.shape[axis]);
  return text + "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

/// Hands over the elements of a tensor in order; rows along the last axis are the pieces that are copied at once.
void write_elements(const NamedTensor& tensor, const Sink& sink) {
  const int64_t element = size_of(tensor.dtype), bytes = bytes_of(tensor.dtype, tensor.shape);
  if (bytes == 0) return;
  const auto* data = static_cast<const char*>(tensor.load ? tensor.load() : tensor.data);
  if (tensor.stride.empty() || tensor.shape.empty()) return sink({data, static_cast<size_t>(bytes)});
  constexpr size_t kPiece = size_t{1} << 20;
  const size_t last = tensor.shape.size() - 1;
  const int64_t width = tensor.shape[last], rows = bytes / element / width;
  std::string piece;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t rest = row, offset = 0;
    for (size_t axis = last; axis-- > 0; rest /= tensor.shape[axis])
      offset += rest % tensor.shape[axis] * tensor.stride[axis];
    const char* from = data + offset * element;
    if (tensor.stride[last] == 1) piece.append(from, static_cast<size_t>(width * element));
    else
      for (int64_t n = 0; n < width; ++n)
        piece.append(from + n * tensor.stride[last] * element, static_cast<size_t>(element));
    if (piece.size() < kPiece && row + 1 < rows) continue;
    sink(piece);
    piece.clear();
  }
}

/// Tensors that have been checked, in the order of the file, and the header that says in place.
class FileLayout {
 public:
  FileLayout(std::string_view operation, std::span<const NamedTensor> tensors,
             const std::map<std::string, std::string>& metadata) {
    check(operation, tensors, metadata);
    for (const NamedTensor& tensor : tensors) order_.push_back(&tensor);
    std::sort(order_.begin(), order_.end(), [](const NamedTensor* a, const NamedTensor* b) {
      return std::pair(order_of(a->dtype), std::string_view(a->name)) <
             std::pair(order_of(b->dtype), std::string_view(b->name));
    });
    header_ = "{";
    if (!metadata.empty()) {
      header_ += "\"__metadata__\":{";
      for (const auto& [key, value] : metadata) header_ += *json_string(key) + ":" + *json_string(value) + ",";
      header_.back() = '}';
    }
    for (const NamedTensor* tensor : order_) {
      const int64_t begin = data_bytes_;
      if (__builtin_add_overflow(begin, bytes_of(tensor->dtype, tensor->shape), &data_bytes_))
        throw Error(operation, {"the tensors have more than 2^63 - 1 bytes"});
      if (header_.size() > 1) header_ += ",";
      header_ += entry_of(*tensor, begin, data_bytes_);
    }
    header_ += "}";
    header_.resize((header_.size() + 7) / 8 * 8, ' ');
    if (static_cast<int64_t>(header_.size()) > kMaxHeader)
      throw Error(operation, {"the header has " + std::to_string(header_.size()) + " bytes, at most " +
                              std::to_string(kMaxHeader) + " are allowed"});
  }

  int64_t size() const { return kLengthBytes + static_cast<int64_t>(header_.size()) + data_bytes_; }

  void write(const Sink& sink) const {
    std::string length;
    for (int n = 0; n < kLengthBytes; ++n) length += static_cast<char>(header_.size() >> 8 * n & 255);
    sink(length + header_);
    for (const NamedTensor* tensor : order_) write_elements(*tensor, sink);
  }

 private:
  static void check(std::string_view operation, std::span<const NamedTensor> tensors,
                    const std::map<std::string, std::string>& metadata) {
    Checker checker(operation);
    std::set<std::string_view> names;
    for (const NamedTensor& tensor : tensors) {
      TensorChecker tensor_checker(checker, "", tensor.name);
      check_tensor(tensor_checker, tensor);
      tensor_checker.require(names.insert(tensor.name).second, [] { return "the name occurs twice"; });
    }
    for (const auto& [key, value] : metadata)
      checker.require(json_string(key) && json_string(value), "metadata " + in_quotes(key) + " is not UTF-8");
    checker.done();
  }

  std::vector<const NamedTensor*> order_;
  std::string header_;
  int64_t data_bytes_ = 0;
};

}  // namespace

/// All but the data, of which there are `data_size` bytes.
void Safetensors::read_header(std::string_view header, int64_t data_size) {
  if (!header.starts_with('{')) throw Error("safetensors", {source_ + ": the header at byte 8 must begin with {"});
  const Json root = parse_json("safetensors", source_, header, kLengthBytes);
  data_begin_ = kLengthBytes + static_cast<int64_t>(header.size());
  std::map<std::string, TensorInfo> all;
  for (const auto& [name, value] : root.items()) {
    if (name == kMetadata) {
      metadata_ = read_metadata(value, source_);
      continue;
    }
    Checker checker("safetensors");
    TensorChecker tensor_checker(checker, source_ + ": ", name);
    Entry entry = read_entry(tensor_checker, value);
    checker.done();
    if (entry.is_foreign) foreign_.emplace(name, entry.type);
    else tensors_.emplace(name, entry.info);
    all.emplace(name, std::move(entry.info));
  }
  require_cover(all, data_begin_, data_size, source_);
}

/// Throws Error if a tensor of booleans, whose bytes these are, has a byte that is none.
void Safetensors::require_booleans(const std::string& name, std::string_view bytes) const {
  const TensorInfo& info = tensors_.at(name);
  const int64_t bad = info.dtype == DType::boolean ? first_bad_boolean(bytes) : -1;
  if (bad >= 0)
    throw Error("safetensors", {source_ + ": tensor " + in_quotes(name) + ": byte " + std::to_string(info.begin + bad) +
                                " of the data is neither 0 nor 1, as BOOL must be"});
}

Safetensors Safetensors::read(const std::string& path, int64_t limit) { return parse(read_file(path, limit), path); }

Safetensors Safetensors::parse(std::string bytes, const std::string& source) {
  const int64_t size = static_cast<int64_t>(bytes.size()), length = header_length(bytes, size, source);
  Safetensors file;
  file.source_ = source;
  file.read_header(std::string_view(bytes).substr(kLengthBytes, length), size - kLengthBytes - length);
  file.bytes_ = std::move(bytes);
  for (const auto& [name, info] : file.tensors_) file.require_booleans(name, file.bytes(name));
  return file;
}

Safetensors Safetensors::open(const std::string& path) {
  Safetensors file;
  file.source_ = path;
  const auto reader = std::make_shared<Reader>(path);
  const int64_t length = header_length(reader->start(), reader->size(), path);
  std::string header(static_cast<size_t>(length), '\0');
  reader->read(kLengthBytes, header.data(), length);
  file.read_header(header, reader->size() - kLengthBytes - length);
  file.file_ = reader;
  return file;
}

Safetensors Safetensors::map(const std::string& path) {
  Safetensors file = open(path);
  file.mapped_ = file.file_->map();
  for (const auto& [name, info] : file.tensors_) file.require_booleans(name, file.bytes(name));
  return file;
}

std::shared_ptr<void> Safetensors::share(const std::string& name) const {
  const TensorInfo& wanted = info(name);
  if (!mapped_) throw Error("safetensors", {source_ + ": tensor " + in_quotes(name) + " is not mapped"});
  return {mapped_, mapped_.get() + data_begin_ + wanted.begin};
}

const TensorInfo& Safetensors::info(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (const auto foreign = foreign_.find(name); foreign != foreign_.end())
    throw Error("safetensors", {source_ + ": tensor " + in_quotes(name) + ": dtype is " + in_quotes(foreign->second) +
                                ", which is not supported: must be " + kKnownTypes});
  if (found == tensors_.end()) throw Error("safetensors", {source_ + ": has no tensor " + in_quotes(name)});
  return found->second;
}

std::string_view Safetensors::bytes(const std::string& name) const {
  const TensorInfo& wanted = info(name);
  if (mapped_) return {mapped_.get() + data_begin_ + wanted.begin, static_cast<size_t>(wanted.end - wanted.begin)};
  if (file_) throw Error("safetensors", {source_ + ": tensor " + in_quotes(name) + " is not in memory: copy it"});
  return std::string_view(bytes_).substr(data_begin_ + wanted.begin, wanted.end - wanted.begin);
}

uint32_t Safetensors::crc32(const std::string& name) const {
  constexpr int64_t kPiece = 1 << 20;
  const TensorInfo& wanted = info(name);
  if (!file_) return io::crc32(bytes(name));
  uint32_t sum = 0;
  std::string piece;
  for (int64_t at = wanted.begin; at < wanted.end; at += kPiece) {
    piece.resize(static_cast<size_t>(std::min(kPiece, wanted.end - at)));
    file_->read(data_begin_ + at, piece.data(), static_cast<int64_t>(piece.size()));
    sum = io::crc32(piece, sum);
  }
  return sum;
}

void Safetensors::require(const std::string& name, DType dtype, std::span<const int64_t> shape) const {
  const TensorInfo& from = info(name);
  const std::vector<int64_t> wanted(shape.begin(), shape.end());
  if (from.dtype != dtype || from.shape != wanted)
    throw Error("safetensors",
                {source_ + ": tensor " + in_quotes(name) + " is " + std::string(name_of(from.dtype)) + " " +
                 to_text(from.shape) + ", must be " + std::string(name_of(dtype)) + " " + to_text(wanted)});
}

void Safetensors::copy(const std::string& name, DType dtype, std::span<const int64_t> shape, void* to) const {
  require(name, dtype, shape);
  const TensorInfo& from = info(name);
  const int64_t count = from.end - from.begin;
  if (count == 0) return;
  if (!to) throw Error("safetensors", {source_ + ": tensor " + in_quotes(name) + ": no memory is given to copy it to"});
  if (!file_) {
    std::memcpy(to, bytes_.data() + data_begin_ + from.begin, static_cast<size_t>(count));
    return;
  }
  file_->read(data_begin_ + from.begin, static_cast<char*>(to), count);
  require_booleans(name, {static_cast<const char*>(to), static_cast<size_t>(count)});
}

std::string_view bytes_of(const NamedTensor& tensor) {
  Checker checker("format_safetensors");
  TensorChecker tensor_checker(checker, "", tensor.name);
  check_tensor(tensor_checker, tensor);
  tensor_checker.require(tensor.stride.empty(), [] { return "has strides: its bytes are apart"; });
  checker.done();
  return {static_cast<const char*>(tensor.load ? tensor.load() : tensor.data),
          static_cast<size_t>(bytes_of(tensor.dtype, tensor.shape))};
}

std::string format_safetensors(std::span<const NamedTensor> tensors,
                               const std::map<std::string, std::string>& metadata) {
  const FileLayout layout("format_safetensors", tensors, metadata);
  std::string bytes;
  bytes.reserve(static_cast<size_t>(layout.size()));
  layout.write([&](std::string_view piece) { bytes += piece; });
  return bytes;
}

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const FileLayout layout("write_safetensors", tensors, metadata);
  write_file(path, [&](const Sink& sink) { layout.write(sink); });
}

}  // namespace attn::io
