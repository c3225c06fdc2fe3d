// Labels: display width, and visible signs for characters that would not show.
#include "view/labels.h"

#include <utf8proc.h>

#include <cstdio>

#include "view/text.h"

namespace attn::view {
namespace {

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

}  // namespace attn::view
