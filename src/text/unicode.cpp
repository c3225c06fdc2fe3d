// Characters of UTF-8 text by utf8proc, which refuses overlong forms, surrogates and all above U+10FFFF.
#include "text/unicode.h"

#include <utf8proc.h>

#include <array>
#include <cstdio>

#include "attn/core.h"
#include "attn/text.h"

namespace attn::text {
namespace {

constexpr Character kVisibleSpace = 0x2423, kDottedCircle = 0x25CC, kBrailleBlank = 0x2800;

/// True if a label has to name the character by its code: it has no width or picture, is a control or an order to the
/// renderer (bidi), is not assigned, or is what a space is shown as.
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

size_t malformed_at(std::string_view text) {
  for (size_t at = 0; at < text.size();)
    if (next_character(text, at) < 0) return at;
  return std::string_view::npos;
}

bool is_space(Character character) {
  switch (utf8proc_category(character)) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return true;
    default: return (character >= '\t' && character <= '\r') || character == 0x85;  // Unicode's White_Space
  }
}

bool is_word(Character character) {
  const utf8proc_category_t category = utf8proc_category(character);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) ||
         (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

bool is_mark(Character character) {
  const utf8proc_category_t category = utf8proc_category(character);
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
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
      if (is_first && is_mark(character)) append_character(shown, kDottedCircle);  // else it would sit on the frame
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
