#include "attn/peaks.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "attn/attention.h"
#include "attn/core.h"
#include "peaks/read.h"

namespace attn::peaks {
namespace {

const Unit* find_unit(std::string_view isa, DType dtype) {
  for (const Unit& unit : units()) {
    if (unit.isa == isa && unit.dtype == dtype) return &unit;
  }
  return nullptr;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median_rate(const Unit& unit) {
  double rates[5];
  for (double& rate : rates) rate = measure_gflops(unit);
  std::sort(rates, rates + 5);
  return rates[2];
}

}  // namespace

const Unit& unit_for(std::string_view isa, DType dtype) {
  // "avx512_bf16" adds a dot product to "avx512" and shares the rest with it; so does "amx_fp16" with "amx".
  const std::string_view parent = isa.substr(0, isa.find('_'));
  const DType arithmetic = dtype == DType::float64 ? dtype : DType::float32;
  for (const auto& [name, type] : {std::pair{isa, dtype}, {parent, dtype}, {isa, arithmetic}, {parent, arithmetic}}) {
    if (const Unit* unit = find_unit(name, type)) return *unit;
  }
  throw Error("unit_for", {"no multiply-add unit of the instruction set '" + std::string(isa) + "' is known"});
}

double measure_gflops(const Unit& unit) {
  // Eight slices a thread: a thread that wakes late, or is held up, does not stall the others.
  constexpr double kSliceFlops = 128e6;
  const int64_t loops = static_cast<int64_t>(kSliceFlops / unit.flops);
  const int64_t slices = 8 * thread_count();
  const double start = seconds_now();
  parallel_for(slices, [&](int64_t) { unit.run(loops); });
  return unit.flops * static_cast<double>(loops * slices) / (seconds_now() - start) * 1e-9;
}

double measure_products(DType dtype, Float32Precision precision) {
  const std::string isa = active_isa();
  const Unit& vectors = unit_for(isa, dtype == DType::float64 ? dtype : DType::float32);
  const Unit& pairs = unit_for(isa, DType::bfloat16);
  double best = median_rate(vectors);
  if (dtype == DType::float64 || &pairs == &vectors) return best;
  const int parts = 3 - static_cast<int>(precision);
  if (dtype == DType::bfloat16) best = std::max(best, median_rate(pairs));
  else if (isa.starts_with("amx")) best = std::max(best, median_rate(pairs) / (parts * (parts + 1) / 2));
  return best;
}

double measure_read(const void* data, int64_t bytes) {
  constexpr int64_t kSlice = int64_t{1} << 20;
  const int64_t whole = bytes / 512 * 512;
  const char* begin = static_cast<const char*>(data);
  const double start = seconds_now();
  parallel_for((whole + kSlice - 1) / kSlice, [&](int64_t slice) {
    read_memory(begin + slice * kSlice, begin + std::min(whole, (slice + 1) * kSlice));
  });
  return static_cast<double>(whole) / (seconds_now() - start) * 1e-9;
}

}  // namespace attn::peaks
