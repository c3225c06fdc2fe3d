// unicode: characters of UTF-8 text, their classes, and how they look to a person. The tables are utf8proc's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace attn::text {

using Character = int32_t;  // a Unicode code point

/// The character that begins at `at`, which moves behind it; -1, and `at` stays, where no well-formed one does.
Character next_character(std::string_view text, size_t& at);
void append_character(std::string& text, Character character);

/// Byte offset of the first malformed sequence, or npos.
size_t malformed_at(std::string_view text);

bool is_space(Character character);
/// Letters and digits.
bool is_word(Character character);
/// Accents and whatever else combines with the character before it.
bool is_mark(Character character);

/// Unicode case folding, "Straße" -> "strasse". `text` must be UTF-8.
std::string fold_case(std::string_view text);

/// UTF-8 text as a label shows it: a space as U+2423, a line break as \n, and other characters that have no picture of
/// their own or change that of others as U+200B.
std::string visible(std::string_view text);

/// "U+00E9"
std::string code_of(Character character);

}  // namespace attn::text
