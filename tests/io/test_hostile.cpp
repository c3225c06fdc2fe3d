// io and text under calls that nobody should make: each is an Error that says what is wrong.
#include <cmath>
#include <filesystem>
#include <limits>

#include "attn/io.h"
#include "attn/text.h"
#include "support/hostile.h"

namespace attn::test {
namespace {

using namespace io;
using namespace text;

std::string folder() { return std::filesystem::temp_directory_path().string(); }
std::string long_path() { return "/" + std::string(10000, 'x'); }

TEST(HostileFiles, Files) {
  expect_refused({
      {"read nothing", [] { read_file(""); }, {"[read_file]", "the path is empty"}},
      {"read a directory", [] { read_file(folder()); }, {"[read_file]", "is a folder, must be a file"}},
      {"read what is not there", [] { read_file("/no/such/file"); }, {"[read_file]", "/no/such/file"}},
      {"read a path beyond all limits", [] { read_file(long_path()); }, {"[read_file]", "open"}},
      {"read at most -1 bytes", [] { read_file("/etc/passwd", -1); }, {"[read_file]", "at most -1"}},
      {"write to a directory", [] { write_file(folder(), "x"); }, {"[write_file]", "not a regular file"}},
      {"write to nothing", [] { write_file("", "x"); }, {"[write_file]", "empty"}},
      {"write into a file", [] { write_file("/etc/passwd/x", "x"); }, {"[write_file]", "/etc/passwd/x"}},
      {"write to a path beyond all limits", [] { write_file(long_path(), "x"); }, {"[write_file]"}},
      {"write after a zero byte", [] { write_file(std::string("/tmp/a\0b", 8), "x"); }, {"[write_file]", "zero byte"}},
      {"append two lines", [] { append_line("/dev/null", "a\nb"); }, {"[append_line]", "line break"}},
      {"append to a directory", [] { append_line(folder(), "a"); }, {"[append_line]"}},
      {"a directory over a file", [] { make_directory("/etc/passwd"); }, {"[make_directory]", "/etc/passwd"}},
      {"a directory inside a file", [] { make_directory("/etc/passwd/x"); }, {"[make_directory]"}},
      {"a directory without a name", [] { make_directory(""); }, {"[make_directory]", "empty"}},
      {"no JSON", [] { check_json("here", "this text", "{"); }, {"[here]", "this text", "byte 1"}},
      {"JSON of 10000 levels", [] { check_json("here", "this", std::string(10000, '[')); }, {"[here]", "deeper"}},
  });
}

TEST(HostileFiles, Tensors) {
  expect_refused({
      {"a file of no bytes", [] { Safetensors::parse("", "here"); }, {"[safetensors]", "here"}},
      {"an empty file's bytes", [] { Safetensors().bytes("x"); }, {"[safetensors]", "no tensor \"x\""}},
      {"an empty file's copy", [] { Safetensors().copy("x", DType::float32, {}, nullptr); }, {"[safetensors]"}},
      {"an empty file is asked for a tensor",
       [] { Safetensors().require("x", DType::float32, {}); },
       {"[safetensors]", "no tensor \"x\""}},
      {"a tensor without data",
       [] {
         format_safetensors(std::vector<NamedTensor>{{"x", DType::float32, {2}}}, {});
       },
       {"[format_safetensors]", "\"x\"", "no data"}},
      {"a tensor of a negative extent",
       [] {
         format_safetensors(std::vector<NamedTensor>{{"x", DType::float32, {-2}, "abc"}}, {});
       },
       {"[format_safetensors]", "[-2]"}},
      {"a tensor that overflows",
       [] {
         const int64_t many = int64_t{1} << 62;
         format_safetensors(std::vector<NamedTensor>{{"x", DType::float32, {many, many}, "abc"}}, {});
       },
       {"[format_safetensors]", "2^63"}},
      {"a tensor of no type",
       [] {
         format_safetensors(std::vector<NamedTensor>{{"x", static_cast<DType>(99), {1}, "abc"}}, {});
       },
       {"[format_safetensors]", "\"x\"", "element type"}},
      {"two tensors of one name",
       [] {
         format_safetensors(std::vector<NamedTensor>{{"x"}, {"x"}}, {});
       },
       {"[format_safetensors]", "twice"}},
      {"metadata that are not UTF-8",
       [] {
         format_safetensors({}, {{"\xff", "x"}});
       },
       {"[format_safetensors]", "not UTF-8"}},
      {"bytes of a tensor without data",
       [] {
         bytes_of({"x", DType::float32, {2}});
       },
       {"[format_safetensors]", "no data"}},
      {"bytes of a tensor of a negative extent",
       [] {
         bytes_of({"x", DType::float32, {-2}, "abc"});
       },
       {"[format_safetensors]", "[-2]"}},
  });
  EXPECT_EQ(bytes_of({"x", DType::float32, {1}, "abcd"}), "abcd");
}

TEST(HostileFiles, Tokenizers) {
  expect_refused({
      {"characters of nothing", [] { characters_of(""); }, {"[characters_of]", "empty"}},
      {"characters of no text", [] { characters_of("\xff"); }, {"not UTF-8"}},
      {"a character outside", [] { characters_of("abc")->encode_ids("abd"); }, {"[encode]", "byte 2"}},
      {"encode no text", [] { characters_of("abc")->encode_ids("a\xc3"); }, {"not UTF-8 at byte 1"}},
      {"characters: an id outside",
       [] {
         characters_of("abc")->decode(std::vector<int64_t>{0, 3});
       },
       {"[decode]", "id 3 at index 1"}},
      {"characters: a label outside", [] { characters_of("abc")->label(-1); }, {"[decode]", "id -1"}},
      {"bytes: an id outside", [] { bytes()->decode(std::vector<int64_t>{256}); }, {"[decode]", "id 256"}},
      {"bytes: a label outside", [] { bytes()->label(std::numeric_limits<int64_t>::min()); }, {"[decode]"}},
      {"words: an id outside",
       [] { words_of(std::vector<std::string>{"a a"})->decode(std::vector<int64_t>{-1}); },
       {"[decode]", "id -1"}},
      {"words: a label outside", [] { words_of(std::vector<std::string>{"a a"})->label(99); }, {"[decode]", "id 99"}},
      {"words of nothing", [] { words_of({}); }, {"[words_of]", "none of the 0 words"}},
      {"words of no text", [] { words_of(std::vector<std::string>{"\xff"}); }, {"text 0", "not UTF-8"}},
      {"words with nonsense",
       [] { words_of(std::vector<std::string>{"a"}, {.min_count = -1, .max_words = -1}); },
       {"[words_of]", "min_count", "max_words"}},
      {"a vocabulary of nothing", [] { load_tokenizer("", "here"); }, {"[load_tokenizer]", "here"}},
      {"a vocabulary of a list", [] { load_tokenizer("[]", "here"); }, {"[load_tokenizer]", "here"}},
      {"no UTF-8", [] { require_utf8("ab\xf5", "here"); }, {"[require_utf8]", "here", "byte 2"}},
  });
}

}  // namespace
}  // namespace attn::test
