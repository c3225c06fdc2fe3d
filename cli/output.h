// Texts on standard output and messages on standard error, with what a terminal must not receive made visible.
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace cli {

/// Text from outside as a terminal may receive it: control characters except those of `kept`, and bytes that are not
/// UTF-8, become "\x1b".
std::string printable(std::string_view text, std::string_view kept = "");

/// Text from outside for standard output: on a terminal printable(), with line breaks and tabs.
std::string for_output(const std::string& text);

/// Writes for_output(text) to standard output, without delay. Throws std::system_error if it cannot be written.
void show(const std::string& text);

/// A value as a message shows it: a text as printable().
template <class Value>
auto as_said(const Value& value) {
  if constexpr (std::is_convertible_v<const Value&, std::string_view>) return printable(value);
  else return value;
}

/// Writes a message to standard error, texts in it as printable(). A failure to write is ignored.
template <class... Values>
void say(fmt::format_string<Values...> format, Values&&... values) {
  const auto print = [&](const auto&... each) {
    std::fputs(fmt::vformat(fmt::string_view(format), fmt::make_format_args(each...)).c_str(), stderr);
  };
  print(as_said(values)...);
}

/// "a, b" of {"a", "b"} and ", ".
std::string joined(const std::vector<std::string>& parts, const std::string& separator);

}  // namespace cli
