#include "output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "attn/core_lines.h"

namespace cli {

std::string printable(std::string_view text, std::string_view kept) {
  std::string out;
  while (!text.empty()) {
    const size_t good = std::min(attn::malformed_utf8(text), text.size());
    for (size_t n = 0; n < good; ++n) {
      const auto byte = static_cast<uint8_t>(text[n]);
      const bool second = byte == 0xC2 && static_cast<uint8_t>(text[n + 1]) < 0xA0;  // U+0080 to U+009F
      const bool plain = byte >= 0x20 && byte != 0x7F && !second;
      if (plain || kept.find(text[n]) != std::string_view::npos) out += text[n];
      else out += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[n += second]));
    }
    if (good < text.size()) out += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[good]));
    text.remove_prefix(std::min(good + 1, text.size()));
  }
  return out;
}

std::string for_output(const std::string& text) { return isatty(STDOUT_FILENO) ? printable(text, "\n\t") : text; }

void show(const std::string& given) {
  const std::string text = for_output(given);
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw std::system_error(errno, std::generic_category(), "standard output");
}

std::string joined(const std::vector<std::string>& parts, const std::string& separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

}  // namespace cli
