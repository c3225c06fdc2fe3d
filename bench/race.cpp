#include "race.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "clock.h"

namespace bench {
namespace {

constexpr double kPeakFlops = 32e6;  // a quarter of a millisecond

}  // namespace

Race::Race(std::function<void()> work, double unit_flops, const attn::peaks::Unit& unit)
    : work_(std::move(work)), flops_(unit_flops) {
  const auto loops = static_cast<int64_t>(kPeakFlops / unit.flops);
  peak_ = [&unit, loops] { unit.run(loops); };
  peak_flops_ = unit.flops * static_cast<double>(loops);
}

double Race::run(double seconds) {
  for (const double end = seconds_now() + seconds; seconds_now() < end;) {
    best_ = std::max(best_, flops_ / seconds_of(work_));
    best_peak_ = std::max(best_peak_, peak_flops_ / seconds_of(peak_));
  }
  return best_ / best_peak_;
}

double relative_time(const std::function<void()>& work, const std::function<void()>& base, double seconds) {
  std::vector<double> ratios;
  for (const double end = seconds_now() + seconds; ratios.empty() || seconds_now() < end;) {
    const double unit = seconds_of(base);
    ratios.push_back(seconds_of(work) / unit);
  }
  return median(ratios);
}

}  // namespace bench
