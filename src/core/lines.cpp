#include "attn/core_lines.h"

#include <algorithm>
#include <cstring>

namespace attn {
namespace {

/// Bytes of the well-formed character at the beginning of a text that is not empty (Unicode, table 3-7); 0 = none.
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t n) { return n < text.size() ? static_cast<uint8_t>(text[n]) : uint8_t{0}; };
  const auto follows = [&](size_t n) { return (byte(n) & 0xC0) == 0x80; };
  const uint8_t lead = byte(0), second = byte(1);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4 || !follows(1)) return 0;
  if (lead < 0xE0) return 2;
  const bool too_long = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool surrogate = lead == 0xED && second >= 0xA0, beyond = lead == 0xF4 && second >= 0x90;
  if (too_long || surrogate || beyond || !follows(2)) return 0;
  if (lead < 0xF0) return 3;
  return follows(3) ? 4 : 0;
}

}  // namespace

size_t malformed_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    uint64_t word;
    while (at + sizeof word <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if (word & 0x8080808080808080) break;
      at += sizeof word;
    }
    if (at == text.size()) break;
    const size_t length = character_length(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

void LineCutter::feed(std::string_view bytes) {
  held_.erase(0, at_);
  seen_ -= at_;
  at_ = 0;
  held_.append(bytes);
}

bool LineCutter::ready() {
  seen_ = std::min(held_.find('\n', seen_), held_.size());
  return ended_ || seen_ < held_.size();
}

std::optional<std::string_view> LineCutter::next() {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (!ready()) return {};
  if (number_ == 0 && mark_ == ByteOrderMark::remove && held_.starts_with(kMark)) at_ = kMark.size();
  if (at_ == held_.size()) return {};
  std::string_view line = std::string_view(held_).substr(at_, seen_ - at_);
  if (line.ends_with('\r')) line.remove_suffix(1);
  at_ = seen_ = std::min(seen_ + 1, held_.size());
  ++number_;
  if (const size_t byte = malformed_utf8(line); byte != std::string_view::npos)
    throw Error("read", {where() + " is not UTF-8 at its byte " + std::to_string(byte)});
  return line;
}

}  // namespace attn
