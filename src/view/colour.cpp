// Colour maps that are ordered by construction: lightness is a straight line from one end to the other, and hue and
// chroma, which nobody reads as an amount, move along control points chosen to stay inside sRGB.
//
// Points are given in OKLCh (Ottosson 2020: lightness, chroma, hue in degrees) and joined by straight lines in OKLab.
// On dark ground: slate, indigo, blue, green, yellow. On light ground: white, aqua, blue, indigo.
#include "view/colour.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>

namespace attn::view {
namespace {

constexpr double kLogDecades = 4;
constexpr double kTie = 1e-5;  // what rounding to float32 makes of a weight that has two digits

struct Point {
  double lightness, chroma, hue;
};

constexpr int kPoints = 5;  // at positions 0, 1/4, ... 1
constexpr Point kDark[kPoints] = {
    {0.20, 0.015, 270}, {0.39, 0.12, 285}, {0.58, 0.11, 235}, {0.77, 0.15, 160}, {0.96, 0.14, 106}};
constexpr Point kLight[kPoints] = {
    {1.00, 0.000, 200}, {0.83, 0.07, 205}, {0.66, 0.12, 235}, {0.49, 0.16, 268}, {0.32, 0.15, 285}};

struct Lab {
  double lightness, a, b;
};

Lab to_lab(const Point& p) {
  const double angle = p.hue * std::numbers::pi / 180;
  return {p.lightness, p.chroma * std::cos(angle), p.chroma * std::sin(angle)};
}

/// A linear component as an sRGB byte.
uint8_t encode(double linear) {
  const double x = std::clamp(linear, 0.0, 1.0);
  const double encoded = x <= 0.0031308 ? 12.92 * x : 1.055 * std::pow(x, 1 / 2.4) - 0.055;
  return static_cast<uint8_t>(encoded * 255 + 0.5);
}

/// OKLab to sRGB, with the matrices of its definition.
Colour to_colour(const Lab& c) {
  const auto cube = [](double x) { return x * x * x; };
  const double l = cube(c.lightness + 0.3963377774 * c.a + 0.2158037573 * c.b);
  const double m = cube(c.lightness - 0.1055613458 * c.a - 0.0638541728 * c.b);
  const double s = cube(c.lightness - 0.0894841775 * c.a - 1.2914855480 * c.b);
  return {encode(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
          encode(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
          encode(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s)};
}

}  // namespace

ColourScale::ColourScale(Scale scale_, std::vector<double> peaks) : scale(scale_) {
  std::erase_if(peaks, [](double peak) { return !(peak > 0); });
  if (scale == Scale::log || peaks.empty()) return;
  const double largest = *std::max_element(peaks.begin(), peaks.end());
  const auto middle = peaks.begin() + static_cast<std::ptrdiff_t>(peaks.size() / 2);
  std::nth_element(peaks.begin(), middle, peaks.end());
  // Up to two digits, so that what is written beside the colours is the end itself.
  const double wanted = std::min(largest, 2 * *middle);
  const double digit = std::pow(10, std::floor(std::log10(wanted)) - 1);
  end = std::min(std::ceil(wanted / digit * (1 - kTie)) * digit, 1.0);
  cut = end < 1 && largest > end * (1 + kTie);
}

double ColourScale::position(double weight) const {
  const double position = scale == Scale::linear ? weight / end : 1 + std::log10(weight) / kLogDecades;
  return std::clamp(position, 0.0, 1.0);
}

std::string ColourScale::last_label() const {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g", end);
  std::string label = text;
  if (const size_t zero = label.find("e-0"); zero != std::string::npos) label.erase(zero + 2, 1);
  return label + (cut ? "+" : "");
}

std::array<Colour, kColours> palette(Ground ground) {
  const Point* points = ground == Ground::dark ? kDark : kLight;
  std::array<Colour, kColours> colours;
  for (int n = 0; n < kColours; ++n) {
    const double x = static_cast<double>(n) * (kPoints - 1) / (kColours - 1);
    const int segment = std::min(static_cast<int>(x), kPoints - 2);
    const Lab from = to_lab(points[segment]), to = to_lab(points[segment + 1]);
    const double t = x - segment;
    colours[n] =
        to_colour({std::lerp(from.lightness, to.lightness, t), std::lerp(from.a, to.a, t), std::lerp(from.b, to.b, t)});
  }
  return colours;
}

bool is_bright(Colour c) { return 299 * c.red + 587 * c.green + 114 * c.blue > 140 * 1000; }

}  // namespace attn::view
