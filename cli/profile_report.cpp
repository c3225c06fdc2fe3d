#include "profile_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "attn/core.h"
#include "attn/io.h"
#include "numbers.h"

namespace cli {
namespace {

using Json = nlohmann::ordered_json;

double median(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::string operation_of(const attn::ProfileRow& row) { return row.operation.empty() ? "(other)" : row.operation; }

/// Part of a limit in percent; NaN, which tables leave out, of nothing.
double percent(double part, double seconds, double limit) {
  return part > 0 && seconds > 0 ? 100 * part / seconds / limit : std::nan("");
}

double sum_of(const std::vector<attn::ProfileRow>& rows, double attn::ProfileRow::*member) {
  return std::accumulate(rows.begin(), rows.end(), 0.0,
                         [&](double sum, const attn::ProfileRow& row) { return sum + row.*member; });
}

/// Rows that differ in the shape alone as one.
std::vector<attn::ProfileRow> without_shapes(const std::vector<attn::ProfileRow>& rows) {
  std::vector<attn::ProfileRow> merged;
  std::map<std::pair<std::string, std::string>, size_t> places;
  for (const attn::ProfileRow& row : rows) {
    const auto [place, is_new] = places.try_emplace({row.scope, row.operation}, merged.size());
    if (is_new) {
      merged.push_back(row);
      continue;
    }
    attn::ProfileRow& sum = merged[place->second];
    sum.calls += row.calls;
    sum.seconds += row.seconds;
    sum.flops += row.flops;
    sum.bytes += row.bytes;
    sum.peak = std::max(sum.peak, row.peak);
    if (sum.shape != row.shape) sum.shape = "";
  }
  return merged;
}

/// Characters of the longest text in a column.
size_t widest(const Table& table, size_t column) {
  size_t most = 10;
  for (const auto& row : table.rows) most = std::max(most, row[column].get<std::string>().size());
  return most;
}

std::vector<attn::ProfileRow> slowest_first(std::vector<attn::ProfileRow> rows) {
  std::stable_sort(rows.begin(), rows.end(),
                   [](const attn::ProfileRow& a, const attn::ProfileRow& b) { return a.seconds > b.seconds; });
  return rows;
}

}  // namespace

Table phase_table(const std::vector<ProfiledPhase>& phases, const MachinePeaks& peaks) {
  Table table{{{"phase", "{:<10}"},
               {"tokens", "{:>8}"},
               {"seconds", "{:>12.4f}"},
               {"tokens_per_second", "{:>12.1f}", "tokens/s"},
               {"gflop_per_second", "{:>10.1f}", "GFLOP/s"},
               {"peak_percent", "{:>9.1f}", "% peak"},
               {"profiling_percent", "{:>14.1f}", "profiling, %"}}};
  for (const ProfiledPhase& phase : phases) {
    const double seconds = median(phase.plain), runs = static_cast<double>(phase.profiled.size());
    const double flops = sum_of(phase.rows, &attn::ProfileRow::flops) / runs;
    table.rows.push_back({phase.name, phase.tokens, seconds, static_cast<double>(phase.tokens) / seconds,
                          flops > 0 ? 1e-9 * flops / seconds : std::nan(""), percent(flops, seconds, peaks.flops),
                          100 * (median(phase.profiled) / seconds - 1)});
  }
  return table;
}

Table operation_table(const ProfiledPhase& phase, const MachinePeaks& peaks, int64_t most) {
  Table table{{{"phase", ""},
               {"scope", "{:<44}"},
               {"operation", "{:<26}"},
               {"shape", ""},
               {"calls", "{:>8.0f}"},
               {"milliseconds", "{:>9.2f}", "ms"},
               {"percent", "{:>6.1f}", "%"},
               {"gflop_per_second", "{:>9.1f}", "GFLOP/s"},
               {"peak_percent", "{:>8.1f}", "% peak"},
               {"gb_per_second", "{:>7.1f}", "GB/s"},
               {"bandwidth_percent", "{:>8.1f}", "% band"},
               {"flop_per_byte", "{:>8.1f}", "FLOP/B"},
               {"peak_megabytes", "{:>9.1f}", "peak MB"}}};
  const double runs = static_cast<double>(phase.profiled.size()), all = sum_of(phase.rows, &attn::ProfileRow::seconds);
  const auto add = [&](const attn::ProfileRow& row) {
    const auto rate = [&](double part) {
      return part > 0 && row.seconds > 0 ? 1e-9 * part / row.seconds : std::nan("");
    };
    table.rows.push_back({phase.name, row.scope, operation_of(row), row.shape, static_cast<double>(row.calls) / runs,
                          1e3 * row.seconds / runs, 100 * row.seconds / all, rate(row.flops),
                          percent(row.flops, row.seconds, peaks.flops), rate(row.bytes),
                          percent(row.bytes, row.seconds, peaks.bandwidth),
                          row.flops > 0 && row.bytes > 0 ? row.flops / row.bytes : std::nan(""),
                          1e-6 * static_cast<double>(row.peak)});
  };
  attn::ProfileRow rest{.scope = "the rest", .operation = "-"};
  int64_t shown = 0;
  for (const attn::ProfileRow& row : slowest_first(most == 0 ? phase.rows : without_shapes(phase.rows))) {
    if (most == 0 || shown++ < most) {
      add(row);
      continue;
    }
    rest.calls += row.calls;
    rest.seconds += row.seconds;
    rest.peak = std::max(rest.peak, row.peak);
  }
  if (rest.calls > 0) add(rest);
  table.columns[1].text = fmt::format("{{:<{}}}", widest(table, 1) + 2);
  table.columns[2].text = fmt::format("{{:<{}}}", widest(table, 2));
  return table;
}

// ------------------------------------------------------------------------------------------------- files and comparing

Json profile_json(const std::vector<ProfiledPhase>& phases, const MachinePeaks& peaks) {
  Json all = {{"flops_per_second", peaks.flops}, {"bytes_per_second", peaks.bandwidth}, {"phases", Json::array()}};
  for (const ProfiledPhase& phase : phases)
    all["phases"].push_back({{"phase", phase.name},
                             {"tokens", phase.tokens},
                             {"seconds", phase.plain},
                             {"profiled_seconds", phase.profiled},
                             {"operations", operation_table(phase, peaks, 0).json()}});
  return all;
}

namespace {

using Place = std::tuple<std::string, std::string, std::string, std::string>;

/// Milliseconds of each operation.
std::map<Place, double> times_in(const std::string& path) {
  const std::string text = attn::io::read_file(path, int64_t{1} << 30);
  attn::io::check_json("profile", path, text);
  std::map<Place, double> times;
  try {
    const Json all = Json::parse(text);
    for (const Json& phase : all.at("phases"))
      for (const Json& row : phase.at("operations"))
        times[{row.at("phase"), row.at("scope"), row.at("operation"), row.at("shape")}] +=
            row.at("milliseconds").get<double>();
  } catch (const Json::exception&) {
    throw attn::Error("profile", {path + " is not a profile: attn profile --json writes one"});
  }
  return times;
}

}  // namespace

Table comparison(const std::string& before, const std::string& after, int64_t most) {
  const std::map<Place, double> first = times_in(before), second = times_in(after);
  std::map<Place, std::pair<double, double>> both;
  for (const auto& [place, time] : first) both[place].first = time;
  for (const auto& [place, time] : second) both[place].second = time;
  std::vector<std::pair<Place, std::pair<double, double>>> rows(both.begin(), both.end());
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return std::abs(a.second.first - a.second.second) > std::abs(b.second.first - b.second.second);
  });
  if (most > 0 && std::ssize(rows) > most) rows.resize(static_cast<size_t>(most));
  Table table{{{"phase", "{:<10}"},
               {"scope", "{:<44}"},
               {"operation", "{:<26}"},
               {"shape", "{:<26}"},
               {"first_milliseconds", "{:>12.3f}", "first, ms"},
               {"second_milliseconds", "{:>12.3f}", "second, ms"},
               {"ratio", "{:>8.2f}"}}};
  for (const auto& [place, times] : rows) {
    const auto& [phase, scope, operation, shape] = place;
    table.rows.push_back({phase, scope, operation, shape, times.first, times.second,
                          times.first > 0 && times.second > 0 ? times.second / times.first : std::nan("")});
  }
  return table;
}

// ----------------------------------------------------------------------------------------------------------- roofline

namespace {

constexpr double kWidth = 760, kHeight = 480, kLeft = 70, kRight = 190, kTop = 30, kBottom = 50;

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) safe += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return safe;
}

/// Both axes are logarithmic and end at powers of ten.
class Axes {
 public:
  Axes(double least_x, double most_x, double least_y, double most_y)
      : x0_(std::floor(std::log10(least_x))),
        x1_(std::ceil(std::log10(most_x))),
        y0_(std::floor(std::log10(least_y))),
        y1_(std::ceil(std::log10(most_y))) {}
  double x(double value) const { return kLeft + (std::log10(value) - x0_) / (x1_ - x0_) * (kWidth - kLeft - kRight); }
  double y(double value) const {
    return kHeight - kBottom - (std::log10(value) - y0_) / (y1_ - y0_) * (kHeight - kTop - kBottom);
  }
  double first_x() const { return std::pow(10, x0_); }
  double last_x() const { return std::pow(10, x1_); }

  std::string grid() const {
    std::string svg;
    for (double power = x0_; power <= x1_; ++power) {
      const double at = x(std::pow(10, power));
      svg += fmt::format("<line x1='{0:.1f}' x2='{0:.1f}' y1='{1}' y2='{2}' class='grid'/>\n", at, kTop,
                         kHeight - kBottom);
      svg += fmt::format("<text x='{:.1f}' y='{}' text-anchor='middle'>{:g}</text>\n", at, kHeight - kBottom + 18,
                         std::pow(10, power));
    }
    for (double power = y0_; power <= y1_; ++power) {
      const double at = y(std::pow(10, power));
      svg +=
          fmt::format("<line x1='{1}' x2='{2}' y1='{0:.1f}' y2='{0:.1f}' class='grid'/>\n", at, kLeft, kWidth - kRight);
      svg += fmt::format("<text x='{}' y='{:.1f}' text-anchor='end'>{:g}</text>\n", kLeft - 8, at + 4,
                         std::pow(10, power - 9));
    }
    return svg;
  }

 private:
  double x0_, x1_, y0_, y1_;
};

struct Circle {
  std::string phase, name;
  double intensity, rate, share;
};

/// Scopes of one phase that do the same operation are one circle.
std::vector<Circle> circles_of(const std::vector<ProfiledPhase>& phases) {
  std::vector<Circle> circles;
  for (const ProfiledPhase& phase : phases) {
    const double all = sum_of(phase.rows, &attn::ProfileRow::seconds);
    for (const attn::ProfileRow& row : phase.rows)
      if (row.flops > 0 && row.bytes > 0 && row.seconds > 0.002 * all)
        circles.push_back({phase.name, row.scope + " " + row.operation + " " + row.shape, row.flops / row.bytes,
                           row.flops / row.seconds, row.seconds / all});
  }
  return circles;
}

}  // namespace

std::string roofline(const std::vector<ProfiledPhase>& phases, const MachinePeaks& peaks) {
  constexpr std::array<const char*, 4> kColours = {"#2a6fbb", "#c8553d", "#3d8b40", "#8e5bb5"};
  const std::vector<Circle> circles = circles_of(phases);
  const double ridge = peaks.flops / peaks.bandwidth;
  double least_x = ridge, most_x = ridge * 10, least_y = peaks.flops / 10;
  for (const Circle& circle : circles) {
    least_x = std::min(least_x, circle.intensity);
    most_x = std::max(most_x, circle.intensity);
    least_y = std::min(least_y, circle.rate);
  }
  const Axes axes(least_x * 0.99, most_x * 1.01, least_y * 0.99, peaks.flops * 1.01);
  std::string svg = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0} {1}' width='{0}' height='{1}' font-family='sans-serif' "
      "font-size='12'>\n<style>.grid{{stroke:#ddd}} .roof{{stroke:#333;stroke-width:2;fill:none}}</style>\n"
      "<rect width='100%' height='100%' fill='white'/>\n",
      kWidth, kHeight);
  svg += axes.grid();
  svg += fmt::format("<clipPath id='inside'><rect x='{}' y='{}' width='{}' height='{}'/></clipPath>\n", kLeft, kTop,
                     kWidth - kLeft - kRight, kHeight - kTop - kBottom);
  svg += fmt::format(
      "<polyline clip-path='url(#inside)' class='roof' points='{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}'/>\n",
      axes.x(axes.first_x()), axes.y(axes.first_x() * peaks.bandwidth), axes.x(ridge), axes.y(peaks.flops),
      axes.x(axes.last_x()), axes.y(peaks.flops));
  svg += fmt::format("<text x='{}' y='{:.1f}' text-anchor='end'>{:.0f} GFLOP/s, {:.1f} GB/s</text>\n", kWidth - kRight,
                     axes.y(peaks.flops) - 6, 1e-9 * peaks.flops, 1e-9 * peaks.bandwidth);
  for (const Circle& circle : circles) {
    const auto place =
        std::find_if(phases.begin(), phases.end(), [&](const auto& p) { return p.name == circle.phase; });
    svg += fmt::format(
        "<circle cx='{:.1f}' cy='{:.1f}' r='{:.1f}' fill='{}' fill-opacity='0.6'><title>{}: {}, {:.1f} % of the "
        "time</title></circle>\n",
        axes.x(circle.intensity), axes.y(circle.rate), 2 + 24 * std::sqrt(circle.share),
        kColours[static_cast<size_t>(place - phases.begin()) % kColours.size()], escaped(circle.phase),
        escaped(circle.name), 100 * circle.share);
  }
  for (size_t n = 0; n < phases.size(); ++n) {
    const double y = kTop + 20 * static_cast<double>(n) + 10;
    svg += fmt::format("<circle cx='{}' cy='{}' r='6' fill='{}'/><text x='{}' y='{}'>{}</text>\n", kWidth - kRight + 20,
                       y, kColours[n % kColours.size()], kWidth - kRight + 34, y + 4, escaped(phases[n].name));
  }
  svg += fmt::format("<text x='{}' y='{}' text-anchor='middle'>FLOP a byte of arguments and results</text>\n",
                     (kLeft + kWidth - kRight) / 2, kHeight - 10);
  svg += fmt::format("<text x='{0}' y='{1}' text-anchor='middle' transform='rotate(-90 {0} {1})'>GFLOP/s</text>\n", 18,
                     (kTop + kHeight - kBottom) / 2);
  return svg + "</svg>\n";
}

}  // namespace cli
