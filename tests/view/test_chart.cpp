// view: charts as SVG and PNG, which have one drawing, and what they refuse.
#include <gtest/gtest.h>
#include <png.h>

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "attn/io.h"
#include "attn/view_chart.h"
#include "support/errors.h"
#include "support/folder.h"
#include "view/colour.h"

namespace attn::test {
namespace {

using namespace view;

/// The value of an attribute of an element "<circle cx='1' ...".
std::string attribute(std::string_view element, std::string_view name) {
  const size_t at = element.find(" " + std::string(name) + "='");
  if (at == std::string_view::npos) return "";
  const size_t begin = at + name.size() + 3;
  return std::string(element.substr(begin, element.find('\'', begin) - begin));
}
double number(std::string_view element, std::string_view name) { return std::stod(attribute(element, name)); }

/// The elements of this name, each with what is in it.
std::vector<std::string> elements_of(const std::string& svg, const std::string& name) {
  std::vector<std::string> all;
  for (size_t at = svg.find("<" + name + " "); at != std::string::npos; at = svg.find("<" + name + " ", at + 1))
    all.push_back(svg.substr(at, svg.find('\n', at) - at));
  return all;
}

/// The marks of an SVG with a note, in their order.
struct Mark {
  double x, y, radius;
  std::string colour, note;
};
std::vector<Mark> marks_of(const std::string& svg) {
  std::vector<Mark> marks;
  for (const std::string& circle : elements_of(svg, "circle"))
    if (const size_t title = circle.find("<title>"); title != std::string::npos)
      marks.push_back({number(circle, "cx"), number(circle, "cy"), number(circle, "r"), attribute(circle, "fill"),
                       circle.substr(title + 7, circle.find('<', title + 7) - title - 7)});
  return marks;
}

struct Pixels {
  int64_t width = 0, height = 0;
  std::vector<Colour> all;

  explicit Pixels(const std::string& bytes) {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    if (!png_image_begin_read_from_memory(&image, bytes.data(), bytes.size())) return;
    image.format = PNG_FORMAT_RGB;
    all.resize(static_cast<size_t>(image.width) * image.height);
    if (!png_image_finish_read(&image, nullptr, all.data(), 0, nullptr)) return;
    width = image.width;
    height = image.height;
  }
  std::string at(double x, double y) const {
    const Colour c = all.at(static_cast<size_t>(std::lround(y) * width + std::lround(x)));
    char text[8];
    std::snprintf(text, sizeof text, "#%02x%02x%02x", c.red, c.green, c.blue);
    return text;
  }
};

Chart powers() {
  Chart chart{.title = "time", .x_label = "tokens", .y_label = "ms"};
  chart.log_x = chart.log_y = true;
  chart.series.push_back({.name = "square",
                          .points = {{.x = 10, .y = 1, .note = "a"},
                                     {.x = 20, .y = 4, .note = "b"},
                                     {.x = 40, .y = 16, .low = 8, .high = 32, .note = "c"}}});
  chart.series.push_back({.name = "line", .points = {{.x = 10, .y = 2, .note = "d"}}, .style = ChartStyle::marks});
  return chart;
}

TEST(Charts, PlaceEqualRatiosAtEqualDistances) {
  const std::vector<Mark> marks = marks_of(svg_chart(powers()));
  ASSERT_EQ(marks.size(), 4u);
  EXPECT_NEAR(marks[1].x - marks[0].x, marks[2].x - marks[1].x, 0.2);
  EXPECT_NEAR(marks[0].y - marks[1].y, marks[1].y - marks[2].y, 0.2);
  EXPECT_NEAR((marks[0].y - marks[3].y) * 2, marks[0].y - marks[1].y, 0.2);
  EXPECT_EQ(marks[0].colour, marks[2].colour);
  EXPECT_NE(marks[0].colour, marks[3].colour);
  Chart linear = powers();
  linear.log_x = linear.log_y = false;
  const std::vector<Mark> apart = marks_of(svg_chart(linear));
  EXPECT_NEAR((apart[1].x - apart[0].x) * 2, apart[2].x - apart[1].x, 0.2);
}

TEST(Charts, PngHasTheMarksOfTheSvg) {
  const std::string svg = svg_chart(powers());
  const Pixels pixels(png_chart(powers()));
  ASSERT_EQ(pixels.width, 1520);
  ASSERT_EQ(pixels.height, 960);
  EXPECT_EQ(pixels.at(2, 2), "#ffffff");
  for (const Mark& mark : marks_of(svg)) EXPECT_EQ(pixels.at(2 * mark.x, 2 * mark.y), mark.colour) << mark.note;
  const Mark barred = marks_of(svg)[2];  // its error bar reaches as far up as a doubling
  const double doubling = (marks_of(svg)[0].y - marks_of(svg)[1].y) / 2;
  EXPECT_NE(pixels.at(2 * barred.x, 2 * (barred.y - 0.9 * doubling)), "#ffffff");
  EXPECT_EQ(pixels.at(2 * barred.x + 3, 2 * (barred.y - 0.9 * doubling)), "#ffffff");
  for (const char* text : {">time<", ">tokens<", ">ms<", ">square<", ">line<", ">10<", ">20<", ">40<"})
    EXPECT_NE(svg.find(text), std::string::npos) << text;
}

TEST(Charts, LimitsEndAtTheAxesAndCirclesHaveAreas) {
  Chart chart = powers();
  chart.series = {
      {.points = {{.x = 10, .y = 1, .share = 0.25, .note = "a"}, {.x = 100, .y = 10, .share = 1, .note = "b"}},
       .style = ChartStyle::circles},
      {.points = {{.x = 1e-3, .y = 1e-4}, {.x = 1e5, .y = 1e4}}, .style = ChartStyle::limit}};
  const std::string svg = svg_chart(chart);
  const std::vector<Mark> marks = marks_of(svg);
  ASSERT_EQ(marks.size(), 2u);
  EXPECT_NEAR(marks[1].radius - 2, 2 * (marks[0].radius - 2), 0.01);
  std::string limit;
  for (const std::string& line : elements_of(svg, "line"))
    if (attribute(line, "stroke-width") == "1.8") limit = line;
  for (const char* x : {"x1", "x2"}) EXPECT_TRUE(number(limit, x) >= 75.9 && number(limit, x) <= 700.1) << limit;
  for (const char* y : {"y1", "y2"}) EXPECT_TRUE(number(limit, y) >= 43.9 && number(limit, y) <= 424.1) << limit;
  // It goes through both circles, whose coordinates have its ratio.
  const double slope = (number(limit, "y2") - number(limit, "y1")) / (number(limit, "x2") - number(limit, "x1"));
  for (const Mark& mark : marks)
    EXPECT_NEAR(mark.y, number(limit, "y1") + slope * (mark.x - number(limit, "x1")), 1) << mark.note;
}

TEST(Charts, EscapeText) {
  Chart chart = powers();
  chart.title = "<script>&\x1b[31m\xff";
  const std::string svg = svg_chart(chart);
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_NE(svg.find("&lt;script>&amp;"), std::string::npos);
  EXPECT_EQ(svg.find('\x1b'), std::string::npos);
  EXPECT_EQ(svg.find('\xff'), std::string::npos);
}

TEST(Charts, OnePointAndEqualPointsHaveAxes) {
  for (const bool logarithmic : {false, true})
    for (const double y : {5.0, 1e-9, 1e12}) {
      Chart chart{.series = {{.points = {{.x = y, .y = y, .note = "a"}, {.x = y, .y = y, .note = "b"}}}}};
      chart.log_x = chart.log_y = logarithmic;
      for (const Mark& mark : marks_of(svg_chart(chart)))
        EXPECT_TRUE(mark.x > 76 && mark.x < 700 && mark.y > 44 && mark.y < 424) << y << " " << mark.x << " " << mark.y;
    }
}

TEST(Charts, SayWhatIsWrong) {
  EXPECT_EQ(error_of([] { svg_chart({}); }), "[svg_chart] the chart has no points");
  Chart chart = powers();
  chart.series[0].points[1].y = 0;
  EXPECT_EQ(error_of([&] { png_chart(chart); }),
            "[png_chart] point 1 of series 'square' is (20, 0): coordinates must be finite, above 0 on a logarithmic "
            "axis, and shares in [0, 1]");
  chart.log_y = false;
  EXPECT_EQ(error_of([&] { png_chart(chart); }), "");
  chart.series[0].points[1].x = std::nan("");
  EXPECT_NE(error_of([&] { png_chart(chart); }), "");
  EXPECT_EQ(error_of([&] { save_chart("chart.gif", powers()); }),
            "[save_chart] the file is 'chart.gif', must end in .svg or .png");
  const Folder folder;
  save_chart(folder / "chart.png", powers());
  EXPECT_EQ(io::read_file(folder / "chart.png", 1 << 24), png_chart(powers()));
}

}  // namespace
}  // namespace attn::test
