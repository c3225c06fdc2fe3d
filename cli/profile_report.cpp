#include "profile_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
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

Table counter_table(const std::vector<ProfiledPhase>& phases) {
  Table table{{{"phase", "{:<10}"}}};
  for (const char* name : Counters::names()) {
    std::string column = name;
    std::replace(column.begin(), column.end(), ' ', '_');
    table.columns.push_back({column, "{:>17.0f}", name});
  }
  table.columns.push_back({"instructions_per_cycle", "{:>13.2f}", "instr/cycle"});
  for (const ProfiledPhase& phase : phases) {
    std::vector<Table::Cell> cells = {phase.name};
    std::array<double, Counters::kCount> middle{};
    for (size_t n = 0; n < Counters::kCount; ++n) {
      std::vector<double> samples;
      for (const Counters::Values& values : phase.counted) samples.push_back(values[n]);
      middle[n] = median(samples);
      cells.emplace_back(middle[n]);
    }
    cells.emplace_back(middle[1] / middle[0]);
    table.rows.push_back(std::move(cells));
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
  for (const ProfiledPhase& phase : phases) {
    all["phases"].push_back({{"phase", phase.name},
                             {"tokens", phase.tokens},
                             {"seconds", phase.plain},
                             {"profiled_seconds", phase.profiled},
                             {"operations", operation_table(phase, peaks, 0).json()}});
    if (!phase.counted.empty()) all["phases"].back()["counted"] = counter_table({phase}).json()[0];
  }
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

attn::view::Chart roofline(const std::vector<ProfiledPhase>& phases, const MachinePeaks& peaks) {
  attn::view::Chart chart{.x_label = "FLOP a byte of arguments and results", .y_label = "GFLOP/s"};
  chart.title = fmt::format("{:.0f} GFLOP/s, {:.1f} GB/s", 1e-9 * peaks.flops, 1e-9 * peaks.bandwidth);
  chart.log_x = chart.log_y = true;
  const double ridge = peaks.flops / peaks.bandwidth;
  double least = ridge, most = ridge * 10;
  for (const ProfiledPhase& phase : phases) {
    attn::view::ChartSeries circles{.name = phase.name, .style = attn::view::ChartStyle::circles};
    const double all = sum_of(phase.rows, &attn::ProfileRow::seconds);
    for (const attn::ProfileRow& row : phase.rows) {
      if (!(row.flops > 0 && row.bytes > 0 && row.seconds > 0.002 * all)) continue;
      attn::view::ChartPoint circle{.x = row.flops / row.bytes, .y = 1e-9 * row.flops / row.seconds};
      circle.share = row.seconds / all;
      circle.note = fmt::format("{}: {} {} {}, {:.1f} % of the time", phase.name, row.scope, row.operation, row.shape,
                                100 * circle.share);
      least = std::min(least, circle.x);
      most = std::max(most, circle.x);
      circles.points.push_back(std::move(circle));
    }
    chart.series.push_back(std::move(circles));
  }
  const auto roof = [&](double x) { return attn::view::ChartPoint{.x = x, .y = 1e-9 * peaks.bandwidth * x}; };
  attn::view::ChartSeries limit{.points = {roof(least / 4), roof(ridge)}, .style = attn::view::ChartStyle::limit};
  limit.points.push_back({.x = most * 4, .y = 1e-9 * peaks.flops});
  chart.series.push_back(std::move(limit));
  return chart;
}

}  // namespace cli
