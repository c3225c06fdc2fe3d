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
                               {'.', 000002}, {'-', 000700}, {'e', 075747}, {'+', 002720}};

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

/// The scale, brightest at the top, with its ends written beside it.
void draw_bar(Canvas& canvas, const std::array<Colour, kColours>& colours, int64_t x, int64_t y, int64_t height,
              const ColourScale& scale) {
  for (int64_t row = 0; row < height; ++row) {
    const double position = 1 - static_cast<double>(row) / static_cast<double>(height - 1);
    canvas.fill(x, y + row, kBarWidth, 1, colours[colour_index(position)]);
  }
  canvas.frame(x, y, kBarWidth, height);
  const int64_t left = x + kBarWidth + 1 + kDot * 3;
  canvas.write(left, y, scale.last_label());
  canvas.write(left, y + height - kLetterHeight, scale.first_label());
}

void draw_cells(Canvas& canvas, const std::array<Colour, kColours>& colours, int64_t x, int64_t y, const Pooled& grid,
                int64_t cell, const ColourScale& scale) {
  for (int64_t row = 0; row < grid.rows; ++row)
    for (int64_t column = 0; column < grid.columns; ++column) {
      const int index = colour_index(scale.position(grid.at(row, column)));
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

/// A grid of tiles: layers downwards and heads across, each with its number at the edge.
class Overview {
 public:
  Overview(const Pooled& empty, int64_t cell, int64_t rows, int64_t columns)
      : cell_(cell),
        tile_width_(empty.columns * cell + kTileGap),
        tile_height_(empty.rows * cell + kTileGap),
        width_(columns * tile_width_ - kTileGap),
        height_(std::max(rows * tile_height_ - kTileGap, kBarHeight)) {}

  void add_layer(int64_t number, const std::vector<int64_t>& heads, std::vector<Pooled> tiles) {
    layers_.push_back({number, heads, std::move(tiles)});
    for (const Pooled& tile : layers_.back().tiles) peaks_.insert(peaks_.end(), tile.peaks.begin(), tile.peaks.end());
  }

  std::string png(Scale kind) const {
    const std::array<Colour, kColours> colours = palette(Ground::dark);
    const ColourScale scale(kind, peaks_);
    const int64_t left = kMargin + 3 * kLetterWidth, top = kMargin + kLetterHeight + kDot * 3;
    Canvas canvas(left + width_ + kMargin + kBarSpace, top + height_ + kMargin, colours[0]);
    for (size_t l = 0; l < layers_.size(); ++l) {
      const Row& row = layers_[l];
      const int64_t y = top + static_cast<int64_t>(l) * tile_height_;
      canvas.write(kMargin, y, std::to_string(row.number));
      for (size_t h = 0; h < row.tiles.size(); ++h) {
        const int64_t x = left + static_cast<int64_t>(h) * tile_width_;
        if (is_longest(row)) canvas.write(x, kMargin, std::to_string(row.heads[h]));
        draw_cells(canvas, colours, x, y, row.tiles[h], cell_, scale);
      }
    }
    draw_bar(canvas, colours, left + width_ + kMargin, top, height_, scale);
    return canvas.png();
  }

 private:
  struct Row {
    int64_t number;
    std::vector<int64_t> heads;
    std::vector<Pooled> tiles;
  };

  /// The first of the layers with the most heads: its numbers stand above the columns.
  bool is_longest(const Row& row) const {
    return &row == &*std::max_element(layers_.begin(), layers_.end(),
                                      [](const Row& a, const Row& b) { return a.heads.size() < b.heads.size(); });
  }

  int64_t cell_, tile_width_, tile_height_, width_, height_;
  std::vector<Row> layers_;
  std::vector<double> peaks_;
};

/// Pixels a weight, where a picture of this many is not too large.
int64_t cell_of(Checker& checker, int64_t Lq, int64_t Lk, const HeatmapOptions& options) {
  checker.require(options.cell >= 0, "cell must not be negative");
  checker.done();
  const int64_t cell = options.cell > 0 ? options.cell : std::max<int64_t>(kLongerSide / std::max(Lq, Lk), 1);
  const auto across = [&](int64_t count) { return static_cast<double>(cell) * static_cast<double>(count); };
  check_pixels("png_heatmap", across(Lk) + 2 * kMargin + kBarSpace, std::max<double>(across(Lq), kBarHeight));
  return cell;
}

std::string draw_heatmap(const Pooled& grid, int64_t cell, Scale kind) {
  const std::array<Colour, kColours> colours = palette(Ground::dark);
  const ColourScale scale(kind, grid.peaks);
  const int64_t width = grid.columns * cell, height = std::max(grid.rows * cell, kBarHeight);
  Canvas canvas(width + 2 * kMargin + kBarSpace, height + 2 * kMargin, colours[0]);
  draw_cells(canvas, colours, kMargin, kMargin, grid, cell, scale);
  draw_bar(canvas, colours, 2 * kMargin + width, kMargin, height, scale);
  return canvas.png();
}

}  // namespace

std::string png_heatmap(ConstView<4> weights, const HeatmapOptions& options) {
  Checker checker("png_heatmap");
  check_scale(checker, options.scale);
  check_weights(checker, weights);
  const int64_t Lq = weights.size[2], Lk = weights.size[3], cell = cell_of(checker, Lq, Lk, options);
  return draw_heatmap(Pooled(weights, Lq, Lk), cell, options.scale);
}

std::string png_heatmap(const Layer& layer, int64_t head, const HeatmapOptions& options) {
  Checker checker("png_heatmap");
  check_scale(checker, options.scale);
  check_layers(checker, {layer});
  check_selection(checker, {layer}, {.heads = {head}});
  const int64_t Lq = layer.q.size[2], Lk = layer.k.size[2], cell = cell_of(checker, Lq, Lk, options);
  return draw_heatmap(Pooled("png_heatmap", layer, head, Lq, Lk), cell, options.scale);
}

std::string png_overview(const std::vector<Layer>& layers, const HeatmapOptions& options, const Selection& selection) {
  Checker checker("png_overview");
  checker.require(options.cell >= 0, "cell must not be negative");
  check_scale(checker, options.scale);
  checker.require(options.max_rows > 0 && options.max_columns > 0, "max_rows and max_columns must be at least 1");
  check_layers(checker, layers);
  check_selection(checker, layers, selection);
  checker.done();
  const int64_t Lq = layers[0].q.size[2], Lk = layers[0].k.size[2];
  const Pooled empty(Lq, Lk, options.max_rows, options.max_columns);
  const std::vector<int64_t> shown = selected(selection.layers, static_cast<int64_t>(layers.size()));
  int64_t most_heads = static_cast<int64_t>(selection.heads.size());
  for (int64_t l : shown) most_heads = selection.heads.empty() ? std::max(most_heads, layers[l].q.size[1]) : most_heads;
  const auto rows = static_cast<int64_t>(shown.size());
  const int64_t fitting = kLongerSide / std::max(rows * empty.rows, most_heads * empty.columns);
  const int64_t cell = options.cell > 0 ? options.cell : std::max<int64_t>(fitting, 1);
  const auto across = [&](int64_t tiles, int64_t cells) {
    return static_cast<double>(tiles) * (static_cast<double>(cells) * static_cast<double>(cell) + kTileGap);
  };
  check_pixels("png_overview", across(most_heads, empty.columns) + 2 * kMargin + kBarSpace,
               across(rows, empty.rows) + 2 * kMargin);
  Overview picture(empty, cell, rows, most_heads);
  for (int64_t l : shown) {
    const std::vector<int64_t> heads = selected(selection.heads, layers[l].q.size[1]);
    std::vector<Pooled> tiles(heads.size(), empty);
    for_each_row("png_overview", layers[l], l, heads, [&](int64_t row, const double* weights) {
      for (size_t h = 0; h < tiles.size(); ++h) tiles[h].add_row(row, weights + static_cast<int64_t>(h) * Lk);
    });
    picture.add_layer(l, heads, std::move(tiles));
  }
  return picture.png(options.scale);
}

}  // namespace attn::view
