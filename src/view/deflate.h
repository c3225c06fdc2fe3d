// The compressor of attn::view.
#pragma once

#include <string>
#include <string_view>

namespace attn::view {

/// A Deflate by zlib, with its default level.
std::string zlib_deflate(std::string_view bytes);

}  // namespace attn::view
