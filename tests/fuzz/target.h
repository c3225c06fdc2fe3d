// target: what every fuzz target is made of. A reader takes any bytes and either reads them or throws attn::Error, fit
// for a terminal; whatever else comes of them is a bug.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "attn/core.h"

/// What libFuzzer calls, and replay.cpp for each seed.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace attn::fuzz {

inline std::string bytes_of(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

/// Aborts, as libFuzzer wants it of what is wrong.
inline void require(bool condition) {
  if (!condition) std::abort();
}

template <class Read>
void read_or_refuse(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    const std::string_view text = error.what();
    require(!text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= 32 && c < 127; }));
  }
}

}  // namespace attn::fuzz
