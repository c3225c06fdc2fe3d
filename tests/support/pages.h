// pages: a page taken apart.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "arrays.h"
#include "errors.h"
#include "tolerance.h"

namespace attn::test {

/// A page in three parts: what is before, in and after its data.
struct Page {
  std::string before, data, after;

  explicit Page(const std::string& page) {
    const std::string open = "<script type=\"application/json\" id=\"data\">", close = "</script>";
    const size_t begin = page.find(open) + open.size(), end = page.find(close, begin);
    before = page.substr(0, begin);
    data = page.substr(begin, end - begin);
    after = page.substr(end);
  }
};

/// What base 64 means.
inline std::vector<uint8_t> bytes_of(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<uint8_t> bytes;
  for (size_t n = 0; n < text.size(); n += 4) {
    uint32_t bits = 0;
    for (size_t d = n; d < n + 4; ++d)
      bits = bits << 6 | (text[d] == '=' ? 0 : static_cast<uint32_t>(digits.find(text[d])));
    for (size_t b = 0; b < 3 && text[n + b + 1] != '='; ++b)
      bytes.push_back(static_cast<uint8_t>(bits >> (16 - 8 * b)));
  }
  return bytes;
}

template <class T>
std::vector<T> numbers_of(const std::vector<uint8_t>& bytes) {
  std::vector<T> numbers(bytes.size() / sizeof(T));
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(T));
  return numbers;
}

/// Numbers of 24 bits.
inline Values codes_of(const std::vector<uint8_t>& bytes, size_t first) {
  Values codes;
  for (size_t n = first; n + 3 <= bytes.size(); n += 3)
    codes.push_back(bytes[n] | bytes[n + 1] << 8 | bytes[n + 2] << 16);
  return codes;
}

}  // namespace attn::test
