// safetensors: written as the reference writes them, read back, and refused where anything is wrong with them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <vector>

#include "attn/io.h"
#include "support/arrays.h"
#include "support/fuzz.h"

namespace attn::test {
namespace {

using io::NamedTensor;
using io::Safetensors;

std::string length_bytes(uint64_t length) {
  std::string bytes;
  for (int n = 0; n < 8; ++n) bytes += static_cast<char>(length >> 8 * n & 255);
  return bytes;
}

std::string file_of(const std::string& header, size_t data = 0) {
  return length_bytes(header.size()) + header + std::string(data, 0);
}

const float kFloats[6] = {1, -2, 3.5f, 0, 1e30f, -1e-30f};
const int64_t kWholes[2] = {-5, int64_t{1} << 40};
const bool kFlags[3] = {true, false, true};
const uint16_t kHalves[1] = {0x3F80};

std::vector<NamedTensor> four_tensors() {
  return {{"weight", DType::float32, {2, 3}, kFloats},
          {"flags", DType::boolean, {3}, kFlags},
          {"steps", DType::int64, {2}, kWholes},
          {"scale", DType::bfloat16, {}, kHalves}};
}

/// Everything that an accepted file promises; copies every byte, so that a sanitizer sees a bad one.
void expect_sound(const Safetensors& file, size_t file_size) {
  int64_t total = 0;
  for (const auto& [name, info] : file.tensors()) {
    int64_t count = 1;
    for (int64_t extent : info.shape) count *= extent;
    ASSERT_EQ(info.end - info.begin, count * size_of(info.dtype)) << name;
    ASSERT_EQ(static_cast<int64_t>(file.bytes(name).size()), info.end - info.begin) << name;
    const std::unique_ptr<char[]> copy(new char[info.end - info.begin]);
    file.copy(name, info.dtype, info.shape, copy.get());
    ASSERT_EQ(std::memcmp(copy.get(), file.bytes(name).data(), info.end - info.begin), 0) << name;
    total += info.end - info.begin;
  }
  ASSERT_LE(total + 8, static_cast<int64_t>(file_size));
}

/// What the format's reference writer (safetensors 0.8.0 for Python) made of the same tensors, to the byte.
TEST(Safetensors, WritesWhatTheReferenceWrites) {
  const std::string zeros(16, 0);
  const std::vector<NamedTensor> tensors = {
      {"z", DType::float64, {2}, zeros.data()},  {"t1", DType::float32, {2}, zeros.data()},
      {"t2", DType::float16, {2}, zeros.data()}, {"t4", DType::int64, {2}, zeros.data()},
      {"t5", DType::int32, {2}, zeros.data()},   {"t6", DType::boolean, {2}, zeros.data()},
      {"a\"é\x7f", DType::float32, {0, 3}},      {"b", DType::float32, {}, zeros.data()}};
  const std::string header =
      "{\"__metadata__\":{\"a\":\"\x7f\\n\\u0001é\\\\/\"},"
      "\"t4\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]},"
      "\"z\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[16,32]},"
      "\"a\\\"é\x7f\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[32,32]},"
      "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[32,36]},"
      "\"t1\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[36,44]},"
      "\"t5\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[44,52]},"
      "\"t2\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[52,56]},"
      "\"t6\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[56,58]}}";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(io::format_safetensors(tensors, {{"a", "\x7f\n\x01é\\/"}}), file_of(padded, 58));
  EXPECT_EQ(io::format_safetensors({}, {}), file_of("{}      "));
}

TEST(Safetensors, RoundTrip) {
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"\"\n", "é"}, {"", ""}};
  std::vector<NamedTensor> tensors = four_tensors();
  const std::string bytes = io::format_safetensors(tensors, metadata);
  std::reverse(tensors.begin(), tensors.end());
  EXPECT_EQ(io::format_safetensors(tensors, metadata), bytes) << "order of the tensors";
  EXPECT_EQ(bytes[0] % 8, 0);

  const Safetensors file = Safetensors::parse(bytes, "a.safetensors");
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(file.tensors().size(), 4u);
  for (const NamedTensor& tensor : tensors) {
    ASSERT_TRUE(file.has(tensor.name));
    EXPECT_EQ(file.tensors().at(tensor.name).dtype, tensor.dtype);
    EXPECT_EQ(file.tensors().at(tensor.name).shape, tensor.shape);
    const std::string_view data = file.bytes(tensor.name);
    EXPECT_EQ(std::memcmp(data.data(), tensor.data, data.size()), 0) << tensor.name;
  }
  EXPECT_FALSE(file.has("__metadata__"));
  expect_sound(file, bytes.size());
  const Safetensors copy = file;  // views of the copy are its own
  EXPECT_NE(copy.bytes("weight").data(), file.bytes("weight").data());
}

/// A tensor with strides is written as the dense one that has its elements, in pieces of a megabyte.
TEST(Safetensors, StridesAreGathered) {
  constexpr int64_t kRows = 1300, kColumns = 257;  // 1.3 MB of float32: more than a piece, whose end is no row's
  std::vector<float> numbers(static_cast<size_t>(kRows * kColumns));
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  const float* all = numbers.data();
  struct Case {
    std::vector<int64_t> shape, stride;
    int64_t first;  // the element that is first
  };
  for (const Case& c : {Case{{kRows, kColumns}, {kColumns, 1}, 0}, Case{{kColumns, kRows}, {1, kColumns}, 0},
                        Case{{kRows, kColumns}, {-kColumns, -1}, kRows * kColumns - 1}, Case{{3, 4}, {0, 2}, 5},
                        Case{{2, 3, 5}, {7, 1000, 3}, 1}, Case{{2, 3, 5}, {1000, 7, 1}, 2}, Case{{6}, {40}, 3}}) {
    std::vector<float> dense;
    const int64_t last = std::ssize(c.shape) - 1;
    std::vector<int64_t> at(c.shape.size(), 0);
    for (bool more = true; more;) {
      int64_t offset = c.first;
      for (int64_t axis = 0; axis <= last; ++axis) offset += at[axis] * c.stride[axis];
      dense.push_back(all[offset]);
      int64_t axis = last;
      while (axis >= 0 && ++at[axis] == c.shape[axis]) at[axis--] = 0;
      more = axis >= 0;
    }
    const NamedTensor lies[] = {{"x", DType::float32, c.shape, all + c.first, c.stride}};
    const NamedTensor wanted[] = {{"x", DType::float32, c.shape, dense.data()}};
    EXPECT_TRUE(io::format_safetensors(lies, {}) == io::format_safetensors(wanted, {})) << c.shape.size();
  }
  const NamedTensor wrong[] = {{"x", DType::float32, {2, 3}, all, {3}}};
  EXPECT_THROW(io::format_safetensors(wrong, {}), Error);
}

/// 640 is 80 02 in little-endian bytes, as a pickle begins.
TEST(Safetensors, AGoodFileMayBeginLikeAPickle) {
  const std::string header = "{\"__metadata__\":{\"a\":\"" + std::string(640 - 26, 'x') + "\"}} ";
  const std::string bytes = file_of(header);
  ASSERT_EQ(bytes.substr(0, 2), "\x80\x02");
  EXPECT_EQ(Safetensors::parse(bytes, "a").metadata().at("a").size(), 614u);
}

TEST(Safetensors, CopyRefuses) {
  const Safetensors file = Safetensors::parse(io::format_safetensors(four_tensors(), {}), "m.safetensors");
  float to[6] = {7, 7, 7, 7, 7, 7};
  const auto refusal = [&](const char* name, DType dtype, std::vector<int64_t> shape, void* memory) {
    return error_of([&] { file.copy(name, dtype, shape, memory); });
  };
  EXPECT_TRUE(has(refusal("bias", DType::float32, {6}, to), "m.safetensors: has no tensor \"bias\""));
  EXPECT_TRUE(has(refusal("weight", DType::float64, {2, 3}, to),
                  "tensor \"weight\" is float32 [2, 3], must be float64 [2, 3]"));
  EXPECT_TRUE(has(refusal("weight", DType::float32, {3, 2}, to), "must be float32 [3, 2]"));
  EXPECT_TRUE(has(refusal("weight", DType::float32, {6}, to), "must be float32 [6]"));
  EXPECT_TRUE(has(refusal("weight", DType::float32, {2, 3}, nullptr), "no memory is given"));
  EXPECT_TRUE(has(error_of([&] { file.bytes("x\n"); }), "has no tensor \"x\\n\""));
  for (float value : to) EXPECT_EQ(value, 7);
}

TEST(Safetensors, WriterRefuses) {
  const auto refusal = [](std::vector<NamedTensor> tensors, const std::map<std::string, std::string>& metadata = {}) {
    return error_of([&] { io::format_safetensors(tensors, metadata); });
  };
  const uint8_t two = 2;
  const int64_t huge = int64_t{1} << 32;
  const NamedTensor good = {"a", DType::float32, {1}, kFloats};
  EXPECT_EQ(refusal({good}), "");
  EXPECT_TRUE(has(refusal({good, good}), "[format_safetensors] tensor \"a\": the name occurs twice"));
  EXPECT_TRUE(has(refusal({{"__metadata__", DType::float32, {1}, kFloats}}), "keeps this name for itself"));
  EXPECT_TRUE(has(refusal({{"\xff", DType::float32, {1}, kFloats}}), "the name is not UTF-8"));
  EXPECT_TRUE(has(refusal({{"a", DType::float32, {2, -1}, kFloats}}), "shape [2, -1] has a negative extent"));
  EXPECT_TRUE(has(refusal({{"a", DType::float32, {huge, huge}, kFloats}}), "has more than 2^63 - 1 bytes"));
  EXPECT_TRUE(has(refusal({{"a", DType::float32, std::vector<int64_t>(65, 1), kFloats}}), "shape has 65 entries"));
  EXPECT_TRUE(has(refusal({{"a", DType::float32, {1}, nullptr}}), "has no data"));
  EXPECT_TRUE(has(refusal({{"a", DType::boolean, {1}, &two}}), "byte 0 is neither 0 nor 1"));
  EXPECT_TRUE(has(refusal({good}, {{"k", "\xc3"}}), "metadata \"k\" is not UTF-8"));
  EXPECT_TRUE(has(refusal({good}, {{"\xc3", "v"}}), "metadata"));
  if (effort() == Effort::quick) return;  // what follows takes a second, and ten under the sanitizers
  EXPECT_TRUE(has(refusal({good}, {{"k", std::string(100'000'000, 'x')}}), "at most 100000000 are allowed"));
}

struct BadFile {
  std::string bytes, piece;
};

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& range) {
  return "\"" + name + "\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + range + "}";
}

/// A header of one tensor "a" over 24 bytes of data.
std::string one(const std::string& dtype, const std::string& shape, const std::string& range) {
  return file_of("{" + entry("a", dtype, shape, range) + "}", 24);
}

/// Two float32 tensors.
std::string two(const std::string& shape, const std::string& range, const std::string& other_shape,
                const std::string& other_range, size_t data) {
  return file_of(
      "{" + entry("a", "\"F32\"", shape, range) + "," + entry("b", "\"F32\"", other_shape, other_range) + "}", data);
}

std::vector<BadFile> bad_lengths() {
  const std::string zeros(24, 0);
  return {{"", "is an empty file"},
          {"1234567", "has 7 bytes"},
          {length_bytes(1), "the file ends 0 bytes after it"},
          {length_bytes(3) + "{}",
           "has 3 bytes by the number at byte 0, but the file ends 2 bytes after it: the file is cut off, or is "
           "not a safetensors file"},
          {length_bytes(100'000'001) + "{}", "has 100000001 bytes by the number at byte 0, at most 100000000"},
          {length_bytes(uint64_t{1} << 63) + "{}", "has 9223372036854775808 bytes"},
          {length_bytes(~uint64_t{0}) + "{}", "has 18446744073709551615 bytes"},
          {length_bytes(~uint64_t{0} - 7) + "{}", "has 18446744073709551608 bytes"},
          {length_bytes(0) + "{}", "the header at byte 8 must begin with {"},
          {"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", "is a pickle, which is code and is not run"},
          {"\x80\x04\x95" + zeros, "save_pretrained(folder) of transformers writes model.safetensors"},
          {"PK\3\4" + zeros, "is a zip archive, as PyTorch's .pt and .bin are"},
          {"PK\3\4", "is a zip archive"},
          {"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "is a pointer of git-lfs in place of a file"}};
}

std::vector<BadFile> bad_json() {
  const std::string deep(100'000, '['), a = entry("a", "\"F32\"", "[0]", "[0,0]");
  std::string deep_objects = "{";
  for (int n = 0; n < 100'000; ++n) deep_objects += "\"a\":{";
  return {{file_of(" {}"), "must begin with {"},
          {file_of("\xef\xbb\xbf{}"), "must begin with {"},
          {file_of("[]"), "must begin with {"},
          {file_of("null"), "must begin with {"},
          {file_of("{"), "not JSON at byte 9: "},
          {file_of("{}x"), "not JSON at byte 10: "},
          {file_of("{}{}"), "not JSON at byte 10: "},
          {file_of(std::string("{}\0", 3)), "not JSON at byte 10: there is a zero byte"},
          {file_of(std::string("{}\0garbage", 10)), "not JSON at byte 10: there is a zero byte"},
          {file_of("{" + a + ",}"), "unexpected '}'"},
          {file_of("{" + a + " " + a + "}"), "not JSON at byte "},
          {file_of("{'a':1}"), "not JSON at byte 9: "},
          {file_of("{}//"), "not JSON at byte 10: "},
          {file_of("{\"a\":NaN}"), "not JSON at byte 13"},
          {file_of("{\"a\":01}"), "not JSON at byte 14"},
          {file_of("{\"\xff\":1}"), "ill-formed UTF-8"},
          {file_of("{\"\xc0\x80\":1}"), "ill-formed UTF-8"},
          {file_of("{\"\xed\xa0\x80\":1}"), "ill-formed UTF-8"},
          {file_of("{\"\\ud800\":1}"), "surrogate"},
          {file_of("{\"a\nb\":1}"), "control character"},
          {file_of("{\"a\":1e999}"), "number overflow"},
          {file_of("{\"a\":" + std::string(5000, '9') + "e999}"), "number overflow"},
          {file_of("{\"a\":\"" + std::string(100'000, 'x')), "missing closing quote"},
          {file_of("{\"a\":" + deep), "nested deeper than 64 levels"},
          {file_of(deep_objects), "nested deeper than 64 levels"},
          {file_of("{" + a + "," + a + "}"), "the key \"a\" occurs twice"},
          {file_of("{" + a + ",\"\\u0061\":1}"), "the key \"a\" occurs twice"},
          {file_of("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}"), "the key \"dtype\" occurs twice"},
          {file_of("{\"__metadata__\":{},\"__metadata__\":{}}"), "the key \"__metadata__\" occurs twice"},
          {file_of("{\"__metadata__\":{\"k\":\"1\",\"k\":\"1\"}}"), "the key \"k\" occurs twice"},
          {file_of("{\"" + std::string(100'000, 'x') + "\":1}"), "xxx\"...: is 1, must be an object"},
          {file_of("{\"\\u001b[2J\":1}"), "tensor \"\\u001b[2J\": is 1"}};
}

std::vector<BadFile> bad_entries() {
  const std::string f32 = "\"F32\"", whole = "[2,3]", range = "[0,24]";
  std::string axes = "[1";
  for (int n = 0; n < 64; ++n) axes += ",1";
  return {{file_of("{\"a\":null}"), "tensor \"a\": is null, must be an object"},
          {file_of("{\"a\":\"F32\"}"), "tensor \"a\": is \"F32\", must be an object"},
          {file_of("{\"a\":[]}"), "tensor \"a\": is a list, must be an object"},
          {file_of("{\"a\":{}}"), "\"a\": has no dtype; bad.safetensors: tensor \"a\": has no shape"},
          {file_of("{\"a\":{\"shape\":[0],\"data_offsets\":[0,0]}}"), "has no dtype"},
          {file_of("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,0]}}"), "has no shape"},
          {file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[0]}}"), "has no data_offsets"},
          {file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"offsets\":[0,0]}}"), "has \"offsets\", unknown"},
          {one("32", whole, range), "dtype is 32, must be one of F64"},
          {one("null", whole, range), "dtype is null"},
          {one("[\"F32\"]", whole, range), "dtype is a list"},
          {one("\"\"", whole, range), "dtype is \"\""},
          {one("\"f32\"", whole, range), "dtype is \"f32\", must be one of F64"},
          {one("\"float32\"", whole, range), "must be one of F64, F32, F16, BF16, I64, I32 or BOOL"},
          {one("\"I8\"", "[23]", range), "I8 [23] has 23 bytes, but data_offsets are [0, 24]"},
          {one("\"C64\"", "[4]", range), "C64 [4] has 32 bytes"},
          {one("\"F4\"", "[3,5]", range), "shape [3, 5] has more than 2^63 - 1 bytes or no whole number of them"},
          {one("\"F6_E2M3\"", "[4]", range), "F6_E2M3 [4] has 3 bytes"},
          {one("\"U64\"", "[9223372036854775807]", range), "has more than 2^63 - 1 bytes"},
          {one(f32, "6", range), "shape is 6, must be a list"},
          {one(f32, "\"[6]\"", range), "shape is \"[6]\", must be a list"},
          {one(f32, "{}", range), "shape is an object"},
          {one(f32, "null", range), "shape is null"},
          {one(f32, "[-6]", range), "shape has the entry -6"},
          {one(f32, "[-2,-3]", range), "shape has the entry -2"},
          {one(f32, "[-0]", range), "float32 [0] has 0 bytes"},
          {one(f32, "[6.0]", range), "shape has the entry 6.0"},
          {one(f32, "[6e0]", range), "shape has the entry 6.0"},
          {one(f32, "[\"6\"]", range), "shape has the entry \"6\""},
          {one(f32, "[true]", range), "shape has the entry true"},
          {one(f32, "[null]", range), "shape has the entry null"},
          {one(f32, "[[6]]", range), "shape has the entry a list"},
          {one(f32, "[9223372036854775808]", range), "shape has the entry 9223372036854775808"},
          {one(f32, "[18446744073709551622]", range), "shape has the entry 1.8"},
          {one(f32, "[9223372036854775807]", range), "shape [9223372036854775807] has more than 2^63 - 1 bytes"},
          {one(f32, "[4294967296,4294967296]", range), "has more than 2^63 - 1 bytes"},
          {one(f32, "[0,4294967296,4294967296]", "[0,0]"), "has more than 2^63 - 1 bytes"},
          {one(f32, axes + "]", range), "shape has 65 entries, at most 64"},
          {file_of("{" + entry("a", "\"BOOL\"", "[2]", "[0,2]") + "}") + "\1\2",
           "byte 1 of the data is neither 0 nor 1, as BOOL must be"},
          {one(f32, whole, "24"), "data_offsets is 24, must be a list"},
          {one(f32, whole, "{\"begin\":0}"), "data_offsets is an object"},
          {one(f32, whole, "[]"), "data_offsets must be two numbers"},
          {one(f32, whole, "[24]"), "data_offsets must be two numbers"},
          {one(f32, whole, "[0,24,24]"), "data_offsets must be two numbers"},
          {one(f32, whole, "[-1,24]"), "data_offsets has the entry -1"},
          {one(f32, whole, "[0.0,24]"), "data_offsets has the entry 0.0"},
          {one(f32, whole, "[\"0\",\"24\"]"), "data_offsets has the entry \"0\""},
          {one(f32, whole, "[24,0]"), "data_offsets are [24, 0], must rise"},
          {one(f32, whole, "[0,25]"), "float32 [2, 3] has 24 bytes, but data_offsets are [0, 25]"},
          {one(f32, whole, "[9223372036854775783,9223372036854775807]"), "there is a hole"},
          {one(f32, whole, "[0,20]"), "float32 [2, 3] has 24 bytes, but data_offsets are [0, 20]"},
          {one(f32, "[2,2]", range), "float32 [2, 2] has 16 bytes, but data_offsets are [0, 24]"},
          {one(f32, "[]", range), "float32 [] has 4 bytes"},
          {one(f32, "[0]", range), "float32 [0] has 0 bytes"},
          {one("\"F64\"", whole, range), "float64 [2, 3] has 48 bytes"},
          {one("\"F31\"", "[-1]", "[1]"), "data_offsets must be two numbers"}};
}

std::vector<BadFile> bad_covers() {
  return {
      {one("\"F32\"", "[5]", "[4,24]"), "begins at byte 4 of the data, where the tensors before it end at 0: there is"},
      {one("\"F32\"", "[5]", "[0,20]"), "the tensors end at byte 20 of the data, which has 24"},
      {two("[1]", "[0,4]", "[1]", "[8,12]", 12), "tensor \"b\" begins at byte 8 of the data"},
      {two("[2]", "[0,8]", "[2]", "[4,12]", 12), "where the tensors before it end at 8: they overlap"},
      {two("[2]", "[0,8]", "[2]", "[0,8]", 8), "they overlap"},
      {two("[2]", "[0,8]", "[0]", "[4,4]", 8), "they overlap"},
      {two("[2]", "[0,8]", "[1]", "[2,6]", 8), "they overlap"},
      {two("[1]", "[0,4]", "[1]", "[4,8]", 9), "the tensors end at byte 8 of the data, which has 9"},
      {two("[0]", "[0,0]", "[0]", "[1,1]", 1), "there is a hole"},
      {two("[1]", "[0,4]", "[1]", "[4,8]", 7), "the file is cut off: it has 122 bytes, its header promises 123"},
      {two("[1]", "[0,4]", "[2305843009213693950]", "[4,9223372036854775804]", 7), "the file is cut off: it has"},
      {file_of("{}", 1), "the tensors end at byte 0 of the data, which has 1"},
      {file_of("{\"__metadata__\":{}}", 8), "the tensors end at byte 0"},
      {file_of("{\"__metadata__\":[]}"), "__metadata__ is a list, must be an object"},
      {file_of("{\"__metadata__\":\"\"}"), "__metadata__ is \"\", must be an object"},
      {file_of("{\"__metadata__\":null}"), "__metadata__ is null"},
      {file_of("{\"__metadata__\":{\"step\":1}}"), "__metadata__ has 1 at \"step\", must hold strings"},
      {file_of("{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}"), "__metadata__ has an object at \"a\""},
      {file_of("{\"__metadata__\":{\"a\":null}}"), "__metadata__ has null at \"a\""}};
}

TEST(Safetensors, BadFiles) {
  size_t count = 0;
  for (const auto& corpus : {bad_lengths(), bad_json(), bad_entries(), bad_covers()})
    for (const BadFile& bad : corpus) {
      const std::string message = error_of([&] { Safetensors::parse(bad.bytes, "bad.safetensors"); });
      EXPECT_TRUE(has(message, bad.piece));
      EXPECT_TRUE(is_readable(message, "[safetensors] bad.safetensors: "));
      ++count;
    }
  EXPECT_GE(count, 100u);
}

TEST(Safetensors, EveryPrefixIsRefused) {
  const std::string bytes = io::format_safetensors(four_tensors(), {{"k", "v"}});
  EXPECT_EQ(error_of([&] { Safetensors::parse(bytes, "a.st"); }), "");
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_TRUE(is_readable(error_of([&] { Safetensors::parse(bytes.substr(0, size), "a.st"); }), "a.st")) << size;
  EXPECT_TRUE(is_readable(error_of([&] { Safetensors::parse(bytes + '\0', "a.st"); }), "a.st"));
}

/// A change of a name or of metadata is none of the structure; all else is refused.
TEST(Safetensors, EveryBitOfTheHeader) {
  const std::string bytes = io::format_safetensors(four_tensors(), {{"k", "v"}});
  const Safetensors whole = Safetensors::parse(bytes, "a.st");
  size_t data = 0;
  for (const auto& [name, info] : whole.tensors()) data += static_cast<size_t>(info.end - info.begin);
  size_t refused = 0;
  for (size_t bit = 0; bit < 8 * (bytes.size() - data); ++bit) {
    std::string changed = bytes;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
    const std::string message = error_of([&] {
      const Safetensors file = Safetensors::parse(changed, "a.st");
      expect_sound(file, changed.size());
      EXPECT_GE(file.tensors().size(), 4u) << bit;
    });
    if (message.empty()) continue;
    ++refused;
    EXPECT_TRUE(is_readable(message, "a.st")) << bit;
  }
  EXPECT_GE(refused, 8 * (bytes.size() - data) * 2 / 3);
}

TEST(Safetensors, MutatedFiles) {
  std::vector<std::string_view> words(std::begin(kJsonWords), std::end(kJsonWords));
  words.insert(words.end(), {"\"dtype\":\"F32\"", "\"shape\":[1]", "\"data_offsets\":[0,4]", "\"__metadata__\"",
                             "\"BOOL\"", "9223372036854775807", "\"I8\""});
  const std::string seeds[] = {io::format_safetensors(four_tensors(), {{"k", "v"}}), io::format_safetensors({}, {}),
                               one("\"F32\"", "[2,3]", "[0,24]"), two("[1]", "[0,4]", "[0]", "[4,4]", 4)};
  int64_t accepted = 0;
  const int64_t rounds = sample(1'000'000, {.quick = 20'000, .normal = 20'000, .seconds = 20}, [&](int64_t n) {
    Random random(1, n);
    std::string bytes = seeds[random.below(4)];
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    std::string header = bytes.substr(8, length), data = bytes.substr(8 + length);
    for (int64_t changes = random.below(4); changes >= 0; --changes) header = mutated(header, random, words);
    bytes = length_bytes(header.size()) + header + data;  // else hardly any header would be parsed
    if (random.below(4) == 0) bytes = mutated(bytes, random, words);
    const std::string message = error_of([&] { expect_sound(Safetensors::parse(bytes, "a.st"), bytes.size()); });
    accepted += message.empty();
    ASSERT_TRUE(message.empty() || is_readable(message, "a.st"));
  });
  EXPECT_GE(accepted, rounds / 1000);
}

// ----------------------------------------------------------------------------------------------------- piece by piece

TEST(Safetensors, OpenedAndParsedAreTheSame) {
  const std::string path = std::filesystem::temp_directory_path() / ("attn_open_" + std::to_string(getpid()));
  const std::string bytes = io::format_safetensors(four_tensors(), {{"a", "b"}});
  io::write_file(path, bytes);
  const Safetensors parsed = Safetensors::parse(bytes, path), opened = Safetensors::open(path);
  EXPECT_EQ(opened.metadata(), parsed.metadata());
  ASSERT_EQ(opened.tensors().size(), parsed.tensors().size());
  for (const auto& [name, info] : parsed.tensors()) {
    EXPECT_EQ(opened.tensors().at(name).begin, info.begin);
    std::string copy(static_cast<size_t>(info.end - info.begin), 'x');
    opened.copy(name, info.dtype, info.shape, copy.data());
    EXPECT_EQ(copy, parsed.bytes(name));
    EXPECT_EQ(opened.crc32(name), io::crc32(copy));
    EXPECT_EQ(parsed.crc32(name), io::crc32(copy));
    EXPECT_THROW(opened.bytes(name), Error);
    EXPECT_EQ(io::crc32_combined(io::crc32("abc"), io::crc32(copy), info.end - info.begin), io::crc32("abc" + copy));
  }
  // What was cut off after it was opened, in every place; and what was never whole.
  for (size_t size = bytes.size(); size-- > 0;) {
    std::filesystem::resize_file(path, size);
    EXPECT_THROW(Safetensors::open(path), Error) << size;
  }
  for (const auto& [name, info] : parsed.tensors())
    if (info.end > info.begin) {
      EXPECT_THROW(opened.crc32(name), Error);
    }
  std::filesystem::remove(path);
}

TEST(Safetensors, ForeignTypesAreCheckedAndNotRead) {
  const std::string header = "{" + entry("a", "\"U8\"", "[3]", "[0,3]") + "," + entry("b", "\"F4\"", "[2]", "[3,4]") +
                             "," + entry("c", "\"F32\"", "[1]", "[4,8]") + "}";
  const Safetensors file = Safetensors::parse(file_of(header, 8), "a.st");
  EXPECT_EQ(file.tensors().size(), 1u);
  EXPECT_EQ(file.foreign(), (std::map<std::string, std::string>{{"a", "U8"}, {"b", "F4"}}));
  EXPECT_FALSE(file.has("a"));
  const std::string message = error_of([&] { file.bytes("a"); });
  EXPECT_TRUE(has(message, "tensor \"a\": dtype is \"U8\", which is not supported: must be F64, F32"));
}

TEST(Safetensors, OpenedBooleansAreChecked) {
  const std::string path = std::filesystem::temp_directory_path() / ("attn_bool_" + std::to_string(getpid()));
  const std::string header = R"({"b":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})";
  std::string bytes = file_of(header + std::string((8 - header.size() % 8) % 8, ' '), 2);
  bytes.back() = 2;
  io::write_file(path, bytes);
  const Safetensors file = Safetensors::open(path);
  char to[2];
  EXPECT_THROW(file.copy("b", DType::boolean, std::vector<int64_t>{2}, to), Error);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace attn::test
