#include "sweep_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "numbers.h"

namespace cli {
namespace {

/// The 97.5 % quantile of Student's t.
double student(size_t freedom) {
  constexpr std::array<double, 10> kQuantiles = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228};
  return freedom <= kQuantiles.size() ? kQuantiles[freedom - 1] : 1.96 + 2.6 / static_cast<double>(freedom);
}

const SweepMetric& metric_named(const std::string& name) {
  const std::vector<SweepMetric>& all = sweep_metrics();
  return *std::find_if(all.begin(), all.end(), [&](const SweepMetric& metric) { return metric.name == name; });
}

/// A whole number as one.
Table::Cell place_cell(double place) {
  return place == std::floor(place) && std::abs(place) < 1e15 ? Table::Cell(static_cast<int64_t>(place))
                                                              : Table::Cell(place);
}

const SweepValue* value_of(const SweepRow& row, const std::string& metric) {
  const auto found = std::find_if(row.values.begin(), row.values.end(),
                                  [&](const SweepValue& value) { return value.metric == metric; });
  return found == row.values.end() ? nullptr : &*found;
}

}  // namespace

const std::vector<SweepMetric>& sweep_metrics() {
  static const std::vector<SweepMetric> all = {{"time", "us a token", "microseconds a token of one update"},
                                               {"memory", "peak MB", "peak memory of one update, MB"},
                                               {"decode", "decode, us", "microseconds to write one token"},
                                               {"cache", "cache, KB", "keys, values and states, KB"},
                                               {"loss", "loss", "validation loss, nats a token"}};
  return all;
}

SweepValue sweep_value(const std::string& metric, std::vector<double> samples) {
  const auto [low, high] = std::minmax_element(samples.begin(), samples.end());
  return {metric, median(samples), *low, *high};
}

std::string PowerLaw::text() const { return fmt::format("{:.2f} +- {:.2f}", exponent, error); }

std::optional<PowerLaw> fit_power(const std::vector<double>& x, const std::vector<double>& y) {
  if (x.size() < 3) return {};
  const auto n = static_cast<double>(x.size());
  double mean_x = 0, mean_y = 0, xx = 0, xy = 0, rest = 0;
  for (size_t i = 0; i < x.size(); ++i) mean_x += std::log(x[i]) / n, mean_y += std::log(y[i]) / n;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (std::log(x[i]) - mean_x) * (std::log(x[i]) - mean_x);
    xy += (std::log(x[i]) - mean_x) * (std::log(y[i]) - mean_y);
  }
  const double exponent = xy / xx;
  for (size_t i = 0; i < x.size(); ++i) {
    const double residual = std::log(y[i]) - mean_y - exponent * (std::log(x[i]) - mean_x);
    rest += residual * residual;
  }
  return PowerLaw{exponent, student(x.size() - 2) * std::sqrt(rest / (n - 2) / xx),
                  std::exp(mean_y - exponent * mean_x)};
}

std::vector<std::string> Sweep::mixers() const {
  std::vector<std::string> names;
  for (const SweepRow& row : rows)
    if (std::find(names.begin(), names.end(), row.mixer) == names.end()) names.push_back(row.mixer);
  return names;
}

/// In the order of the places.
std::vector<attn::view::ChartPoint> Sweep::points(const std::string& mixer, const std::string& metric) const {
  std::map<double, std::vector<const SweepValue*>> places;
  for (const SweepRow& row : rows)
    if (const SweepValue* value = value_of(row, metric); value && row.mixer == mixer)
      places[row.place].push_back(value);
  std::vector<attn::view::ChartPoint> points;
  for (const auto& [place, values] : places) {
    std::vector<double> middles;
    attn::view::ChartPoint point{.x = place, .low = values[0]->low, .high = values[0]->high};
    for (const SweepValue* value : values) {
      middles.push_back(value->middle);
      point.low = std::min(point.low, value->low);
      point.high = std::max(point.high, value->high);
    }
    point.y = median(middles);
    point.note = fmt::format("{}, {} = {:g}: {:.4g}", mixer, field, place, point.y);
    points.push_back(std::move(point));
  }
  return points;
}

std::optional<PowerLaw> Sweep::law(const std::string& mixer, const std::string& metric) const {
  std::vector<double> x, y;
  for (const attn::view::ChartPoint& point : points(mixer, metric)) {
    if (!(point.x > 0 && point.y > 0)) continue;
    x.push_back(point.x);
    y.push_back(point.y);
  }
  return fit_power(x, y);
}

Table Sweep::table() const {
  size_t widest = 8;
  for (const SweepRow& row : rows) widest = std::max(widest, row.mixer.size());
  Table table{{{"mixer", fmt::format("{{:<{}}}", widest)},
               {field, fmt::format("{{:>{}.6g}}", std::max<size_t>(field.size(), 8))},
               {"seed", "{:>5}"},
               {"parameters", "{:>11}"},
               {"sequences", "{:>9}"},
               {"length", "{:>7}"}}};
  for (const std::string& name : metrics) {
    table.columns.push_back({name, "{:>11.4g}", metric_named(name).title});
    table.columns.push_back({name + "_lowest", ""});
    table.columns.push_back({name + "_highest", ""});
  }
  for (const SweepRow& row : rows) {
    std::vector<Table::Cell> cells = {row.mixer,      place_cell(row.place), row.seed,
                                      row.parameters, row.sequences,         row.length};
    for (const std::string& name : metrics) {
      const SweepValue* value = value_of(row, name);
      const auto cell = [&](double SweepValue::*member) { return Table::Cell(value ? value->*member : std::nan("")); };
      for (const auto member : {&SweepValue::middle, &SweepValue::low, &SweepValue::high})
        cells.push_back(cell(member));
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

Table Sweep::laws() const {
  Table table{{{"mixer", "{:<24}"},
               {"measure", "{:<36}"},
               {"exponent", "{:>9.3f}"},
               {"error", "{:>9.3f}", "+- (95 %)"},
               {"factor", "{:>11.4g}"}}};
  for (const std::string& metric : metrics)
    for (const std::string& mixer : mixers())
      if (const auto fit = law(mixer, metric))
        table.rows.push_back({mixer, metric_named(metric).axis, fit->exponent, fit->error, fit->factor});
  return table;
}

attn::view::Chart Sweep::chart(const std::string& metric) const {
  attn::view::Chart chart{.x_label = field, .y_label = metric_named(metric).axis};
  chart.log_x = chart.log_y = true;
  bool has_laws = false;
  for (const std::string& mixer : mixers()) {
    const auto fit = law(mixer, metric);
    has_laws = has_laws || fit;
    chart.series.push_back({fit ? mixer + ": " + fit->text() : mixer, points(mixer, metric)});
    for (const attn::view::ChartPoint& point : chart.series.back().points) {
      chart.log_x = chart.log_x && point.x > 0;
      chart.log_y = chart.log_y && point.low > 0;
    }
  }
  if (metric == "loss") chart.log_y = false;  // losses are near each other
  chart.title = fmt::format("{} against {}{}", metric, field, has_laws ? "; in the legend its exponent" : "");
  return chart;
}

}  // namespace cli
