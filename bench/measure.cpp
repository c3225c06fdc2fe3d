#include "measure.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "clock.h"
#include "problem.h"

namespace bench {
namespace {

constexpr double kRepeatSeconds = 0.02;

double seconds_of(Problem& problem, int64_t calls) {
  const double start = seconds_now();
  for (int64_t i = 0; i < calls; ++i) problem.call();
  return (seconds_now() - start) / static_cast<double>(calls);
}

/// Seconds that a plain read of the keys and values takes.
double read_seconds(const Problem& problem) {
  double seconds = 0;
  for (const attn::ConstView<4>& view : {problem.keys(), problem.values()}) {
    const int64_t bytes = view.count() * attn::size_of(view.dtype);
    seconds += static_cast<double>(bytes) * 1e-9 / attn::peaks::measure_read(view.data, bytes);
  }
  return seconds;
}

}  // namespace

double error_bound(attn::DType dtype) {
  switch (dtype) {
    case attn::DType::float64: return 0x1p-44;
    case attn::DType::float32: return 0x1p-15;
    case attn::DType::float16: return 0x1p-8;
    default: return 0x1p-5;
  }
}

Row measure(const Workload& workload, int repeats) {
  attn::set_thread_count(workload.threads);
  attn::set_isa(workload.isa);
  Problem problem(workload);

  const attn::AttentionPlan plan = problem.plan();
  const attn::peaks::Unit& unit = attn::peaks::unit_for(plan.isa, plan.unit_type);
  Row row;
  row.workload = workload;
  row.instruction = unit.instruction;
  row.path = plan.path;
  row.scratch_bytes = plan.scratch_bytes;
  row.error = problem.check();
  row.correct = row.error <= error_bound(workload.dtype);
  if (!row.correct) return row;

  const int64_t calls = static_cast<int64_t>(std::ceil(kRepeatSeconds / seconds_of(problem, 1)));
  const double kv_gbytes = static_cast<double>(workload.kv_bytes()) * 1e-9;
  std::vector<double> seconds, peaks, reads;
  const auto measure_peaks = [&] {
    peaks.push_back(attn::peaks::measure_gflops(unit) * plan.flops / plan.unit_flops);
    if (workload.reads_cache()) reads.push_back(kv_gbytes / read_seconds(problem));
  };
  measure_peaks();
  for (int repeat = 0; repeat < repeats; ++repeat) {
    seconds.push_back(seconds_of(problem, calls));
    measure_peaks();
  }

  row.seconds = median(seconds);
  row.fastest = *std::min_element(seconds.begin(), seconds.end());
  row.slowest = *std::max_element(seconds.begin(), seconds.end());
  row.gflops = workload.flops() / row.seconds * 1e-9;
  row.peak_gflops = median(peaks);
  if (workload.reads_cache()) {
    row.gbytes = kv_gbytes / row.seconds;
    row.peak_gbytes = median(reads);
  }
  return row;
}

}  // namespace bench
