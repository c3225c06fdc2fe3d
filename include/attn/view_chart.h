// view: charts of numbers as SVG and PNG: lines and marks with error bars, circles, linear or logarithmic axes.
//
// ```cpp
// #include "attn/view_chart.h"
// int main() {
//   attn::view::Chart chart{.title = "time against length", .x_label = "tokens", .y_label = "seconds"};
//   chart.log_x = chart.log_y = true;
//   chart.series.push_back({.name = "attention", .points = {{512, 0.1}, {1024, 0.4}, {2048, 1.6}}});
//   attn::view::save_chart("chart.svg", chart);
//   attn::view::save_chart("chart.png", chart);
// }
// ```
//
// Both formats have the same drawing, the PNG with twice the pixels. Text is untrusted: SVG escapes it.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "attn/core.h"

#pragma GCC visibility push(default)
namespace attn::view {

struct ChartPoint {
  double x = 0, y = 0;
  double low = std::numeric_limits<double>::quiet_NaN();   ///< the lower end of an error bar; NaN: no bar
  double high = std::numeric_limits<double>::quiet_NaN();  ///< the upper end
  double share = 0;                                        ///< of a circle: its area, from 0 to 1
  std::string note = {};                                   ///< SVG shows it under the pointer
};

enum class ChartStyle {
  line,     ///< marks that a line joins
  marks,    ///< marks alone
  circles,  ///< circles whose areas are ChartPoint::share
  limit     ///< a dark line without marks, as the roof of a roofline; the axes need not reach its two ends
};

struct ChartSeries {
  std::string name = {};  ///< in the legend; empty: not there
  std::vector<ChartPoint> points = {};
  ChartStyle style = ChartStyle::line;
};

struct Chart {
  std::string title = {}, x_label = {}, y_label = {};
  bool log_x = false, log_y = false;  ///< coordinates must then be above 0
  std::vector<ChartSeries> series = {};
};

/// The chart as an SVG file of 760 x 480 units. Axes end a little beyond the points. Throws Error for coordinates that
/// are not finite or not on a logarithmic axis, and for a chart without points.
std::string svg_chart(const Chart& chart);
/// The same drawing as the bytes of a PNG of 1520 x 960 pixels. Characters outside ASCII are drawn as boxes.
std::string png_chart(const Chart& chart);
/// Writes one of them, as the end of the path says: .svg or .png. Throws Error for another end, and as
/// io::write_file().
void save_chart(const std::string& path, const Chart& chart);

}  // namespace attn::view
#pragma GCC visibility pop
