#include "timer.h"

#include <algorithm>
#include <utility>

namespace bench {

std::vector<std::vector<double>> in_turn(const std::vector<Sample>& samples, int rounds, double seconds) {
  std::vector<std::vector<double>> taken(samples.size());
  const double end = seconds_now() + seconds;
  for (int round = 0; round < rounds || seconds_now() < end; ++round)
    for (size_t n = 0; n < samples.size(); ++n) taken[n].push_back(samples[n]());
  return taken;
}

double median(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double relative_time(const std::function<void()>& work, const std::function<void()>& base, double seconds) {
  const auto taken = in_turn({[&] { return seconds_of(base); }, [&] { return seconds_of(work); }}, 1, seconds);
  std::vector<double> ratios;
  for (size_t n = 0; n < taken[0].size(); ++n) ratios.push_back(taken[1][n] / taken[0][n]);
  return median(ratios);
}

PeakShare::PeakShare(std::function<void()> work, double unit_flops, const attn::peaks::Unit& unit) {
  constexpr double kFlops = 32e6;  // of a sample of the unit: a quarter of a millisecond
  const auto loops = static_cast<int64_t>(kFlops / unit.flops);
  samples_ = {
      [work = std::move(work), unit_flops] { return unit_flops / seconds_of(work); },
      [&unit, loops] { return unit.flops * static_cast<double>(loops) / seconds_of([&] { unit.run(loops); }); }};
}

double PeakShare::measure(double seconds) {
  const auto taken = in_turn(samples_, 1, seconds);
  best_work_ = std::max(best_work_, *std::max_element(taken[0].begin(), taken[0].end()));
  best_unit_ = std::max(best_unit_, *std::max_element(taken[1].begin(), taken[1].end()));
  return best_work_ / best_unit_;
}

}  // namespace bench
