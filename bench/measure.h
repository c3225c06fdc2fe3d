// Check, then time: one row of the report.
#pragma once

#include <string>

#include "workload.h"

namespace bench {

struct Row {
  Workload workload;
  bool correct = false;  // a wrong result is not timed
  double error = 0;      // max |x - reference| / max |reference|, of a sample
  double seconds = 0;    // of one call: the median
  double fastest = 0;
  double slowest = 0;
  double gflops = 0;       // from the median
  double peak_gflops = 0;  // median of what the multiply-add unit allowed between the repeats
  double gbytes = 0;       // keys and values read per second, decode alone
  double peak_gbytes = 0;  // median of plain reads of the same memory between the repeats
  int64_t scratch_bytes = 0;
  std::string path;         // of AttentionPlan
  std::string instruction;  // that the peak was measured with

  double of_peak() const { return peak_gflops > 0 ? gflops / peak_gflops : 0; }
  double of_read() const { return peak_gbytes > 0 ? gbytes / peak_gbytes : 0; }
};

/// Of Problem::check(). Catches a result that is wrong, not one that is less exact than it could be: the tests hold the
/// tight bounds.
double error_bound(attn::DType dtype);

/// A repeat is enough calls for a clock to tell, between two measurements of the peaks.
Row measure(const Workload& workload, int repeats);

}  // namespace bench
