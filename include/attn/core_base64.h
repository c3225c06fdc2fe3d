// core: bytes as text.
//
// ```cpp
// #include "attn/core_base64.h"
// int main() {
//   const float numbers[] = {1, 2};
//   return attn::base64(numbers, sizeof numbers) == "AACAPwAAAEA=" ? 0 : 1;
// }
// ```
#pragma once

#include <cstddef>
#include <string>

#include "attn/core_dtype.h"

#pragma GCC visibility push(default)
namespace attn {

/// These bytes in base64 (RFC 4648), with padding.
std::string base64(const void* data, size_t bytes);

}  // namespace attn
#pragma GCC visibility pop
