#include "view/canvas.h"

#include <png.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "view/letters.h"
#include "view/picture.h"

namespace attn::view {

void check_pixels(std::string_view operation, double width, double height) {
  if (width * height <= kMostPixels) return;
  char reason[160];
  std::snprintf(reason, sizeof reason, "the picture would have %.0f x %.0f pixels, must have at most %.0f in all",
                width, height, kMostPixels);
  throw Error(operation, {reason});
}

Canvas::Canvas(int64_t width, int64_t height, Colour ground)
    : width_(width), height_(height), pixels_(static_cast<size_t>(width * height), ground) {}

void Canvas::fill(int64_t x, int64_t y, int64_t width, int64_t height, Colour colour) {
  for (int64_t row = y; row < y + height; ++row) std::fill_n(pixels_.begin() + row * width_ + x, width, colour);
}

void Canvas::frame(int64_t x, int64_t y, int64_t width, int64_t height, Colour colour) {
  fill(x - 1, y - 1, width + 2, 1, colour);
  fill(x - 1, y + height, width + 2, 1, colour);
  fill(x - 1, y, 1, height, colour);
  fill(x + width, y, 1, height, colour);
}

void Canvas::stroke(Point a, Point b, double width, Colour colour, double opacity) {
  const double dx = b.first - a.first, dy = b.second - a.second, length = dx * dx + dy * dy, reach = width / 2 + 1.5;
  const auto low = [&](double u, double v) { return std::max<int64_t>(std::lround(std::min(u, v) - reach), 0); };
  const auto high = [&](double u, double v, int64_t end) {
    return std::min(std::lround(std::max(u, v) + reach + 1), end);
  };
  for (int64_t row = low(a.second, b.second); row < high(a.second, b.second, height_); ++row)
    for (int64_t column = low(a.first, b.first); column < high(a.first, b.first, width_); ++column) {
      const double x = static_cast<double>(column) + 0.5 - a.first, y = static_cast<double>(row) + 0.5 - a.second;
      const double t = length > 0 ? std::clamp((x * dx + y * dy) / length, 0.0, 1.0) : 0;
      const double share = opacity * std::clamp(width / 2 + 0.5 - std::hypot(x - t * dx, y - t * dy), 0.0, 1.0);
      Colour& pixel = pixels_[static_cast<size_t>(row * width_ + column)];
      const auto mixed = [&](uint8_t from, uint8_t to) {
        return static_cast<uint8_t>(std::lround(std::lerp(static_cast<double>(from), static_cast<double>(to), share)));
      };
      pixel = {mixed(pixel.red, colour.red), mixed(pixel.green, colour.green), mixed(pixel.blue, colour.blue)};
    }
}

void Canvas::write(double x, double y, std::string_view text, Colour colour, bool upwards, double size) {
  const double unit = size * kUnit;
  for (const Stroke& s : strokes_of(text)) {
    const auto place = [&](double along, double down) {
      return upwards ? Point(x + unit * down, y - unit * along) : Point(x + unit * along, y + unit * down);
    };
    stroke(place(s.x0, s.y0), place(s.x1, s.y1), size * kPen, colour);
  }
}

std::string Canvas::png() const {
  static_assert(sizeof(Colour) == 3);
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width_);
  image.height = static_cast<png_uint_32>(height_);
  image.format = PNG_FORMAT_RGB;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string file(bytes, '\0');
  if (!png_image_write_to_memory(&image, file.data(), &bytes, 0, pixels_.data(), 0, nullptr))
    throw Error("png", {image.message});
  file.resize(bytes);
  return file;
}

}  // namespace attn::view
