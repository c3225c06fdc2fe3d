// fuzz: bad input for whatever reads files, and what its errors must look like.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "errors.h"

namespace attn::test {

inline testing::AssertionResult has(const std::string& message, const std::string& piece) {
  if (message.find(piece) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "no '" << piece << "' in '" << message << "'";
}

/// An error about a file names it and stays fit for a terminal, whatever the file holds.
inline testing::AssertionResult is_readable(const std::string& message, const std::string& source) {
  constexpr size_t kLongest = 1500;
  const bool is_ascii = std::all_of(message.begin(), message.end(), [](char byte) { return byte >= 32 && byte < 127; });
  if (message.find(source) != std::string::npos && is_ascii && message.size() <= kLongest)
    return testing::AssertionSuccess();
  return testing::AssertionFailure() << "not a readable error: " << message.substr(0, kLongest);
}

/// One change of `bytes`: a bit, a byte, a range cut or doubled, or a piece of the format's own words put in.
inline std::string mutated(std::string bytes, Random& random, std::span<const std::string_view> words) {
  const auto place = [&] { return static_cast<size_t>(random.below(static_cast<int64_t>(bytes.size()) + 1)); };
  if (bytes.empty()) return "{";
  const size_t at = std::min(place(), bytes.size() - 1);
  const size_t count = std::min<size_t>(static_cast<size_t>(random.below(16)) + 1, bytes.size() - at);
  const std::string_view word = words[random.below(static_cast<int64_t>(words.size()))];
  switch (random.below(6)) {
    case 0: bytes[at] = static_cast<char>(bytes[at] ^ 1 << random.below(8)); break;
    case 1: bytes[at] = static_cast<char>(random.below(256)); break;
    case 2: bytes.erase(at, count); break;
    case 3: bytes.insert(place(), bytes.substr(at, count)); break;
    case 4: bytes.insert(at, word); break;
    default: bytes.replace(at, std::min(count, word.size()), word); break;
  }
  return bytes;
}

/// Words of JSON at large; each format adds its own.
inline constexpr std::string_view kJsonWords[] = {
    "{", "}",   "[",   "]",  ":",  ",",       "\"",    "null", "true",  "-1",
    "0", "1e9", "1.5", "[]", "{}", "\\u0000", "\\ud8", "\xff", "false", "99999999999999999999"};

}  // namespace attn::test
