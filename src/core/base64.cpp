#include "attn/core_base64.h"

#include <cstdint>
#include <string_view>

namespace attn {

std::string base64(const void* data, size_t bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto* from = static_cast<const unsigned char*>(data);
  std::string text;
  text.reserve((bytes + 2) / 3 * 4);
  for (size_t n = 0; n < bytes; n += 3) {
    uint32_t bits = 0;
    for (size_t b = n; b < n + 3; ++b) bits = bits << 8 | (b < bytes ? uint32_t{from[b]} : 0u);
    for (int shift = 18; shift >= 0; shift -= 6) text += kDigits[bits >> shift & 63];
  }
  for (size_t n = 0; n < (3 - bytes % 3) % 3; ++n) text[text.size() - 1 - n] = '=';
  return text;
}

}  // namespace attn
