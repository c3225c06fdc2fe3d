// Labels as a person reads them, and JSON that is inert wherever it is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace attn::view {

/// The code point at `position`, which moves past it. Each malformed part of UTF-8 is one U+FFFD.
char32_t next_code_point(std::string_view text, size_t& position);

/// One line of at most `width` terminal cells. What would not show, or would change how the rest shows (controls,
/// format and direction characters, odd spaces) appears as a visible sign; what is cut off ends in `cut`, one cell
/// wide.
std::string visible_label(std::string_view text, int64_t width, std::string_view cut);

/// Terminal cells that a result of visible_label() takes.
int64_t display_width(std::string_view label);

/// A JSON string in which everything but ASCII letters, digits, space and .,_- is written \uXXXX: no markup, no address
/// and no encoding mistake can come of it. Malformed UTF-8 becomes U+FFFD.
std::string json_string(std::string_view text);

}  // namespace attn::view
