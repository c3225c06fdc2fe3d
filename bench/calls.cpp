// Calls of the operator: checks each against the float64 reference, then times it between measurements of the peaks.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <regex>

#include "modes.h"
#include "timed_call.h"
#include "timer.h"

namespace bench {
namespace {

constexpr double kSampleSeconds = 0.02;  // a sample is as many calls as fill it

/// Seconds that a plain read of the keys and values takes.
double read_seconds(const TimedCall& call) {
  double seconds = 0;
  for (const attn::ConstView<4>& view : {call.keys(), call.values()}) {
    const int64_t bytes = view.count() * attn::size_of(view.dtype);
    seconds += static_cast<double>(bytes) * 1e-9 / attn::peaks::measure_read(view.data, bytes);
  }
  return seconds;
}

/// The share of peak of the workloads without options, to which those with one are compared.
using Plain = std::map<std::string, double>;

double of_plain(const Workload& workload, double of_peak, Plain& plain) {
  Workload without = workload;
  without.option = Option::full;
  const std::string key = without.name() + workload.isa + std::to_string(workload.threads);
  if (workload.option == Option::full) plain[key] = of_peak;
  return workload.option != Option::full && plain.contains(key) ? 100 * of_peak / plain[key] : NAN;
}

/// Checks and times one workload; false if its result is wrong, which is not timed.
bool measure(const Workload& workload, int repeats, Plain& plain, Report& report) {
  attn::set_thread_count(workload.threads);
  attn::set_isa(workload.isa);
  TimedCall timed_call(workload);
  const attn::AttentionPlan plan = timed_call.plan();
  const attn::peaks::Unit& unit = attn::peaks::unit_for(plan.isa, plan.unit_type);
  const double error = timed_call.check();
  const bool correct = error <= error_bound(workload.dtype);

  double seconds = NAN, lowest = NAN, highest = NAN, gflops = NAN, of_peak = NAN, gbytes = NAN, of_read = NAN;
  if (correct) {
    const auto call = [&] { timed_call.call(); };
    const auto calls = static_cast<int64_t>(std::ceil(kSampleSeconds / seconds_of(call)));
    const double kv_gbytes = static_cast<double>(workload.kv_bytes()) * 1e-9;
    std::vector<Sample> samples = {[&] { return attn::peaks::measure_gflops(unit) * plan.flops / plan.unit_flops; },
                                   [&] { return seconds_of(call, calls); }};
    if (workload.reads_cache()) samples.push_back([&] { return kv_gbytes / read_seconds(timed_call); });
    const auto taken = in_turn(samples, repeats);
    seconds = median(taken[1]);
    lowest = *std::min_element(taken[1].begin(), taken[1].end());
    highest = *std::max_element(taken[1].begin(), taken[1].end());
    gflops = workload.flops() / seconds * 1e-9;
    of_peak = gflops / median(taken[0]);
    if (workload.reads_cache()) {
      gbytes = kv_gbytes / seconds;
      of_read = gbytes / median(taken[2]);
    }
  }
  report.add({{"workload", workload.name()},
              {"isa", workload.isa},
              {"threads", static_cast<int64_t>(workload.threads)},
              {"ms", seconds * 1e3},
              {"lowest", lowest * 1e3},
              {"highest", highest * 1e3},
              {"GFLOP/s", gflops},
              {"% of peak", 100 * of_peak},
              {"GB/s", gbytes},
              {"% of read", 100 * of_read},
              {"% of full", of_plain(workload, of_peak, plain)},
              {"error", error, "%.1e"},
              {"scratch KiB", plan.scratch_bytes / 1024},
              {"unit", correct ? unit.instruction : "WRONG"}});
  return correct;
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

bool are_close(const std::vector<attn::Array>& results, const std::vector<attn::Array>& references, attn::DType dtype) {
  for (size_t n = 0; n < results.size(); ++n) {
    double worst = 0, most = 0;
    for (int64_t i = 0; i < results[n].count(); ++i) {
      const double reference = references[n].number(i);
      worst = std::max(worst, std::abs(results[n].number(i) - reference));
      most = std::max(most, std::abs(reference));
    }
    if (!(worst <= error_bound(dtype) * most)) return false;
  }
  return true;
}

bool run_calls(const Settings& settings, const WorkloadFile& file, Report& report) {
  bool correct = true;
  Plain plain;
  const std::regex filter(settings.filter);
  for (const std::string& isa : settings.isas) {
    for (int threads : settings.threads) {
      for (Workload workload : file.set(settings.set)) {
        if (!std::regex_search(workload.name(), filter)) continue;
        workload.isa = isa;
        workload.threads = threads;
        correct = measure(workload, settings.repeats, plain, report) && correct;
      }
    }
  }
  return correct;
}

bool run_peaks(const Settings& settings, Report& report) {
  const std::vector<std::string> available = attn::available_isas();
  attn::Buffer memory(int64_t{1} << 29);  // more than any cache holds
  std::memset(memory.data(), 1, static_cast<size_t>(memory.bytes()));
  for (int threads : settings.threads) {
    attn::set_thread_count(threads);
    const auto add = [&](std::string_view isa, std::string_view type, std::string_view what, const char* unit,
                         const Sample& sample) {
      report.add({{"isa", isa},
                  {"dtype", type},
                  {"what", what},
                  {"threads", static_cast<int64_t>(threads)},
                  {"rate", median(in_turn({sample}, settings.repeats)[0])},
                  {"in", unit}});
    };
    for (const attn::peaks::Unit& unit : attn::peaks::units())
      if (std::find(available.begin(), available.end(), unit.isa) != available.end())
        add(unit.isa, attn::name_of(unit.dtype), unit.instruction, "GFLOP/s",
            [&] { return attn::peaks::measure_gflops(unit); });
    add("", "", "read from memory", "GB/s", [&] { return attn::peaks::measure_read(memory.data(), memory.bytes()); });
  }
  return true;
}

}  // namespace bench
