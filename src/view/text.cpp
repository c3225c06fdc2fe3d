// Decoding UTF-8, display width, visible signs for what does not show, JSON strings.
#include "view/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdio>

namespace attn::view {
namespace {

constexpr char32_t kReplacement = 0xfffd;

void append_utf8(std::string& text, char32_t point) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(point), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
}

bool shows(char32_t point) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(point))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return point == ' ';
    default: return true;
  }
}

/// The sign of one code point: itself, a control picture, or <U+202E>.
std::string sign_of(char32_t point) {
  std::string sign;
  if (shows(point)) {
    append_utf8(sign, point);
  } else if (point < 0x20) {
    append_utf8(sign, 0x2400 + point);
  } else {
    char code[16];
    std::snprintf(code, sizeof code, "<U+%04X>", static_cast<unsigned>(point));
    sign = code;
  }
  return sign;
}

}  // namespace

char32_t next_code_point(std::string_view text, size_t& position) {
  const auto byte = [&] { return static_cast<uint8_t>(text[position]); };
  const uint8_t lead = byte();
  ++position;
  if (lead < 0x80) return lead;
  if (lead < 0xc2 || lead > 0xf4) return kReplacement;
  const int more = lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
  char32_t point = lead & (0x3f >> more);
  // The range of the second byte shuts out longer forms than needed, surrogates and what is beyond U+10FFFF.
  uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (int n = 0; n < more; ++n) {
    if (position == text.size() || byte() < low || byte() > high) return kReplacement;
    point = point << 6 | (byte() & 0x3f);
    ++position;
    low = 0x80;
    high = 0xbf;
  }
  return point;
}

std::string visible_label(std::string_view text, int64_t width, std::string_view cut) {
  // Spaces at the ends are part of many tokens, and would be lost beside the padding.
  const size_t first = std::min(text.find_first_not_of(' '), text.size());
  const size_t last = first == text.size() ? first : text.find_last_not_of(' ') + 1;
  std::string label;
  size_t fitting = 0;  // bytes of the label that leave room for the cut sign
  int64_t used = 0, marks = 0;
  for (size_t position = 0; position < text.size();) {
    const bool edge = position < first || position >= last;
    const char32_t point = next_code_point(text, position);
    const std::string sign = edge ? "\u2423" : sign_of(point);
    const int64_t cells = display_width(sign);
    // Marks take no cell of their own: without a bound of theirs a label of marks alone would never end.
    marks = cells == 0 ? marks + 1 : 0;
    if (used + cells > width || marks > 4) return label.substr(0, fitting) + std::string(cut);
    label += sign;
    used += cells;
    if (used < width) fitting = label.size();
  }
  return label;
}

int64_t display_width(std::string_view label) {
  int64_t width = 0;
  for (size_t position = 0; position < label.size();)
    width += utf8proc_charwidth(static_cast<utf8proc_int32_t>(next_code_point(label, position)));
  return width;
}

std::string json_string(std::string_view text) {
  std::string json = "\"";
  const auto escape = [&](char32_t unit) {
    char code[16];
    std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(unit));
    json += code;
  };
  for (size_t position = 0; position < text.size();) {
    const char32_t point = next_code_point(text, position);
    const bool letter = (point | 0x20) >= 'a' && (point | 0x20) <= 'z';
    if (letter || (point >= '0' && point <= '9') || point == ' ' || point == '.' || point == ',' || point == '_' ||
        point == '-') {
      json += static_cast<char>(point);
    } else if (point < 0x10000) {
      escape(point);
    } else {
      escape(0xd800 + ((point - 0x10000) >> 10));
      escape(0xdc00 + ((point - 0x10000) & 0x3ff));
    }
  }
  return json + '"';
}

}  // namespace attn::view
