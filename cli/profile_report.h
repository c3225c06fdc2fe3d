// What `attn profile` says of the spans that it has seen: tables, the roofline, the comparison of two profiles.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attn/profile.h"
#include "attn/view_chart.h"
#include "counters.h"
#include "table.h"

namespace cli {

/// A part of a profile: what ran, how often, and where its time went.
struct ProfiledPhase {
  std::string name = {};
  int64_t tokens = 0;                          ///< of one run
  std::vector<double> plain = {};              ///< seconds of runs without a Profiler
  std::vector<double> profiled = {};           ///< and of those with one
  std::vector<Counters::Values> counted = {};  ///< of each run without one, where they are wanted
  std::vector<attn::ProfileRow> rows = {};     ///< of all runs with one
};

/// The limits of the machine, measured in the same run.
struct MachinePeaks {
  double flops = 0;      ///< a second, of products of the model's type
  double bandwidth = 0;  ///< bytes a second, read from memory
};

/// One line a phase: seconds, tokens a second, and what profiling costs.
Table phase_table(const std::vector<ProfiledPhase>& phases, const MachinePeaks& peaks);
/// One line a phase: what was counted in one run, the median.
Table counter_table(const std::vector<ProfiledPhase>& phases);
/// One line for each scope and operation of a phase, of one run, the slowest first. `most` = 0: all of them; what is
/// left is one line more.
Table operation_table(const ProfiledPhase& phase, const MachinePeaks& peaks, int64_t most);

/// The profile as JSON, which profile_from_json() reads.
nlohmann::ordered_json profile_json(const std::vector<ProfiledPhase>& phases, const MachinePeaks& peaks);
/// Times of two such files side by side, the largest differences first. Throws Error for a file that is none.
Table comparison(const std::string& before, const std::string& after, int64_t most);

/// A chart of the operations with products: FLOP/s against FLOP a byte, under the limits of the machine. The area of a
/// circle is its share of the time.
attn::view::Chart roofline(const std::vector<ProfiledPhase>& phases, const MachinePeaks& peaks);

}  // namespace cli
