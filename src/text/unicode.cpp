// The characters of UTF-8 text, read by utf8proc, which rejects overlong forms, surrogates and values above U+10FFFF.
#include "text/unicode.h"

#include <utf8proc.h>

#include <array>
#include <cstdio>

#include "attn/core_lines.h"
#include "attn/text.h"

namespace attn::text {
namespace {

constexpr Character kVisibleSpace = 0x2423, kDottedCircle = 0x25CC, kBrailleBlank = 0x2800;

/// True for the characters that a label shows as their code: those that are invisible, control the renderer (such as
/// bidi controls) or are not assigned, and the character that represents a space.
bool needs_code(Character character) {
  const utf8proc_property_t& property = *utf8proc_get_property(character);
  if (property.ignorable || character == kVisibleSpace || character == kBrailleBlank) return true;
  switch (property.category) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return true;
    default: return false;
  }
}

}  // namespace

Character next_character(std::string_view text, size_t& at) {
  Character character = -1;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at);
  const utf8proc_ssize_t used = utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size() - at), &character);
  if (used <= 0) return -1;
  at += static_cast<size_t>(used);
  return character;
}

void append_character(std::string& text, Character character) {
  std::array<utf8proc_uint8_t, 4> bytes;
  const utf8proc_ssize_t count = utf8proc_encode_char(character, bytes.data());
  text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(count));
}

size_t malformed_at(std::string_view text) { return malformed_utf8(text); }

bool is_space(Character character) {
  switch (utf8proc_category(character)) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return true;
    default: return (character >= '\t' && character <= '\r') || character == 0x85;  // Unicode's White_Space
  }
}

bool is_letter_or_number(Character character) {
  const utf8proc_category_t category = utf8proc_category(character);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) ||
         (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

bool is_mark(Character character) {
  const utf8proc_category_t category = utf8proc_category(character);
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

bool is_number(Character character) {
  if (character < 0x80) return character >= '0' && character <= '9';
  const utf8proc_category_t category = utf8proc_category(character);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(Character character) {
  if (character < 0x80)
    return (character >= '!' && character <= '/') || (character >= ':' && character <= '@') ||
           (character >= '[' && character <= '`') || (character >= '{' && character <= '~');
  const utf8proc_category_t category = utf8proc_category(character);
  const bool is_now = category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
  return is_now != punctuation_changed_since_unicode8(character);
}

bool is_control(Character character) {
  const utf8proc_category_t category = utf8proc_category(character);
  if (category == UTF8PROC_CATEGORY_CC) return character != '\t' && character != '\n' && character != '\r';
  const bool is_now = category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_CO;
  return is_now != control_changed_since_unicode8(character);
}

bool is_nonspacing_mark(Character character) {
  const bool is_now = utf8proc_category(character) == UTF8PROC_CATEGORY_MN;
  return is_now != nonspacing_mark_changed_since_unicode8(character);
}

bool is_accent(Character character) { return is_mark(character) != accent_changed_since_unicode9(character); }

bool is_ideograph(Character character) {
  static constexpr Character kRanges[][2] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},
                                             {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F},
                                             {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};
  if (character < 0x3400) return false;
  for (const auto& range : kRanges)
    if (character >= range[0] && character <= range[1]) return true;
  return false;
}

void append_lower_case(std::string& text, Character character) {
  constexpr Character kDottedI = 0x130;
  if (character == kDottedI) text += "i\u0307";
  else append_character(text, utf8proc_tolower(character));
}

// --------------------------------------------------------------------------------------------------------------- bytes

namespace {

/// Bytes that are visible in Latin-1 are represented by themselves, the others by the characters from U+0100 on.
struct ByteAlphabet {
  std::array<Character, 256> characters;
  std::array<int16_t, 512> bytes;
  ByteAlphabet() {
    bytes.fill(-1);
    Character next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool is_visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      characters[byte] = is_visible ? byte : next++;
      bytes[characters[byte]] = static_cast<int16_t>(byte);
    }
  }
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet kAlphabet;
  return kAlphabet;
}

}  // namespace

void append_byte_character(std::string& text, uint8_t byte) {
  const Character character = alphabet().characters[byte];
  if (character < 0x80) {
    text += static_cast<char>(character);
  } else {
    text += static_cast<char>(0xC0 | character >> 6);
    text += static_cast<char>(0x80 | (character & 63));
  }
}

int byte_of(Character character) { return character >= 0 && character < 512 ? alphabet().bytes[character] : -1; }

size_t append_valid_utf8(std::string& text, std::string_view bytes, bool at_end) {
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t begin = at;
    if (next_character(bytes, at) >= 0) {
      text += bytes.substr(begin, at - begin);
      continue;
    }
    // One U+FFFD replaces the longest sequence that begins a character, or else one byte. A sequence begins a character
    // if some continuation completes it.
    size_t length = 1;
    const auto begins_character = [&](size_t count) {
      std::string trial(bytes.substr(begin, count));
      for (const char* tail : {"\x80\x80\x80", "\x90\x80\x80", "\xA0\x80\x80"})
        for (size_t more = 1; more <= 3; ++more) {
          size_t end = 0;
          const std::string whole = trial + std::string(tail, more);
          if (next_character(whole, end) >= 0 && end == whole.size()) return true;
        }
      return false;
    };
    if (begins_character(1))
      while (length < 3 && begin + length < bytes.size() && begins_character(length + 1)) ++length;
    if (begin + length == bytes.size() && !at_end && begins_character(length)) return length;
    text += "\xEF\xBF\xBD";
    at = begin + length;
  }
  return 0;
}

std::string fold_case(std::string_view text) {
  std::string folded;
  folded.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Character character = next_character(text, at);
    std::array<Character, 16> parts;  // Unicode folds a character to three at most
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        character, parts.data(), static_cast<utf8proc_ssize_t>(parts.size()), UTF8PROC_CASEFOLD, &boundary);
    for (utf8proc_ssize_t n = 0; n < count; ++n) append_character(folded, parts[n]);
  }
  return folded;
}

std::string code_of(Character character) {
  char code[16];
  std::snprintf(code, sizeof code, "U+%04X", static_cast<unsigned>(character));
  return code;
}

std::string visible(std::string_view text) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    const bool is_first = at == 0;
    const Character character = next_character(text, at);
    if (character == ' ') append_character(shown, kVisibleSpace);
    else if (character == '\n') shown += "\\n";
    else if (character == '\t') shown += "\\t";
    else if (character == '\r') shown += "\\r";
    else if (needs_code(character)) shown += code_of(character);
    else {
      if (is_first && is_mark(character))
        append_character(shown, kDottedCircle);  // else it would combine with the frame
      append_character(shown, character);
    }
  }
  return shown;
}

void require_utf8(std::string_view text, const std::string& source) {
  const size_t at = malformed_at(text);
  if (at == std::string_view::npos) return;
  char byte[8];
  std::snprintf(byte, sizeof byte, "0x%02X", static_cast<uint8_t>(text[at]));
  throw Error("require_utf8", {source + ": not UTF-8 at byte " + std::to_string(at) + " (" + byte + ")"});
}

}  // namespace attn::text
