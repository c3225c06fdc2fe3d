// The pixels of a PNG picture: rectangles, strokes and discs with smooth edges, text.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "view/colour.h"

namespace attn::view {

inline constexpr double kUnit = 1.4, kPen = 1.3;  // pixels of a unit of the letters' grid, and of a stroke's width
inline constexpr int64_t kLetterWidth = 8, kLetterHeight = 10;

/// Throws Error if the picture is larger than memory should be spent on.
void check_pixels(std::string_view operation, double width, double height);

class Canvas {
 public:
  using Point = std::pair<double, double>;

  Canvas(int64_t width, int64_t height, Colour ground);

  /// The rectangle must be inside.
  void fill(int64_t x, int64_t y, int64_t width, int64_t height, Colour colour);
  /// One pixel wide, around the rectangle.
  void frame(int64_t x, int64_t y, int64_t width, int64_t height, Colour colour);
  /// A stroke of this width with round ends; from a point to itself it is a disc. What is outside is left out.
  void stroke(Point a, Point b, double width, Colour colour, double opacity = 1);
  /// A line of text whose capitals begin at (x, y), in letters `size` times as large as the others; `upwards` it is
  /// turned to the left about that point.
  void write(double x, double y, std::string_view text, Colour colour, bool upwards = false, double size = 1);
  void write(int64_t x, int64_t y, std::string_view text, Colour colour, bool upwards = false) {
    write(static_cast<double>(x), static_cast<double>(y), text, colour, upwards);
  }

  std::string png() const;

 private:
  int64_t width_, height_;
  std::vector<Colour> pixels_;
};

}  // namespace attn::view
