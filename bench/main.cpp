// attn_bench: checks and times the operator on this machine.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "attn/attn.h"
#include "gate.h"
#include "measure.h"
#include "parts.h"
#include "report.h"
#include "statistics.h"
#include "workload.h"

namespace bench {
namespace {

void print_help() {
  std::puts(
      "attn_bench: checks every result against the float64 reference, then times it.\n"
      "\n"
      "  --quick             a short set, under a minute\n"
      "  --gate              only whether a kernel has lost much of its speed: exit code 1\n"
      "  --parts             each kernel alone, and what a call makes of them\n"
      "  --statistics        statistics of attention, in units of the forward beside them\n"
      "  --threads=1,all     numbers of threads (this is the default)\n"
      "  --isa=avx2,avx512   instruction sets, or all; default: the best one here\n"
      "  --layout=blhd,bhld  where the tensors are: [B, L, H, D] (default), [B, H, L, D], or qkv, slices of one array\n"
      "  --repeats=N         of which the median is reported; default: 7, quick 5\n"
      "  --csv=FILE          complete rows, one a line\n"
      "  --json=FILE         complete rows, one JSON object a line\n"
      "  --benchmark_filter=REGEX, --benchmark_list_tests and the other flags of Google Benchmark");
}

struct Flags {
  bool quick = false, gate = false, parts = false, statistics = false;
  std::vector<int> threads = {1};
  std::vector<std::string> isas = {attn::active_isa()};
  std::vector<Layout> layouts = {Layout::blhd};
  int repeats = 0;
  std::string csv, json;
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

int positive_number(const std::string& text) {
  size_t used = 0;
  int number = 0;
  try {
    number = std::stoi(text, &used);
  } catch (const std::exception&) {
  }
  if (number < 1 || used != text.size()) throw std::runtime_error("not a positive number: " + text);
  return number;
}

std::vector<int> thread_counts(const std::string& list) {
  std::vector<int> counts;
  for (const std::string& part : split(list)) {
    attn::set_thread_count(0);
    const int count = part == "all" ? attn::thread_count() : positive_number(part);
    if (std::find(counts.begin(), counts.end(), count) == counts.end()) counts.push_back(count);
  }
  return counts;
}

std::vector<Layout> layouts(const std::string& list) {
  std::vector<Layout> chosen;
  for (const std::string& name : split(list)) {
    const auto all = {Layout::blhd, Layout::bhld, Layout::qkv};
    const auto found = std::find_if(all.begin(), all.end(), [&](Layout layout) { return name_of(layout) == name; });
    if (found == all.end()) throw std::runtime_error("unknown layout " + name + "; there are blhd, bhld and qkv");
    chosen.push_back(*found);
  }
  if (chosen.empty()) throw std::runtime_error("--layout names none; there are blhd, bhld and qkv");
  return chosen;
}

Flags parse(int argc, char** argv) {
  Flags flags;
  flags.threads = thread_counts("1,all");
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::string name = argument.substr(0, argument.find('='));
    const std::string value = name.size() < argument.size() ? argument.substr(name.size() + 1) : "";
    if (argument == "--quick") flags.quick = true;
    else if (argument == "--gate") flags.gate = true;
    else if (argument == "--parts") flags.parts = true;
    else if (argument == "--statistics") flags.statistics = true;
    else if (name == "--threads") flags.threads = thread_counts(value);
    else if (name == "--isa") flags.isas = value == "all" ? attn::available_isas() : split(value);
    else if (name == "--layout") flags.layouts = layouts(value);
    else if (name == "--repeats") flags.repeats = positive_number(value);
    else if (name == "--csv") flags.csv = value;
    else if (name == "--json") flags.json = value;
    else throw std::runtime_error("unknown flag " + argument + "; --help lists the flags");
  }
  if (flags.repeats == 0) flags.repeats = flags.quick ? 5 : 7;
  for (const std::string& isa : flags.isas) attn::set_isa(isa);  // throws for a name that is unknown here
  return flags;
}

void register_benchmark(const Workload& workload, int repeats, Report& report) {
  benchmark::RegisterBenchmark(workload.name().c_str(),
                               [&report, repeats, workload](benchmark::State& state) {
                                 const Row row = measure(workload, repeats);
                                 report.add(row);
                                 if (!row.correct) state.SkipWithError("the result is wrong");
                                 for (auto _ : state) state.SetIterationTime(row.seconds);
                               })
      ->Iterations(1)
      ->UseManualTime();
}

int run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv, print_help);
  const Flags flags = parse(argc, argv);
  if (flags.gate) return run_gate() ? 0 : 1;
  if (flags.parts) {
    for (const std::string& isa : flags.isas) {
      attn::set_isa(isa);
      run_parts();
    }
    return 0;
  }
  if (flags.statistics) {
    bool correct = true;
    for (const std::string& isa : flags.isas) {
      attn::set_isa(isa);
      correct = run_statistics() && correct;
    }
    return correct ? 0 : 1;
  }
  Report report(flags.threads, flags.repeats, flags.csv, flags.json);

  for (const std::string& isa : flags.isas) {
    for (int threads : flags.threads) {
      for (Workload workload : flags.quick ? quick_set() : full_set()) {
        workload.isa = isa;
        workload.threads = threads;
        for (Layout layout : flags.layouts) {
          workload.layout = layout;
          if (layout == Layout::qkv && workload.queries != workload.keys) continue;  // no projection of both
          register_benchmark(workload, flags.repeats, report);
        }
      }
    }
  }
  benchmark::RunSpecifiedBenchmarks(&report);
  return report.wrong_rows() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) try { return bench::run(argc, argv); } catch (const std::exception& error) {
  std::fprintf(stderr, "attn_bench: %s\n", error.what());
  return 2;
}
