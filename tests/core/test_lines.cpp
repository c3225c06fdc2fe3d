// Lines of text that comes in pieces.
#include <gtest/gtest.h>

#include <vector>

#include "attn/core_lines.h"
#include "support/errors.h"

namespace attn::test {
namespace {

using Texts = std::vector<std::string>;

/// The lines of a text that is fed in pieces of `size` bytes; each is asked for as soon as it is there.
Texts lines_of(std::string_view text, size_t size) {
  LineCutter cutter("a.txt");
  Texts lines;
  const auto take = [&] {
    while (const auto line = cutter.next()) {
      lines.emplace_back(*line);
      EXPECT_EQ(cutter.number(), static_cast<int64_t>(lines.size()));
    }
  };
  for (; !text.empty(); text.remove_prefix(std::min(size, text.size()))) {
    cutter.feed(text.substr(0, size));
    take();
  }
  cutter.finish();
  EXPECT_TRUE(cutter.ready());
  take();
  return lines;
}

TEST(Lines, AreTheSameInPiecesOfAnySize) {
  const std::string mark = "\xEF\xBB\xBF", zero("a\0b", 3);
  const std::pair<std::string, Texts> cases[] = {
      {"", {}},
      {mark, {}},
      {"\n", {""}},
      {mark + "\r\n", {""}},
      {"a\nb\n", {"a", "b"}},
      {"a\r\nb\r\n", {"a", "b"}},
      {mark + "a\r\n\r\n\nb", {"a", "", "", "b"}},
      {"a\rb\r\r\nc\r", {"a\rb\r", "c"}},
      {"a\n" + mark + "b", {"a", mark + "b"}},
      {mark + mark + "a", {mark + "a"}},
      {zero + "\n" + std::string(1, '\0'), {zero, std::string(1, '\0')}},
      {"\xC3\xA4\xF0\x9F\x98\x80\n\xE2\x82\xAC", {"\xC3\xA4\xF0\x9F\x98\x80", "\xE2\x82\xAC"}}};
  for (const auto& [text, lines] : cases)
    for (const size_t size : {1, 2, 3, 5, 64}) EXPECT_EQ(lines_of(text, size), lines) << text << " by " << size;
}

TEST(Lines, AreNotReadyBeforeTheirEnd) {
  LineCutter cutter("a.txt");
  EXPECT_FALSE(cutter.ready());
  cutter.feed("a\r");
  EXPECT_FALSE(cutter.ready());
  EXPECT_FALSE(cutter.next());
  EXPECT_EQ(cutter.number(), 0);
  cutter.feed("\nb");
  EXPECT_TRUE(cutter.ready());
  EXPECT_EQ(cutter.next(), "a");
  EXPECT_EQ(cutter.where(), "a.txt, line 1");
  EXPECT_FALSE(cutter.ready());
  cutter.finish();
  EXPECT_EQ(cutter.next(), "b");
  EXPECT_FALSE(cutter.next());
  EXPECT_EQ(cutter.where(), "a.txt, line 2");
}

TEST(Lines, ThatAreNoTextAreNamed) {
  const std::pair<std::string, std::string> cases[] = {
      {"\xFF", "line 1 is not UTF-8 at its byte 0"},
      {"\xEF\xBB\xBF"
       "ab\xC3\n",
       "line 1 is not UTF-8 at its byte 2"},
      {"a\n\r\nab\xED\xA0\x80\r\n", "line 3 is not UTF-8 at its byte 2"},
      {"a\nabcdefghi\xC0\xAF", "line 2 is not UTF-8 at its byte 9"},
      {"\xE0\x80\x80", "line 1 is not UTF-8 at its byte 0"},
      {"\xF4\x90\x80\x80", "line 1 is not UTF-8 at its byte 0"}};
  for (const auto& [text, reason] : cases)
    EXPECT_EQ(error_of([&text = text] { lines_of(text, 2); }), "[read] a.txt, " + reason);
}

}  // namespace
}  // namespace attn::test
