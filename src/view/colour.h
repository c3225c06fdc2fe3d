// From a weight to a place on the scale, and from there to a colour.
#pragma once

#include <array>
#include <cstdint>

#include "attn/view.h"

namespace attn::view {

struct Colour {
  uint8_t red = 0, green = 0, blue = 0;
  bool operator==(const Colour&) const = default;
};

/// What stands behind a picture: weight 0 has its colour.
enum class Ground { dark, light };

/// The smallest weight that the logarithmic scale tells from zero, and the decades from there to 1.
inline constexpr double kLogDecades = 4;

/// Where a weight stands on the scale, in [0, 1]: w itself, or 1 + log10(w) / 4 from 1e-4 on.
double position_of(double weight, Scale scale);

inline constexpr int kColours = 256;
/// Colours from weight 0 to weight 1, equal steps of perceived lightness (OKLab) apart.
std::array<Colour, kColours> palette(Ground ground);
inline int colour_index(double position) { return static_cast<int>(position * (kColours - 1) + 0.5); }

/// True where dark text reads better than light text on this colour.
bool is_bright(Colour colour);

}  // namespace attn::view
