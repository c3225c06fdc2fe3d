// What `attn sweep` says of its measurements: the table, fitted powers, charts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attn/view_chart.h"
#include "table.h"

namespace cli {

/// What is measured of a model: a name, what it is called in the table and on the axis.
struct SweepMetric {
  std::string name, title, axis;
};
/// time, memory, decode, cache, loss: all that there are.
const std::vector<SweepMetric>& sweep_metrics();

/// One number of a metric: its median and its lowest and highest sample.
struct SweepValue {
  std::string metric;
  double middle = 0, low = 0, high = 0;
};
/// One model at one place of the sweep, with one seed.
struct SweepRow {
  std::string mixer;
  double place = 0;  ///< the value of the field that varies
  int64_t seed = 0, parameters = 0, sequences = 0, length = 0;
  std::vector<SweepValue> values = {};
};
/// The median of samples and their range.
SweepValue sweep_value(const std::string& metric, std::vector<double> samples);

/// y = factor x^exponent, by least squares of logarithms; within +- `error` with a confidence of 95 %, if the
/// logarithms scatter as normal numbers do.
struct PowerLaw {
  double exponent = 0, error = 0, factor = 0;
  std::string text() const;  ///< "0.98 +- 0.03"
};
/// Absent for fewer than three places.
std::optional<PowerLaw> fit_power(const std::vector<double>& x, const std::vector<double>& y);

/// All measurements of a sweep over one field.
struct Sweep {
  std::string field;
  std::vector<std::string> metrics;
  std::vector<SweepRow> rows = {};

  /// A line a row.
  Table table() const;
  /// A line for each mixer and metric with at least three places.
  Table laws() const;
  /// One metric of all mixers against the field, medians over seeds, with bars from the lowest to the highest sample.
  attn::view::Chart chart(const std::string& metric) const;

 private:
  std::vector<std::string> mixers() const;
  std::vector<attn::view::ChartPoint> points(const std::string& mixer, const std::string& metric) const;
  std::optional<PowerLaw> law(const std::string& mixer, const std::string& metric) const;
};

}  // namespace cli
