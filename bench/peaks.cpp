#include "peaks.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {
namespace {

const Unit* find_unit(std::string_view isa, attn::DType dtype) {
  for (const Unit& unit : units()) {
    if (unit.isa == isa && unit.dtype == dtype) return &unit;
  }
  return nullptr;
}

}  // namespace

const Unit& unit_for(std::string_view isa, attn::DType dtype) {
  // "avx512_bf16" adds a dot product to "avx512" and shares the rest with it.
  const std::string_view parent = isa.substr(0, isa.find('_'));
  const attn::DType arithmetic = dtype == attn::DType::float64 ? dtype : attn::DType::float32;
  for (const auto& [name, type] : {std::pair{isa, dtype}, {isa, arithmetic}, {parent, arithmetic}}) {
    if (const Unit* unit = find_unit(name, type)) return *unit;
  }
  throw std::runtime_error("no peak is known for instruction set " + std::string(isa));
}

double measure_gflops(const Unit& unit) {
  // Eight slices a thread: a thread that wakes late, or is held up, does not stall the others.
  constexpr double kSliceFlops = 128e6;
  const int64_t loops = static_cast<int64_t>(kSliceFlops / unit.flops);
  const int64_t slices = 8 * attn::thread_count();
  const double start = seconds_now();
  attn::parallel_for(slices, [&](int64_t) { unit.run(loops); });
  return unit.flops * static_cast<double>(loops * slices) / (seconds_now() - start) * 1e-9;
}

double measure_read(const void* data, int64_t bytes) {
  constexpr int64_t kSlice = int64_t{1} << 20;
  const int64_t whole = bytes / 512 * 512;
  const char* begin = static_cast<const char*>(data);
  const double start = seconds_now();
  attn::parallel_for((whole + kSlice - 1) / kSlice, [&](int64_t slice) {
    read_memory(begin + slice * kSlice, begin + std::min(whole, (slice + 1) * kSlice));
  });
  return static_cast<double>(whole) / (seconds_now() - start) * 1e-9;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

}  // namespace bench
