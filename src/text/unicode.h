// unicode: the characters of UTF-8 text, their classes, and their display in labels. The tables are those of utf8proc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace attn::text {

using Character = int32_t;  // a Unicode code point

/// Reads the character at `at` and advances `at` past it. Returns -1 and leaves `at` if the bytes are malformed.
Character next_character(std::string_view text, size_t& at);
void append_character(std::string& text, Character character);

/// Byte offset of the first malformed sequence, or npos.
size_t malformed_at(std::string_view text);

bool is_space(Character character);
/// The general categories L and N.
bool is_letter_or_number(Character character);
/// The general category M: accents, and other characters that combine with the character before them.
bool is_mark(Character character);
/// The general category N.
bool is_number(Character character);

// The next four follow the package `tokenizers`, whose Unicode tables are older than those of utf8proc.

/// The general category P, and all ASCII characters that are no letter, digit, space or control.
bool is_punctuation(Character character);
/// Controls, format characters and private use, except tab and line breaks.
bool is_control(Character character);
bool is_nonspacing_mark(Character character);
bool is_accent(Character character);

/// True for the characters that entered or left the class after Unicode 8 (accents: Unicode 9), whose tables the
/// package `tokenizers` has.
bool punctuation_changed_since_unicode8(Character character);
bool control_changed_since_unicode8(Character character);
bool nonspacing_mark_changed_since_unicode8(Character character);
bool accent_changed_since_unicode9(Character character);

/// Chinese characters, which are words by themselves.
bool is_ideograph(Character character);

/// Appends the lower case of a character, which for U+0130 is two characters.
void append_lower_case(std::string& text, Character character);

/// Appends the visible character that represents a byte in the tokens of byte-level BPE.
void append_byte_character(std::string& text, uint8_t byte);
/// The byte that a character represents there; -1 for other characters.
int byte_of(Character character);

/// Appends `bytes`, with U+FFFD for each malformed sequence. Unless `at_end`, an incomplete character at the end is not
/// appended; returns the number of its bytes, else 0.
size_t append_valid_utf8(std::string& text, std::string_view bytes, bool at_end);

/// Unicode case folding, such as "Straße" -> "strasse". `text` must be UTF-8.
std::string fold_case(std::string_view text);

/// UTF-8 text as a label shows it: a space as U+2423, a line break as \n, and characters that are invisible or change
/// the display of others as their code, such as U+200B.
std::string visible(std::string_view text);

/// The name of a code point, such as "U+00E9".
std::string code_of(Character character);

}  // namespace attn::text
