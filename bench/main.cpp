// attn_bench: checks and times the library on this machine. bench/README.md explains its output.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <regex>

#include "modes.h"

namespace bench {
namespace {

/// "1,all" as numbers; each once.
std::vector<int> thread_counts(const std::vector<std::string>& given) {
  std::vector<int> counts;
  for (const std::string& text : given) {
    attn::set_thread_count(0);
    const int count = text == "all" ? attn::thread_count() : std::atoi(text.c_str());
    if (count < 1) throw std::runtime_error("--threads takes positive numbers and all, not " + text);
    if (std::find(counts.begin(), counts.end(), count) == counts.end()) counts.push_back(count);
  }
  return counts;
}

int list(const Settings& settings, const WorkloadFile& file) {
  const std::regex filter(settings.filter);
  for (const Workload& workload : file.set(settings.set))
    if (const std::string name = workload.name(); std::regex_search(name, filter)) std::puts(name.c_str());
  return 0;
}

/// `mode` for each instruction set that the flags name.
bool for_each_isa(const Settings& settings, Report& report, bool (*mode)(const Settings&, Report&)) {
  bool correct = true;
  for (const std::string& isa : settings.isas) {
    attn::set_isa(isa);
    correct = mode(settings, report) && correct;
  }
  return correct;
}

int run(int argc, char** argv) {
  Settings settings;
  settings.workloads = ATTN_BENCH_WORKLOADS;
  std::vector<std::string> threads = {"1", "all"}, isas = {attn::active_isa()};
  CLI::App app(
      "Checks results of the library against the float64 reference, then times them. Without a mode it times "
      "calls of the operator. Exit code 1: a result is wrong, or the gate found a slow kernel.");
  app.set_help_all_flag("--help-all", "the flags of all modes");
  app.add_option("--set", settings.set, "set of workloads: operator, quick or layouts (workloads.json)");
  app.add_option("--filter", settings.filter, "regular expression on the names of workloads");
  app.add_flag("--list", settings.list, "print the names of the workloads, measure nothing");
  app.add_option("--threads", threads, "numbers of threads, all = one a core; default 1,all")->delimiter(',');
  app.add_option("--isa", isas, "instruction sets, or all; default: the best one here")->delimiter(',');
  app.add_option("--repeats", settings.repeats, "samples, of which the median is reported; default 7")
      ->check(CLI::PositiveNumber);
  app.add_option("--csv", settings.csv, "file for the rows as CSV");
  app.add_option("--workloads", settings.workloads, "file of workloads; default: bench/workloads.json");
  app.require_subcommand(0, 1);
  app.fallthrough();
  const auto add = [&](const char* name, const char* description) { return app.add_subcommand(name, description); };
  const auto* peaks = add("peaks", "GFLOP/s of the multiply-add units, GB/s of reading memory");
  const auto* gate = add("gate", "whether a kernel has lost much of its speed");
  auto* kernels = add("kernels", "each kernel alone, and what a call makes of them");
  auto* statistics = add("statistics", "statistics of attention, in units of the forward beside them");
  auto* linear = add("linear", "linear attention, beside dense products, memory, and its own length");
  auto* mixers = add("mixers", "layers that mix tokens: time and memory against the length");
  auto* sparse = add("sparse", "attention with lists of key blocks, beside that of all pairs, and on a long text");
  auto* products = add("products", "products of layers, beside oneDNN, a plain read of the weights, and the peak");
  auto* quantized = add("quantized", "products with weights of 8 and 4 bits, beside float32, oneDNN and a plain read");
  auto* induction = add("induction", "train a model of two layers in which an induction head forms");
  for (CLI::App* mode : {kernels, statistics, linear, mixers, sparse, products, quantized})
    mode->add_option("--seconds", settings.seconds, "time spent on each figure")->check(CLI::PositiveNumber);
  for (CLI::App* mode : {statistics, linear})
    mode->add_option("--long-text", settings.long_text, "tokens of the last call, 0 = none; default 100000");
  mixers->add_option("--longest", settings.longest, "tokens, from 1024 by powers of two; default 16384")
      ->check(CLI::Range(int64_t{1024}, int64_t{1} << 30));
  mixers->add_option("--width", settings.layer_width, "of the layers, in heads of 64; default 512")
      ->check(CLI::PositiveNumber);
  sparse->add_option("--long-text", settings.sparse_text, "tokens of the last call, 0 = none; default 131072");
  induction->add_option("--steps", settings.steps, "of the training; default 1500");
  induction->add_option("--every", settings.every, "steps between measurements; default 25");
  induction->add_option("--width", settings.width, "of the model; default 128");
  induction->add_option("--seed", settings.seed, "of the model and the texts; default 1337");
  CLI11_PARSE(app, argc, argv);

  settings.threads = thread_counts(threads);
  settings.isas = isas == std::vector<std::string>{"all"} ? attn::available_isas() : isas;
  for (const std::string& isa : settings.isas) attn::set_isa(isa);  // throws for a name that is unknown here
  const WorkloadFile file(settings.workloads);
  if (settings.list) return list(settings, file);
  const auto chosen = app.get_subcommands();
  Report report(chosen.empty() ? "" : chosen[0]->get_name(), settings.csv);
  if (*peaks) return !run_peaks(settings, report);
  if (*gate) return !run_gate(file, report);
  if (*kernels) return !for_each_isa(settings, report, run_kernels);
  if (*statistics) return !for_each_isa(settings, report, run_statistics);
  if (*linear) return !for_each_isa(settings, report, run_linear);
  if (*mixers) return !for_each_isa(settings, report, run_mixers);
  if (*sparse) return !for_each_isa(settings, report, run_sparse);
  if (*products) return !for_each_isa(settings, report, run_products);
  if (*quantized) return !for_each_isa(settings, report, run_quantized);
  if (*induction) return !run_induction(settings, report);
  return !run_calls(settings, file, report);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) try { return bench::run(argc, argv); } catch (const std::exception& error) {
  std::fprintf(stderr, "attn_bench: %s\n", error.what());
  return 2;
}
