// unicode: characters of UTF-8 text, their classes, and how they look to a person. The tables are utf8proc's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace attn::text {

using Character = int32_t;  // a Unicode code point

/// The character that begins at `at`, which moves after it; -1, and `at` stays, where no well-formed one does.
Character next_character(std::string_view text, size_t& at);
void append_character(std::string& text, Character character);

/// Byte offset of the first malformed sequence, or npos.
size_t malformed_at(std::string_view text);

bool is_space(Character character);
/// Letters and digits.
bool is_word(Character character);
/// Accents and whatever else combines with the character before it.
bool is_mark(Character character);

/// Nd, Nl and No.
bool is_number(Character character);
/// Punctuation, and all of ASCII that is no letter, digit, space or control. This and the next three are as the package
/// tokenizers has them, whose tables are older than utf8proc's.
bool is_punctuation(Character character);
/// Controls, formats and private characters, but for tab and line breaks.
bool is_control(Character character);
bool is_nonspacing_mark(Character character);
bool is_accent(Character character);
/// What those four were, of a character that by today's tables is or is not (unicode_history.cpp).
bool was_punctuation(Character character, bool is_now);
bool was_control(Character character, bool is_now);
bool was_nonspacing_mark(Character character, bool is_now);
bool was_accent(Character character, bool is_now);
/// Characters of Chinese writing, which are words by themselves.
bool is_ideograph(Character character);

/// Appends the character's lower case, two characters for one of them.
void append_lower_case(std::string& text, Character character);

/// The visible character that means a byte in the tokens of byte-level BPE.
void append_byte_character(std::string& text, uint8_t byte);
/// -1 for what means no byte.
int byte_of(Character character);

/// Appends `bytes` with U+FFFD for each malformed part. Unless `at_end`, what may be the beginning of a character is
/// left over: how many bytes are.
size_t append_mended(std::string& text, std::string_view bytes, bool at_end);

/// Unicode case folding, "Straße" -> "strasse". `text` must be UTF-8.
std::string fold_case(std::string_view text);

/// UTF-8 text as a label shows it: a space as U+2423, a line break as \n, and other characters that have no picture of
/// their own or change that of others as U+200B.
std::string visible(std::string_view text);

/// "U+00E9"
std::string code_of(Character character);

}  // namespace attn::text
