// peaks: measures the limits of this machine, the rates of its multiply-add units and of its memory, with the threads
// that the library uses. A program can so print each timing beside the limit that it measured in the same second.
//
// ```cpp
// #include <cstdio>
// #include "attn/attention.h"
// #include "attn/peaks.h"
// int main() {
//   const attn::peaks::Unit& unit = attn::peaks::unit_for(attn::active_isa(), attn::DType::float32);
//   std::printf("%.0f GFLOP/s of %s\n", attn::peaks::measure_gflops(unit), unit.instruction.data());
// }
// ```
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "attn/tensor.h"

#pragma GCC visibility push(default)
namespace attn::peaks {

/// A loop of independent multiply-adds, as fast as one instruction set can multiply one type. The loops of vector units
/// take zeros from registers. Those of matrix tiles load random numbers, because products of zeros from registers run a
/// quarter faster than any product of real numbers.
struct Unit {
  std::string_view isa = {};  ///< a name of available_isas()
  DType dtype = DType::float32;
  std::string_view instruction = {};
  double flops = 0;  ///< of one loop; a multiply-add counts as two
  void (*run)(int64_t loops);
};

/// All units of this architecture. Only those of available_isas() may run on this CPU.
std::span<const Unit> units();

/// The unit that multiplies `dtype` under `isa`, or the unit of float32 where the instruction set has none for a 16-bit
/// type. Throws Error for an unknown `isa`.
const Unit& unit_for(std::string_view isa, DType dtype);

/// Runs a unit on all threads of the library for a few milliseconds and returns its GFLOP/s.
double measure_gflops(const Unit& unit);

/// The largest GFLOP/s that the active instruction set allows for products of `dtype` on all threads of the library. On
/// matrix tiles a float32 product (and a float16 one, which layers compute on float32 copies) is 6, 3 or 1 products of
/// bfloat16 parts, depending on `precision`. Takes about 10 milliseconds.
double measure_products(DType dtype, Float32Precision precision = Float32Precision::full);

/// Reads [data, data + bytes) once with all threads of the library and returns the GB/s.
double measure_read(const void* data, int64_t bytes);

}  // namespace attn::peaks
#pragma GCC visibility pop
