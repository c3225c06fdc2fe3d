// Measures of the PNG pictures, in pixels.
#pragma once

#include "view/colour.h"

namespace attn::view {

inline constexpr int64_t kMargin = 16;
inline constexpr int64_t kTileGap = 8;  // between the tiles of an overview, frames included
inline constexpr int64_t kBarWidth = 12;
inline constexpr int64_t kBarSpace = kBarWidth + 72;  // the bar, its numbers and the margin on the right
inline constexpr int64_t kBarHeight = 64;             // at least, so that its numbers do not touch
inline constexpr int64_t kLongerSide = 800;
inline constexpr double kMostPixels = 1 << 26;  // 200 MB, a square of 8192

}  // namespace attn::view
