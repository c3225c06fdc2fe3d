// UTF-8 of any origin, and JSON strings that are safe in every place of a page.
#pragma once

#include <string>
#include <string_view>

namespace attn::view {

/// The code point at `position`, which moves past it. Each malformed part of UTF-8 is one U+FFFD.
char32_t next_code_point(std::string_view text, size_t& position);

/// A JSON string in which every character except ASCII letters, digits, space and .,_- is written \uXXXX: it cannot
/// become markup, an address or an encoding mistake. Malformed UTF-8 becomes U+FFFD.
std::string json_string(std::string_view text);

}  // namespace attn::view
