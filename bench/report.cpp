#include "report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

#include "clock.h"
#include "commit.h"

namespace bench {
namespace {

#if defined(__clang__)
constexpr const char* kCompiler = "clang " __clang_version__;
#else
constexpr const char* kCompiler = "g++ " __VERSION__;
#endif

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

std::string percent(double fraction) { return fraction > 0 ? format("%.1f %%", 100 * fraction) : ""; }

std::string time(double seconds) {
  if (seconds < 1e-3) return format("%.1f us", seconds * 1e6);
  if (seconds < 1) return format("%.2f ms", seconds * 1e3);
  return format("%.2f s", seconds);
}

std::string bytes(int64_t count) {
  if (count < 1 << 20) return format("%.0f KiB", static_cast<double>(count) / (1 << 10));
  return format("%.1f MiB", static_cast<double>(count) / (1 << 20));
}

struct Field {
  std::string name;
  std::string value;
  bool text;  // quoted in JSON
};

std::vector<Field> fields_of(const Row& row, int repeats) {
  const Workload& w = row.workload;
  const auto text = [](const char* name, std::string_view value) { return Field{name, std::string(value), true}; };
  const auto number = [](const char* name, double value) {
    return Field{name, std::isfinite(value) ? format("%.6g", value) : "null", false};  // JSON has no NaN
  };
  const auto whole = [](const char* name, int64_t value) { return Field{name, std::to_string(value), false}; };
  return {text("operation", name_of(w.operation)),
          text("option", name_of(w.option)),
          text("dtype", attn::name_of(w.dtype)),
          whole("heads", w.heads),
          whole("kv_heads", w.kv_heads),
          whole("queries", w.queries),
          whole("keys", w.keys),
          whole("depth", w.depth),
          text("layout", name_of(w.layout)),
          text("isa", w.isa),
          whole("threads", w.threads),
          text("cpu", cpu_model()),
          text("compiler", kCompiler),
          text("commit", kCommit),
          whole("repeats", repeats),
          whole("correct", row.correct),
          number("error", row.error),
          number("seconds", row.seconds),
          number("fastest", row.fastest),
          number("slowest", row.slowest),
          number("gflops", row.gflops),
          number("peak_gflops", row.peak_gflops),
          number("percent_of_peak", 100 * row.of_peak()),
          text("peak_instruction", row.instruction),
          number("kv_gbytes_per_second", row.gbytes),
          number("read_gbytes_per_second", row.peak_gbytes),
          number("percent_of_read", 100 * row.of_read()),
          whole("scratch_bytes", row.scratch_bytes),
          text("path", row.path)};
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

std::ofstream open(const std::string& file) {
  std::ofstream stream;
  if (!file.empty()) stream.open(file);
  if (!stream) throw std::runtime_error("cannot write " + file);
  return stream;
}

/// More than any cache holds, and written, so that every page is memory of its own.
attn::Buffer touched_memory() {
  attn::Buffer memory(int64_t{1} << 29);
  std::memset(memory.data(), 1, static_cast<size_t>(memory.bytes()));
  return memory;
}

template <class Measure>
void print_peak(const std::string& title, const std::vector<int>& threads, Measure measure) {
  std::printf("%-38s", title.c_str());
  for (int count : threads) {
    attn::set_thread_count(count);
    std::vector<double> samples(5);
    for (double& sample : samples) sample = measure();
    std::printf("%15.1f", median(samples));
  }
  std::printf("\n");
}

void print_peaks(const std::vector<int>& threads) {
  std::printf("%-38s", "GFLOP/s of the arithmetic units");
  for (int count : threads) std::printf("%8d thread%s", count, count == 1 ? " " : "s");
  std::printf("\n");
  const std::vector<std::string> available = attn::available_isas();
  for (const attn::peaks::Unit& unit : attn::peaks::units()) {
    if (std::find(available.begin(), available.end(), unit.isa) == available.end()) continue;
    const std::string dtype(attn::name_of(unit.dtype));
    print_peak(std::string(unit.isa) + " " + dtype + ": " + std::string(unit.instruction), threads,
               [&] { return attn::peaks::measure_gflops(unit); });
  }
  const attn::Buffer memory = touched_memory();
  print_peak("GB/s of reading from memory", threads,
             [&] { return attn::peaks::measure_read(memory.data(), memory.bytes()); });
}

bool same_shape(const Workload& a, const Workload& b) {
  return a.operation == b.operation && a.dtype == b.dtype && a.heads == b.heads && a.keys == b.keys &&
         a.depth == b.depth && a.layout == b.layout && a.isa == b.isa && a.threads == b.threads;
}

}  // namespace

Report::Report(std::vector<int> threads, int repeats, const std::string& csv_file, const std::string& json_file)
    : threads_(std::move(threads)), repeats_(repeats), csv_(open(csv_file)), json_(open(json_file)) {}

bool Report::ReportContext(const Context&) {
  std::printf("attention.cpp %s, %s, %s, %u cores\n\n", kCommit, kCompiler, cpu_model().c_str(),
              std::thread::hardware_concurrency());
  print_peaks(threads_);
  std::printf(
      "\n"
      "Medians of %d repeats; spread: (max - min) / median; error: max |x - float64| / max |float64| of a sample.\n"
      "of peak: of the rate of the unit that does the products, a sixth of it where a product of float32 takes six of\n"
      "bfloat16 parts; of read: of a plain read of the same keys and values, both measured\n"
      "between the repeats; of full: the share of peak, against that of the row without options.\n\n",
      repeats_);
  std::printf("%-8s %-7s %-8s %6s %4s %2s %-4s %-11s %3s %9s %7s %8s %7s %7s %7s %8s %9s %7s\n", "", "option", "dtype",
              "n", "D", "G", "mem", "isa", "thr", "median", "spread", "GFLOP/s", "of peak", "GB/s", "of read", "error",
              "scratch", "of full");
  return true;
}

void Report::add(const Row& row) {
  const Workload& w = row.workload;
  std::printf("%-8s %-7s %-8s %6lld %4lld %2lld %-4s %-11s %3d ", name_of(w.operation).c_str(),
              name_of(w.option).c_str(), std::string(attn::name_of(w.dtype)).c_str(), static_cast<long long>(w.keys),
              static_cast<long long>(w.depth), static_cast<long long>(w.heads / w.kv_heads), name_of(w.layout).c_str(),
              w.isa.c_str(), w.threads);
  if (row.correct) {
    if (w.option == Option::full) full_ = row;
    const bool comparable = w.option != Option::full && same_shape(w, full_.workload);
    const double spread = (row.slowest - row.fastest) / row.seconds;
    std::printf("%9s %7s %8.1f %7s %7s %7s %8.1e %9s %7s\n", time(row.seconds).c_str(), percent(spread).c_str(),
                row.gflops, percent(row.of_peak()).c_str(), row.gbytes > 0 ? format("%.1f", row.gbytes).c_str() : "",
                percent(row.of_read()).c_str(), row.error, bytes(row.scratch_bytes).c_str(),
                comparable ? percent(row.of_peak() / full_.of_peak()).c_str() : "");
  } else {
    std::printf("WRONG: error %.1e\n", row.error);
    ++wrong_rows_;
  }
  std::fflush(stdout);
  write_files(row);
}

void Report::write_files(const Row& row) {
  std::string names, values, object;
  for (const Field& field : fields_of(row, repeats_)) {
    const std::string value = field.text ? quoted(field.value) : field.value;
    const char* comma = names.empty() ? "" : ",";
    names.append(comma).append(field.name);
    values.append(comma).append(value);
    object.append(comma).append(quoted(field.name)).append(":").append(value);
  }
  if (csv_.is_open()) csv_ << (rows_ == 0 ? names + "\n" : "") << values << std::endl;
  if (json_.is_open()) json_ << "{" << object << "}" << std::endl;
  ++rows_;
}

}  // namespace bench
