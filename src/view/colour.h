// From a weight to a place on the scale, and from there to a colour.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "attn/view.h"

namespace attn::view {

struct Colour {
  uint8_t red = 0, green = 0, blue = 0;
  bool operator==(const Colour&) const = default;
};

/// What is after a picture: weight 0 has its colour.
enum class Ground { dark, light };

/// Where weights are between the first and the last colour.
struct ColourScale {
  Scale scale = Scale::linear;
  double end = 1;    ///< the weight of the last colour, of two digits
  bool cut = false;  ///< there are larger ones, which have the last colour too

  /// For a picture whose rows have these largest weights. Rows that see nothing do not count.
  ColourScale(Scale scale, std::vector<double> peaks);
  /// In [0, 1]: w / end, or 1 + log10(w) / 4 from 1e-4 on.
  double position(double weight) const;
  std::string first_label() const { return scale == Scale::linear ? "0" : "1e-4"; }
  std::string last_label() const;
};

inline constexpr int kColours = 256;
/// Colours from weight 0 to weight 1, equal steps of perceived lightness (OKLab) apart.
std::array<Colour, kColours> palette(Ground ground);
inline int colour_index(double position) { return static_cast<int>(position * (kColours - 1) + 0.5); }

/// True where dark text reads better than light text on this colour.
bool is_bright(Colour colour);

}  // namespace attn::view
