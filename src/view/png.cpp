// png_heatmap() and png_overview(): cells of whole pixels on dark ground, a thin frame, a colour bar with its numbers.
//
// A heatmap is [margin][frame + cells + frame][gap][bar][labels][margin]; an overview has a grid of framed tiles,
// layers downwards and heads across, each with its index at the edge.
#include <png.h>

#include <algorithm>
#include <cstdio>

#include "view/picture.h"
#include "view/weights.h"

namespace attn::view {
namespace {

constexpr Colour kFrame = {92, 99, 117};
constexpr Colour kInk = {176, 182, 196};

// Letters of 3 x 5 dots, drawn twice as large. An octal digit is a row of three.
constexpr int64_t kDot = 2, kLetterWidth = 4 * kDot, kLetterHeight = 5 * kDot;
struct Letter {
  char name;
  unsigned rows;
};
constexpr Letter kLetters[] = {{'0', 075557}, {'1', 026227}, {'2', 071747}, {'3', 071717}, {'4', 055711},
                               {'5', 074717}, {'6', 074757}, {'7', 071111}, {'8', 075757}, {'9', 075717},
                               {'.', 000002}, {'-', 000700}, {'e', 075747}};

class Canvas {
 public:
  Canvas(int64_t width, int64_t height, Colour ground)
      : width_(width), height_(height), pixels_(static_cast<size_t>(width * height), ground) {}

  void fill(int64_t x, int64_t y, int64_t width, int64_t height, Colour colour) {
    for (int64_t row = y; row < y + height; ++row) std::fill_n(pixels_.begin() + row * width_ + x, width, colour);
  }

  /// One pixel wide, around the rectangle.
  void frame(int64_t x, int64_t y, int64_t width, int64_t height) {
    fill(x - 1, y - 1, width + 2, 1, kFrame);
    fill(x - 1, y + height, width + 2, 1, kFrame);
    fill(x - 1, y, 1, height, kFrame);
    fill(x + width, y, 1, height, kFrame);
  }

  void write(int64_t x, int64_t y, std::string_view text) {
    for (char c : text) {
      for (const Letter& letter : kLetters)
        for (int dot = 0; letter.name == c && dot < 15; ++dot)
          if (letter.rows >> (14 - dot) & 1) fill(x + dot % 3 * kDot, y + dot / 3 * kDot, kDot, kDot, kInk);
      x += kLetterWidth;
    }
  }

  std::string png() const {
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

 private:
  int64_t width_, height_;
  std::vector<Colour> pixels_;
};

/// The scale, brightest at the top, with its ends and the middle written beside it.
void draw_bar(Canvas& canvas, const std::array<Colour, kColours>& colours, int64_t x, int64_t y, int64_t height,
              Scale scale) {
  for (int64_t row = 0; row < height; ++row) {
    const double position = 1 - static_cast<double>(row) / static_cast<double>(height - 1);
    canvas.fill(x, y + row, kBarWidth, 1, colours[colour_index(position)]);
  }
  canvas.frame(x, y, kBarWidth, height);
  const bool linear = scale == Scale::linear;
  const int64_t left = x + kBarWidth + 1 + kDot * 3;
  canvas.write(left, y, "1");
  canvas.write(left, y + (height - kLetterHeight) / 2, linear ? "0.5" : "1e-2");
  canvas.write(left, y + height - kLetterHeight, linear ? "0" : "1e-4");
}

void draw_cells(Canvas& canvas, const std::array<Colour, kColours>& colours, int64_t x, int64_t y, const Pooled& grid,
                int64_t cell, Scale scale) {
  for (int64_t row = 0; row < grid.rows; ++row)
    for (int64_t column = 0; column < grid.columns; ++column) {
      const int index = colour_index(position_of(grid.at(row, column), scale));
      canvas.fill(x + column * cell, y + row * cell, cell, cell, colours[index]);
    }
  canvas.frame(x, y, grid.columns * cell, grid.rows * cell);
}

/// Throws if the picture is larger than memory should be spent on.
void check_pixels(std::string_view operation, double width, double height) {
  if (width * height <= kMostPixels) return;
  char reason[160];
  std::snprintf(reason, sizeof reason, "the picture would have %.0f x %.0f pixels, at most %.0f in all", width, height,
                kMostPixels);
  throw Error(operation, {reason});
}

}  // namespace

std::string png_heatmap(ConstView<4> weights, const HeatmapOptions& options) {
  Checker checker("png_heatmap");
  checker.require(options.cell >= 0, "cell must not be negative");
  check_scale(checker, options.scale);
  check_weights(checker, weights);
  checker.done();
  const int64_t Lq = weights.size[2], Lk = weights.size[3];
  const int64_t cell = options.cell > 0 ? options.cell : std::max<int64_t>(kLongerSide / std::max(Lq, Lk), 1);
  const auto across = [&](int64_t count) { return static_cast<double>(cell) * static_cast<double>(count); };
  check_pixels("png_heatmap", across(Lk) + 2 * kMargin + kBarSpace, std::max<double>(across(Lq), kBarHeight));

  Pooled grid(Lq, Lk, Lq, Lk);
  for (int64_t row = 0; row < Lq; ++row)
    for (int64_t column = 0; column < Lk; ++column) grid.add(row, column, weight_at(weights, row, column));
  const std::array<Colour, kColours> colours = palette(Ground::dark);
  const int64_t height = std::max(Lq * cell, kBarHeight);
  Canvas canvas(Lk * cell + 2 * kMargin + kBarSpace, height + 2 * kMargin, colours[0]);
  draw_cells(canvas, colours, kMargin, kMargin, grid, cell, options.scale);
  draw_bar(canvas, colours, 2 * kMargin + Lk * cell, kMargin, height, options.scale);
  return canvas.png();
}

std::string png_overview(const std::vector<Layer>& layers, const HeatmapOptions& options) {
  Checker checker("png_overview");
  checker.require(options.cell >= 0, "cell must not be negative");
  check_scale(checker, options.scale);
  checker.require(options.max_rows > 0 && options.max_columns > 0, "max_rows and max_columns must be at least 1");
  check_layers(checker, layers, -1);
  checker.done();
  const int64_t Lq = layers[0].q.size[2], Lk = layers[0].k.size[2];
  const Pooled empty(Lq, Lk, options.max_rows, options.max_columns);
  int64_t heads = 0;
  for (const Layer& layer : layers) heads = std::max(heads, layer.q.size[1]);
  const auto rows = static_cast<int64_t>(layers.size());
  const int64_t fitting = kLongerSide / std::max(rows * empty.rows, heads * empty.columns);
  const int64_t cell = options.cell > 0 ? options.cell : std::max<int64_t>(fitting, 1);
  const auto across = [&](int64_t tiles, int64_t cells) {
    return static_cast<double>(tiles) * (static_cast<double>(cells) * static_cast<double>(cell) + kTileGap);
  };
  check_pixels("png_overview", across(heads, empty.columns) + 2 * kMargin + kBarSpace,
               across(rows, empty.rows) + 2 * kMargin);

  const std::array<Colour, kColours> colours = palette(Ground::dark);
  const int64_t tile_width = empty.columns * cell + kTileGap, tile_height = empty.rows * cell + kTileGap;
  const int64_t left = kMargin + 3 * kLetterWidth, top = kMargin + kLetterHeight + kDot * 3;
  const int64_t width = heads * tile_width - kTileGap;
  const int64_t height = std::max(rows * tile_height - kTileGap, kBarHeight);
  Canvas canvas(left + width + kMargin + kBarSpace, top + height + kMargin, colours[0]);
  for (int64_t h = 0; h < heads; ++h) canvas.write(left + h * tile_width, kMargin, std::to_string(h));
  for (int64_t l = 0; l < rows; ++l) {
    std::vector<Pooled> tiles(static_cast<size_t>(layers[l].q.size[1]), empty);
    for_each_row("png_overview", layers[l], l, [&](int64_t head, int64_t row, const double* weights) {
      for (int64_t column = 0; column < Lk; ++column) tiles[head].add(row, column, static_cast<float>(weights[column]));
    });
    canvas.write(kMargin, top + l * tile_height, std::to_string(l));
    for (size_t h = 0; h < tiles.size(); ++h)
      draw_cells(canvas, colours, left + static_cast<int64_t>(h) * tile_width, top + l * tile_height, tiles[h], cell,
                 options.scale);
  }
  draw_bar(canvas, colours, left + width + kMargin, top, height, options.scale);
  return canvas.png();
}

}  // namespace attn::view
