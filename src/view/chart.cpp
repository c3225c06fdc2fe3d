// svg_chart() and png_chart(): one drawing, as strokes, discs and text on a Sheet, which writes SVG or pixels.
#include "attn/view_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include "attn/core.h"
#include "attn/io.h"
#include "core/checker.h"
#include "view/canvas.h"
#include "view/labels.h"
#include "view/letters.h"

namespace attn::view {
namespace {

constexpr double kWidth = 760, kHeight = 480, kLeft = 76, kTop = 44, kInsideBottom = kHeight - 56;
constexpr Colour kInk{40, 44, 52}, kGrid{222, 224, 229}, kWhite{255, 255, 255};
/// Okabe and Ito's colours, which every eye tells apart.
constexpr std::array<Colour, 7> kSeriesColours = {
    {{0, 114, 178}, {213, 94, 0}, {0, 158, 115}, {204, 121, 167}, {230, 159, 0}, {86, 180, 233}, {127, 127, 127}}};

enum class Align { first, middle, last };

std::string formatted(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// ------------------------------------------------------------------------------------------------------------- sheets

/// What a chart is drawn on, in units of the SVG file; y grows downwards.
class Sheet {
 public:
  virtual ~Sheet() = default;
  virtual void stroke(Canvas::Point a, Canvas::Point b, double width, Colour colour) = 0;
  virtual void disc(Canvas::Point centre, double radius, Colour colour, double opacity, const std::string& note) = 0;
  /// A line of text whose baseline has `at` as its first, middle or last point; `upwards` it is turned to the left.
  virtual void write(Canvas::Point at, const std::string& text, Align align, bool upwards = false) = 0;
  virtual std::string file() const = 0;
};

class SvgSheet : public Sheet {
 public:
  void stroke(Canvas::Point a, Canvas::Point b, double width, Colour colour) override {
    svg_ += "<line x1='" + number(a.first) + "' y1='" + number(a.second) + "' x2='" + number(b.first) + "' y2='" +
            number(b.second) + "' stroke='" + hex(colour) + "' stroke-width='" + number(width) + "'/>\n";
  }
  void disc(Canvas::Point centre, double radius, Colour colour, double opacity, const std::string& note) override {
    svg_ += "<circle cx='" + number(centre.first) + "' cy='" + number(centre.second) + "' r='" + number(radius) +
            "' fill='" + hex(colour) + "' fill-opacity='" + number(opacity) + "'>" +
            (note.empty() ? "" : "<title>" + escaped(note) + "</title>") + "</circle>\n";
  }
  void write(Canvas::Point at, const std::string& text, Align align, bool upwards) override {
    constexpr std::array<const char*, 3> kAnchors = {"start", "middle", "end"};
    const std::string x = number(at.first), y = number(at.second);
    svg_ += "<text x='" + x + "' y='" + y + "' text-anchor='" + kAnchors[static_cast<size_t>(align)] + "'" +
            (upwards ? " transform='rotate(-90 " + x + " " + y + ")'" : "") + ">" + escaped(text) + "</text>\n";
  }
  std::string file() const override {
    const std::string size = number(kWidth) + "' height='" + number(kHeight);
    return "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 " + number(kWidth) + " " + number(kHeight) +
           "' width='" + size + "' font-family='sans-serif' font-size='12' fill='" + hex(kInk) +
           "'>\n<rect width='100%' height='100%' fill='" + hex(kWhite) + "'/>\n" + svg_ + "</svg>\n";
  }

 private:
  static std::string number(double value) { return formatted("%.4g", value); }
  static std::string hex(Colour c) {
    char text[8];
    std::snprintf(text, sizeof text, "#%02x%02x%02x", c.red, c.green, c.blue);
    return text;
  }
  static std::string escaped(const std::string& text) {
    std::string safe;
    for (const char c : visible_label(text, kLongestText, "\u2026"))
      safe += c == '&' ? "&amp;" : c == '<' ? "&lt;" : std::string(1, c);
    return safe;
  }

  static constexpr int64_t kLongestText = 400;

  std::string svg_;
};

class PngSheet : public Sheet {
 public:
  void stroke(Canvas::Point a, Canvas::Point b, double width, Colour colour) override {
    canvas_.stroke(scaled(a), scaled(b), kPixels * width, colour);
  }
  void disc(Canvas::Point centre, double radius, Colour colour, double opacity, const std::string&) override {
    canvas_.stroke(scaled(centre), scaled(centre), 2 * kPixels * radius, colour, opacity);
  }
  void write(Canvas::Point at, const std::string& text, Align align, bool upwards) override {
    const double part = align == Align::first ? 0 : align == Align::middle ? 0.5 : 1;
    const double back = part * kPixels * kUnit * width_of(text), up = kPixels * kUnit * 6;  // capitals are 6 units high
    const auto [x, y] = scaled(at);
    if (upwards) canvas_.write(x - up, y + back, text, kInk, true, kPixels);
    else canvas_.write(x - back, y - up, text, kInk, false, kPixels);
  }
  std::string file() const override { return canvas_.png(); }

 private:
  static constexpr double kPixels = 2;  // a unit

  static Canvas::Point scaled(Canvas::Point p) { return {kPixels * p.first, kPixels * p.second}; }

  Canvas canvas_{static_cast<int64_t>(kPixels * kWidth), static_cast<int64_t>(kPixels* kHeight), kWhite};
};

// --------------------------------------------------------------------------------------------------------------- axes

/// From a coordinate to a place between two ends, on a linear or a logarithmic scale.
class Axis {
 public:
  /// `apart`: units between two numbers, at least.
  Axis(bool logarithmic, double first_place, double last_place, double apart)
      : logarithmic_(logarithmic), first_(first_place), last_(last_place), apart_(apart) {}

  void include(double value) {
    if (std::isnan(value)) return;
    low_ = std::min(low_, on_scale(value));
    high_ = std::max(high_, on_scale(value));
    if (std::find(values_.begin(), values_.end(), value) == values_.end()) values_.push_back(value);
  }

  /// Ends a little beyond what is included. A linear axis begins at 0 where that is near.
  void finish() {
    if (!logarithmic_ && low_ > 0 && low_ < 0.4 * high_) low_ = 0;
    const double span = high_ > low_ ? high_ - low_ : logarithmic_ || high_ == 0 ? 1 : std::abs(high_);
    if (logarithmic_ || low_ != 0) low_ -= 0.05 * span;
    high_ += 0.05 * span;
  }

  double place(double value) const { return first_ + (on_scale(value) - low_) / (high_ - low_) * (last_ - first_); }
  double lowest() const { return logarithmic_ ? std::pow(10, low_) : low_; }
  double highest() const { return logarithmic_ ? std::pow(10, high_) : high_; }

  /// Where numbers are written: on a logarithmic axis at the values themselves if these are few and apart.
  std::vector<double> ticks() const {
    return !logarithmic_ ? linear_ticks() : are_apart(values_) ? values_ : decades();
  }

 private:
  double on_scale(double value) const { return logarithmic_ ? std::log10(value) : value; }
  bool is_inside(double value) const { return on_scale(value) >= low_ && on_scale(value) <= high_; }

  bool are_apart(std::vector<double> values) const {
    std::sort(values.begin(), values.end());
    for (size_t n = 1; n < values.size(); ++n)
      if (std::abs(place(values[n]) - place(values[n - 1])) < apart_) return false;
    return true;
  }

  std::vector<double> linear_ticks() const {
    const double rough = (high_ - low_) / 6, power = std::pow(10, std::floor(std::log10(rough))), digit = rough / power;
    const double step = power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
    std::vector<double> ticks;
    for (double n = std::ceil(low_ / step); n * step <= high_; ++n) ticks.push_back(n * step);
    return ticks;
  }

  /// Powers of ten, and between them all digits, or 2 and 5, where there is room.
  std::vector<double> decades() const {
    std::vector<double> ticks;
    for (const std::vector<double>& digits : {std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 2, 5}, {1}}) {
      ticks.clear();
      for (double power = std::floor(low_); power <= high_; ++power)
        for (const double digit : digits)
          if (is_inside(digit * std::pow(10, power))) ticks.push_back(digit * std::pow(10, power));
      if (are_apart(ticks)) break;
    }
    return ticks;
  }

  bool logarithmic_;
  double first_, last_, apart_;
  double low_ = std::numeric_limits<double>::infinity(), high_ = -std::numeric_limits<double>::infinity();
  std::vector<double> values_;
};

/// The part of a line that is inside the axes, left of `right`; nothing where none is.
std::optional<std::pair<Canvas::Point, Canvas::Point>> clipped(Canvas::Point a, Canvas::Point b, double right) {
  double from = 0, to = 1;
  const auto keep = [&](double start, double change, double low, double high) {
    if (change == 0) return start >= low && start <= high;
    const double t0 = (low - start) / change, t1 = (high - start) / change;
    from = std::max(from, std::min(t0, t1));
    to = std::min(to, std::max(t0, t1));
    return from <= to;
  };
  const double dx = b.first - a.first, dy = b.second - a.second;
  if (!keep(a.first, dx, kLeft, right) || !keep(a.second, dy, kTop, kInsideBottom)) return {};
  return {{{a.first + from * dx, a.second + from * dy}, {a.first + to * dx, a.second + to * dy}}};
}

// ------------------------------------------------------------------------------------------------------------- drawing

/// The right end of the axes: the names of the series are beside it.
double right_end(const Chart& chart) {
  double widest = 0;
  for (const ChartSeries& series : chart.series) widest = std::max(widest, kUnit * width_of(series.name));
  return kWidth - std::clamp(widest + 44, 60.0, 0.45 * kWidth);
}

class Drawing {
 public:
  Drawing(const Chart& chart, Sheet& sheet)
      : chart_(chart),
        sheet_(sheet),
        right_(right_end(chart)),
        x_(chart.log_x, kLeft, right_, 40),
        y_(chart.log_y, kInsideBottom, kTop, 18) {
    for (const ChartSeries& series : chart.series) {
      const auto cut = series.style == ChartStyle::limit && series.points.size() > 1 ? size_t{1} : size_t{0};
      for (size_t n = cut; n + cut < series.points.size(); ++n) {
        const ChartPoint& point = series.points[n];
        x_.include(point.x);
        for (const double y : {point.y, point.low, point.high}) y_.include(y);
      }
    }
    x_.finish();
    y_.finish();
  }

  void draw() {
    draw_axes();
    size_t colour = 0;
    for (const ChartSeries& series : chart_.series)
      draw_series(series, series.style == ChartStyle::limit ? kInk : kSeriesColours[colour++ % kSeriesColours.size()]);
  }

 private:
  void draw_axes() {
    for (const double value : x_.ticks()) {
      sheet_.stroke({x_.place(value), kTop}, {x_.place(value), kInsideBottom}, 1, kGrid);
      sheet_.write({x_.place(value), kInsideBottom + 18}, formatted("%g", value), Align::middle);
    }
    for (const double value : y_.ticks()) {
      sheet_.stroke({kLeft, y_.place(value)}, {right_, y_.place(value)}, 1, kGrid);
      sheet_.write({kLeft - 8, y_.place(value) + 4}, formatted("%.4g", value), Align::last);
    }
    sheet_.stroke({kLeft, kInsideBottom}, {right_, kInsideBottom}, 1, kInk);
    sheet_.stroke({kLeft, kTop}, {kLeft, kInsideBottom}, 1, kInk);
    sheet_.write({kLeft, 26}, chart_.title, Align::first);
    sheet_.write({(kLeft + right_) / 2, kHeight - 14}, chart_.x_label, Align::middle);
    sheet_.write({18, (kTop + kInsideBottom) / 2}, chart_.y_label, Align::middle, true);
  }

  void draw_series(const ChartSeries& series, Colour colour) {
    std::optional<Canvas::Point> before;
    for (const ChartPoint& point : series.points) {
      const Canvas::Point at{x_.place(point.x), y_.place(point.y)};
      if (before && (series.style == ChartStyle::line || series.style == ChartStyle::limit))
        if (const auto inside = clipped(*before, at, right_)) sheet_.stroke(inside->first, inside->second, 1.8, colour);
      before = at;
      if (!std::isnan(point.low) && !std::isnan(point.high)) draw_bar(point, colour);
      if (series.style == ChartStyle::circles)
        sheet_.disc(at, 2 + 24 * std::sqrt(point.share), colour, 0.6, point.note);
      else if (series.style != ChartStyle::limit) sheet_.disc(at, 3.5, colour, 1, point.note);
    }
    if (series.name.empty()) return;
    const double y = kTop + 8 + 18 * static_cast<double>(named_++);
    sheet_.disc({right_ + 16, y}, 4.5, colour, 1, "");
    sheet_.write({right_ + 28, y + 4}, series.name, Align::first);
  }

  void draw_bar(const ChartPoint& point, Colour colour) {
    const double x = x_.place(point.x);
    sheet_.stroke({x, y_.place(point.low)}, {x, y_.place(point.high)}, 1, colour);
    for (const double end : {point.low, point.high})
      sheet_.stroke({x - 4, y_.place(end)}, {x + 4, y_.place(end)}, 1, colour);
  }

  const Chart& chart_;
  Sheet& sheet_;
  double right_;
  Axis x_, y_;
  int named_ = 0;
};

void check_point(Checker& checker, const Chart& chart, const ChartSeries& series, size_t n) {
  const ChartPoint& point = series.points[n];
  const auto fits = [](double value, bool logarithmic) {
    return std::isfinite(value) && (!logarithmic || value > 0) && std::abs(value) < 1e300;
  };
  const auto bar_fits = [&](double value) { return std::isnan(value) || fits(value, chart.log_y); };
  checker.require(fits(point.x, chart.log_x) && fits(point.y, chart.log_y) && bar_fits(point.low) &&
                      bar_fits(point.high) && point.share >= 0 && point.share <= 1,
                  [&] {
                    return "point " + std::to_string(n) + " of series '" + series.name + "' is (" +
                           formatted("%g", point.x) + ", " + formatted("%g", point.y) +
                           "): coordinates must be finite, above 0 on a logarithmic axis, and shares in [0, 1]";
                  });
}

std::string drawn(const Chart& chart, const char* operation, Sheet& sheet) {
  Checker checker(operation);
  bool has_points = false;
  for (const ChartSeries& series : chart.series) {
    for (size_t n = 0; n < series.points.size(); ++n) check_point(checker, chart, series, n);
    has_points = has_points || (series.style != ChartStyle::limit && !series.points.empty());
  }
  checker.require(has_points, "the chart has no points");
  checker.done();
  Drawing(chart, sheet).draw();
  return sheet.file();
}

}  // namespace

std::string svg_chart(const Chart& chart) {
  SvgSheet sheet;
  return drawn(chart, "svg_chart", sheet);
}

std::string png_chart(const Chart& chart) {
  PngSheet sheet;
  return drawn(chart, "png_chart", sheet);
}

void save_chart(const std::string& path, const Chart& chart) {
  const bool is_png = path.ends_with(".png");
  if (!is_png && !path.ends_with(".svg"))
    throw Error("save_chart", {"the file is '" + path + "', must end in .svg or .png"});
  io::write_file(path, is_png ? png_chart(chart) : svg_chart(chart));
}

}  // namespace attn::view
