#include "view/text.h"

#include <cstdio>

namespace attn::view {
namespace {

constexpr char32_t kReplacement = 0xfffd;

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
