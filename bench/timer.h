// The one timer of the C++ benchmarks: samples of several pieces of work, taken in turn, so that a slow spell of the
// machine falls on all of them.
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <vector>

#include "attn/peaks.h"

namespace bench {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds of one call of `work`, the mean of `calls`.
template <class Work>
double seconds_of(const Work& work, int64_t calls = 1) {
  const double start = seconds_now();
  for (int64_t call = 0; call < calls; ++call) work();
  return (seconds_now() - start) / static_cast<double>(calls);
}

/// Takes one sample: seconds of a piece of work, or a rate that it measured.
using Sample = std::function<double()>;

/// Takes samples of all in turn (a, b, a, b, ...): at least `rounds` of each, and for at least so many seconds.
/// Returns the samples of each.
std::vector<std::vector<double>> in_turn(const std::vector<Sample>& samples, int rounds, double seconds = 0);

double median(std::span<const double> values);

/// The time of `work` in units of the time of `base`: the median over pairs of neighbouring samples.
double relative_time(const std::function<void()>& work, const std::function<void()>& base, double seconds);

/// The share of a unit's peak that a piece of work reaches on one thread, on a machine that is not quiet: the quickest
/// of many short samples of the work over the quickest of the unit. Other programs on the core disturb every median,
/// but leave some samples of a millisecond alone.
class PeakShare {
 public:
  /// One call of `work` does `unit_flops` flops of the unit in at most a few milliseconds.
  PeakShare(std::function<void()> work, double unit_flops, const attn::peaks::Unit& unit);
  /// Takes samples for so many seconds; returns the share by all samples so far.
  double measure(double seconds);

 private:
  std::vector<Sample> samples_;
  double best_work_ = 0, best_unit_ = 0;  // flop/s
};

}  // namespace bench
