// The performance gate: has a kernel lost much of its share of the peak? The floors of bench/workloads.json are about
// two thirds of what a quiet core reaches (Zen 4; Cascade Lake without bfloat16; Sapphire Rapids with tiles): a spilled
// accumulator or a lost vectorisation costs half. One head of 512 tokens takes about a millisecond, so that some
// samples are not disturbed: medians of longer calls fell from 80 to 50 %.
#include "modes.h"
#include "timed_call.h"
#include "timer.h"

namespace bench {
namespace {

constexpr double kChanceSeconds = 0.3;
constexpr int kChances = 20;  // for a slow spell of the machine

bool holds(const WorkloadFile::Floor& floor, Report& report) {
  const Workload& workload = floor.workload;
  attn::set_thread_count(workload.threads);
  attn::set_isa(workload.isa);
  TimedCall timed_call(workload);
  const bool correct = timed_call.check() <= error_bound(workload.dtype);
  const attn::AttentionPlan plan = timed_call.plan();
  PeakShare share([&] { timed_call.call(); }, plan.unit_flops, attn::peaks::unit_for(plan.isa, plan.unit_type));
  double of_peak = share.measure(kChanceSeconds);
  for (int chance = 1; correct && of_peak < floor.of_peak && chance < kChances; ++chance)
    of_peak = share.measure(kChanceSeconds);
  const bool above = of_peak >= floor.of_peak;
  report.add({{"workload", workload.name()},
              {"isa", workload.isa},
              {"% of peak", 100 * of_peak},
              {"floor", 100 * floor.of_peak},
              {"verdict", !correct ? "WRONG"
                          : above  ? "ok"
                                   : "SLOW"}});
  return correct && above;
}

}  // namespace

bool run_gate(const WorkloadFile& file, Report& report) {
  bool all = true;
  for (const std::string& isa : attn::available_isas())
    for (const WorkloadFile::Floor& floor : file.floors(isa)) all = holds(floor, report) && all;
  return all;
}

}  // namespace bench
