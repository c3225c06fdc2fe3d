// terminal_heatmap(): one head as lines of text.
//
// Few columns: a cell is wide enough for its digits, under the token's name. Up to kWideColumns: two terminal cells a
// weight, which is about square. Beyond: one terminal cell a weight and, in colour, two rows in a line by half blocks;
// the label of the lower row then is on the right. Every line fits 120 terminal cells with the default options.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "view/colour.h"
#include "view/labels.h"
#include "view/weights.h"

namespace attn::view {
namespace {

constexpr int64_t kLabelWidth = 16;  // 64 weights, two labels and two indices make 104 cells
constexpr int64_t kDigitColumns = 9, kDigitCell = 7;
constexpr int64_t kPlainDigitColumns = 6, kPlainDigitCell = 10;  // a shade is before the digits
constexpr int64_t kWideColumns = 32;
constexpr int64_t kLegendCells = 24;
constexpr std::string_view kShades = " .:-=+*#%@";
constexpr std::string_view kReset = "\x1b[0m";

enum class Style { digits, wide, narrow };

std::string spaces(int64_t count) { return std::string(static_cast<size_t>(std::max<int64_t>(count, 0)), ' '); }

std::string digits_of(float weight) {
  if (weight == 0) return "0";
  if (weight < 0.0005f) return "<.001";
  char text[16];
  std::snprintf(text, sizeof text, "%.3f", static_cast<double>(weight));
  return text;
}

class Heatmap {
 public:
  Heatmap(const Pooled& grid, const std::vector<std::string>& row_labels, const std::vector<std::string>& column_labels,
          const HeatmapOptions& options)
      : grid_(grid),
        Lq_(static_cast<int64_t>(row_labels.size())),
        row_labels_(row_labels),
        column_labels_(column_labels),
        options_(options),
        scale_(options.scale, grid.peaks) {
    const int64_t most = options.colour ? kDigitColumns : kPlainDigitColumns;
    style_ = grid.columns <= most ? Style::digits : grid.columns <= kWideColumns ? Style::wide : Style::narrow;
    cell_ = style_ == Style::wide ? 2 : style_ == Style::narrow ? 1 : options.colour ? kDigitCell : kPlainDigitCell;
    index_width_ = static_cast<int64_t>(std::to_string(Lq_ - 1).size());
    for (int64_t row = 0; row < grid.rows; ++row) label_width_ = std::max(label_width_, display_width(row_label(row)));
  }

  std::string text() {
    add_legend();
    add_column_header();
    const int64_t step = style_ == Style::narrow && options_.colour ? 2 : 1;
    for (int64_t row = 0; row < grid_.rows; row += step) {
      add_row_label(row);
      if (!options_.colour) add_shades(row);
      else if (step == 1) add_colours(row);
      else add_half_blocks(row);
      end_line();
    }
    return text_;
  }

 private:
  std::string_view cut() const { return options_.colour ? "\u2026" : "~"; }

  std::string row_label(int64_t row) const {
    return visible_label(row_labels_[row * grid_.row_group], kLabelWidth, cut());
  }

  int64_t left_width() const { return index_width_ + 1 + label_width_ + 1; }

  /// Ends a line without the blanks at its end.
  void end_line() {
    text_.resize(text_.find_last_not_of(' ') + 1);
    text_ += '\n';
  }

  void add_legend() {
    text_ += "rows: queries, columns: keys, ";
    text_ += (options_.scale == Scale::linear ? "linear scale " : "logarithmic scale ") + scale_.first_label() + " ";
    for (int64_t n = 0; n < kLegendCells; ++n) {
      const double position = static_cast<double>(n) / (kLegendCells - 1);
      if (options_.colour) paint(position, false, " ");
      else text_ += shade(position);
    }
    stop_colour();
    text_ += " " + scale_.last_label() + "\n";
    if (!grid_.is_pooled()) return;
    text_ += std::to_string(Lq_) + " x " + std::to_string(grid_.Lk) + " weights, pooled: a cell shows the largest of " +
             std::to_string(grid_.row_group) + " x " + std::to_string(grid_.column_group) + "\n";
  }

  /// Names above the digits, or else the index of every so many columns.
  void add_column_header() {
    std::string line = spaces(left_width());
    const int64_t every = style_ == Style::digits ? 1 : style_ == Style::wide ? 5 : 10;
    for (int64_t c = 0; c < grid_.columns; c += every) {
      std::string head = std::to_string(c * grid_.column_group);
      if (style_ == Style::digits) {
        head = visible_label(column_labels_[c * grid_.column_group], cell_ - 2, cut());
        head = spaces(cell_ - 1 - display_width(head)) + head + " ";
      }
      line += head + spaces(every * cell_ - display_width(head));
    }
    text_ += line;
    end_line();
  }

  void add_row_label(int64_t row) {
    const std::string index = std::to_string(row * grid_.row_group), label = row_label(row);
    text_ += spaces(index_width_ - static_cast<int64_t>(index.size())) + index + " " + label +
             spaces(label_width_ - display_width(label)) + " ";
  }

  double position(int64_t row, int64_t column) const { return scale_.position(grid_.at(row, column)); }

  static char shade(double position) {
    return kShades[static_cast<size_t>(position * static_cast<double>(kShades.size() - 1) + 0.5)];
  }

  void add_shades(int64_t row) {
    for (int64_t c = 0; c < grid_.columns; ++c) {
      const std::string shades(static_cast<size_t>(std::min<int64_t>(cell_, 2)), shade(position(row, c)));
      if (style_ != Style::digits) {
        text_ += shades;
        continue;
      }
      const std::string digits = digits_of(grid_.at(row, c));
      text_ += " " + shades + spaces(cell_ - 4 - static_cast<int64_t>(digits.size())) + digits + " ";
    }
  }

  void add_colours(int64_t row) {
    for (int64_t c = 0; c < grid_.columns; ++c) {
      std::string content = spaces(cell_);
      if (style_ == Style::digits) {
        content = digits_of(grid_.at(row, c));
        content = spaces(cell_ - 1 - static_cast<int64_t>(content.size())) + content + " ";
      }
      paint(position(row, c), style_ == Style::digits, content);
    }
    stop_colour();
  }

  void add_half_blocks(int64_t row) {
    const bool has_lower = row + 1 < grid_.rows;
    for (int64_t c = 0; c < grid_.columns; ++c) {
      const Colour upper = colour(position(row, c));
      set_colours(code("38", upper), has_lower ? code("48", colour(position(row + 1, c))) : "");
      text_ += "\u2580";
    }
    stop_colour();
    if (!has_lower) return;
    text_ += " " + std::to_string((row + 1) * grid_.row_group) + " " + row_label(row + 1);
  }

  Colour colour(double position) const { return colours_[colour_index(position)]; }

  static std::string code(const char* what, Colour c) {
    char text[32];
    std::snprintf(text, sizeof text, "\x1b[%s;2;%d;%d;%dm", what, c.red, c.green, c.blue);
    return text;
  }

  /// `content` on the colour of a place on the scale, in ink that can be read on it.
  void paint(double position, bool with_ink, const std::string& content) {
    const Colour ground = colour(position);
    set_colours(with_ink ? code("38", is_bright(ground) ? Colour{0, 0, 0} : Colour{255, 255, 255}) : "",
                code("48", ground));
    text_ += content;
  }

  /// Writes the codes that differ from those in force.
  void set_colours(const std::string& ink, const std::string& ground) {
    if (ink != ink_) text_ += ink;
    if (ground != ground_) text_ += ground;
    ink_ = ink;
    ground_ = ground;
  }

  void stop_colour() {
    if (!ink_.empty() || !ground_.empty()) text_ += kReset;
    ink_.clear();
    ground_.clear();
  }

  const Pooled& grid_;
  int64_t Lq_;
  const std::vector<std::string>& row_labels_;
  const std::vector<std::string>& column_labels_;
  const HeatmapOptions& options_;
  const ColourScale scale_;
  const std::array<Colour, kColours> colours_ = palette(Ground::dark);
  Style style_ = Style::digits;
  int64_t cell_ = 1, index_width_ = 1, label_width_ = 0;
  std::string text_, ink_, ground_;
};

void check_labels(Checker& checker, const std::vector<std::string>& row_labels,
                  const std::vector<std::string>& column_labels, int64_t Lq, int64_t Lk,
                  const HeatmapOptions& options) {
  const auto check = [&](const char* name, size_t labels, int64_t expected) {
    checker.require(static_cast<int64_t>(labels) == expected, [&] {
      return "there are " + std::to_string(labels) + " " + name + " labels, must be one for each of " +
             std::to_string(expected) + " " + name + "s";
    });
  };
  check("row", row_labels.size(), Lq);
  check("column", column_labels.size(), Lk);
  checker.require(options.max_rows > 0 && options.max_columns > 0, [&] {
    return "max_rows is " + std::to_string(options.max_rows) + " and max_columns " +
           std::to_string(options.max_columns) + ", must be at least 1";
  });
  check_scale(checker, options.scale);
}

}  // namespace

std::string terminal_heatmap(ConstView<4> weights, const std::vector<std::string>& row_labels,
                             const std::vector<std::string>& column_labels, const HeatmapOptions& options) {
  Checker checker("terminal_heatmap");
  check_labels(checker, row_labels, column_labels, weights.size[2], weights.size[3], options);
  check_weights(checker, weights);
  checker.done();
  const Pooled grid(weights, options.max_rows, options.max_columns);
  return Heatmap(grid, row_labels, column_labels, options).text();
}

std::string terminal_heatmap(const RecordedAttention& layer, int64_t head, const std::vector<std::string>& row_labels,
                             const std::vector<std::string>& column_labels, const HeatmapOptions& options) {
  Checker checker("terminal_heatmap");
  check_labels(checker, row_labels, column_labels, layer.q.size[2], layer.k.size[2], options);
  check_recorded(checker, {&layer, 1});
  check_selection(checker, {layer}, {.heads = {head}});
  checker.done();
  const Pooled grid("terminal_heatmap", layer, head, options.max_rows, options.max_columns);
  return Heatmap(grid, row_labels, column_labels, options).text();
}

}  // namespace attn::view
