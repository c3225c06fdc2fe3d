// png_heatmap() and png_overview(): cells of whole pixels, a thin frame, a colour bar with its numbers, a title and
// labels.
//
// A heatmap is [margin][labels][frame + cells + frame][gap][bar][its numbers][margin], below a title and the columns'
// labels where there are any; an overview has a grid of framed tiles, layers downwards and heads across, each with its
// index at the edge.
#include <algorithm>
#include <cmath>

#include "view/canvas.h"
#include "view/labels.h"
#include "view/letters.h"
#include "view/picture.h"
#include "view/weights.h"

namespace attn::view {
namespace {

constexpr int64_t kTextGap = 6;
constexpr int64_t kTitleHeight = 2 * kLetterHeight + 3 * kTextGap;
constexpr int64_t kLabelled = 12;  // pixels of a cell beside which a label fits
constexpr int64_t kLabelCells = 16;

/// The colours of a picture.
struct Look {
  std::array<Colour, kColours> palette;
  Colour frame, ink;

  explicit Look(bool light)
      : palette(view::palette(light ? Ground::light : Ground::dark)),
        frame(light ? Colour{188, 193, 203} : Colour{92, 99, 117}),
        ink(light ? Colour{66, 72, 86} : Colour{176, 182, 196}) {}
};

/// The scale, brightest at the top, with its ends written beside it.
void draw_bar(Canvas& canvas, const Look& look, int64_t x, int64_t y, int64_t height, const ColourScale& scale) {
  for (int64_t row = 0; row < height; ++row) {
    const double position = 1 - static_cast<double>(row) / static_cast<double>(height - 1);
    canvas.fill(x, y + row, kBarWidth, 1, look.palette[colour_index(position)]);
  }
  canvas.frame(x, y, kBarWidth, height, look.frame);
  const int64_t left = x + kBarWidth + 1 + kTextGap;
  canvas.write(left, y, scale.last_label(), look.ink);
  canvas.write(left, y + height - kLetterHeight, scale.first_label(), look.ink);
}

void draw_cells(Canvas& canvas, const Look& look, int64_t x, int64_t y, const Pooled& grid, int64_t cell,
                const ColourScale& scale) {
  for (int64_t row = 0; row < grid.rows; ++row)
    for (int64_t column = 0; column < grid.columns; ++column) {
      const int index = colour_index(scale.position(grid.at(row, column)));
      canvas.fill(x + column * cell, y + row * cell, cell, cell, look.palette[index]);
    }
  canvas.frame(x, y, grid.columns * cell, grid.rows * cell, look.frame);
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

  std::string png(const HeatmapOptions& options) const {
    const Look look(options.light);
    const ColourScale scale(options.scale, peaks_);
    const int64_t left = kMargin + 3 * kLetterWidth, top = kMargin + kLetterHeight + kTextGap;
    Canvas canvas(left + width_ + kMargin + kBarSpace, top + height_ + kMargin, look.palette[0]);
    for (size_t l = 0; l < layers_.size(); ++l) {
      const Row& row = layers_[l];
      const int64_t y = top + static_cast<int64_t>(l) * tile_height_;
      canvas.write(kMargin, y, std::to_string(row.number), look.ink);
      for (size_t h = 0; h < row.tiles.size(); ++h) {
        const int64_t x = left + static_cast<int64_t>(h) * tile_width_;
        if (is_longest(row)) canvas.write(x, kMargin, std::to_string(row.heads[h]), look.ink);
        draw_cells(canvas, look, x, y, row.tiles[h], cell_, scale);
      }
    }
    draw_bar(canvas, look, left + width_ + kMargin, top, height_, scale);
    return canvas.png();
  }

 private:
  struct Row {
    int64_t number;
    std::vector<int64_t> heads;
    std::vector<Pooled> tiles;
  };

  /// The first of the layers with the most heads: its numbers are above the columns.
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

/// Labels of an axis as they are drawn, none where they do not fit.
std::vector<std::string> shown_labels(const std::vector<std::string>& labels, int64_t cell) {
  std::vector<std::string> shown;
  for (const std::string& label : labels)
    if (cell >= kLabelled) shown.push_back(visible_label(label, kLabelCells, "\u2026"));
  return shown;
}

int64_t pixels_of(const std::vector<std::string>& labels) {
  double widest = 0;
  for (const std::string& label : labels) widest = std::max(widest, width_of(label));
  return labels.empty() ? 0 : static_cast<int64_t>(std::ceil(kUnit * widest)) + kTextGap;
}

std::string draw_heatmap(const Pooled& grid, int64_t cell, const HeatmapOptions& options) {
  const Look look(options.light);
  const ColourScale scale(options.scale, grid.peaks);
  const std::vector<std::string> rows = shown_labels(options.rows, cell), columns = shown_labels(options.columns, cell);
  const int64_t left = kMargin + pixels_of(rows);
  const int64_t top = kMargin + (options.title.empty() ? 0 : kTitleHeight) + pixels_of(columns);
  const int64_t width = grid.columns * cell, height = std::max(grid.rows * cell, kBarHeight);
  const auto title_width = static_cast<int64_t>(kUnit * width_of(options.title)) + 2 * kMargin;
  Canvas canvas(std::max(left + width + kMargin + kBarSpace, title_width), top + height + kMargin, look.palette[0]);
  if (!options.title.empty()) {
    canvas.write(kMargin, kMargin, options.title, look.ink);
    canvas.write(kMargin, kMargin + kLetterHeight + kTextGap, "rows: queries, columns: keys", look.ink);
  }
  const auto middle = [&](size_t n) { return static_cast<int64_t>(n) * cell + cell / 2 - kLetterHeight / 2 + 1; };
  for (size_t n = 0; n < rows.size(); ++n)
    canvas.write(left - kTextGap - static_cast<int64_t>(kUnit * width_of(rows[n])), top + middle(n), rows[n], look.ink);
  for (size_t n = 0; n < columns.size(); ++n)
    canvas.write(left + middle(n), top - kTextGap, columns[n], look.ink, true);
  draw_cells(canvas, look, left, top, grid, cell, scale);
  draw_bar(canvas, look, left + width + kMargin, top, height, scale);
  return canvas.png();
}

void check_head_labels(Checker& checker, const HeatmapOptions& options, int64_t Lq, int64_t Lk) {
  const auto fits = [](const std::vector<std::string>& labels, int64_t count) {
    return labels.empty() || static_cast<int64_t>(labels.size()) == count;
  };
  checker.require(fits(options.rows, Lq) && fits(options.columns, Lk), [&] {
    return std::to_string(options.rows.size()) + " and " + std::to_string(options.columns.size()) +
           " labels, must be " + std::to_string(Lq) + " of rows and " + std::to_string(Lk) + " of columns, or none";
  });
}

}  // namespace

std::string png_heatmap(ConstView<4> weights, const HeatmapOptions& options) {
  Checker checker("png_heatmap");
  check_scale(checker, options.scale);
  check_weights(checker, weights);
  const int64_t Lq = weights.size[2], Lk = weights.size[3];
  check_head_labels(checker, options, Lq, Lk);
  const int64_t cell = cell_of(checker, Lq, Lk, options);
  return draw_heatmap(Pooled(weights, Lq, Lk), cell, options);
}

std::string png_heatmap(const RecordedAttention& layer, int64_t head, const HeatmapOptions& options) {
  Checker checker("png_heatmap");
  check_scale(checker, options.scale);
  check_recorded(checker, {&layer, 1});
  check_selection(checker, {layer}, {.heads = {head}});
  const int64_t Lq = layer.q.size[2], Lk = layer.k.size[2];
  check_head_labels(checker, options, Lq, Lk);
  const int64_t cell = cell_of(checker, Lq, Lk, options);
  HeatmapOptions named = options;
  if (named.title.empty()) named.title = layer.name + ", head " + std::to_string(head);
  return draw_heatmap(Pooled("png_heatmap", layer, head, Lq, Lk), cell, named);
}

std::string png_overview(const std::vector<RecordedAttention>& layers, const HeatmapOptions& options,
                         const Selection& selection) {
  Checker checker("png_overview");
  checker.require(options.cell >= 0, "cell must not be negative");
  check_scale(checker, options.scale);
  checker.require(options.max_rows > 0 && options.max_columns > 0, "max_rows and max_columns must be at least 1");
  check_recorded(checker, layers);
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
  return picture.png(options);
}

}  // namespace attn::view
