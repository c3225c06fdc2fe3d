// Letters of the PNG pictures: strokes on a grid, drawn smoothly at any size.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace attn::view {

/// From (x0, y0) to (x1, y1): x from 0 to 4 in a letter, y from 0, the top of capitals, over 6, where letters are,
/// to 8.
struct Stroke {
  double x0, y0, x1, y1;
};

inline constexpr double kAdvance = 5.6;  // from a letter to the next, in units of the grid

/// The strokes of a text [letters] as the one after the other. A character without strokes of its own is a box.
std::vector<Stroke> strokes_of(std::string_view text);
/// Its width in units of the grid.
double width_of(std::string_view text);

}  // namespace attn::view
