// Shares of the peak on a machine that is not quiet: the quickest of many short samples, next to the quickest of the
// arithmetic unit. A neighbour on the other half of the core disturbs every median; some samples of a millisecond it
// leaves alone.
#pragma once

#include <functional>

#include "attn/attn.h"

namespace bench {

class Race {
 public:
  /// `work` takes so many flops of the unit in a call, of at most a few milliseconds.
  Race(std::function<void()> work, double unit_flops, const attn::peaks::Unit& unit);
  /// Takes samples in turn, for so many seconds; the share of the peak by all samples so far.
  double run(double seconds);

 private:
  std::function<void()> work_, peak_;
  double flops_, peak_flops_;
  double best_ = 0, best_peak_ = 0;  // flop/s
};

/// How long `work` takes in units of `base`: the median over pairs of neighbouring samples, for so many seconds.
double relative_time(const std::function<void()>& work, const std::function<void()>& base, double seconds);

}  // namespace bench
