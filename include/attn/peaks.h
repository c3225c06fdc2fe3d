// peaks: what this machine allows. The rates of its multiply-add units and of its memory, measured with the threads
// that the library uses, so that a program can print every timing next to the limit that held in the same second.
//
//   const attn::AttentionPlan plan = attn::explain(q, k, v);
//   const attn::peaks::Unit& unit = attn::peaks::unit_for(plan.isa, plan.unit_type);
//   const double share = plan.unit_flops / seconds / (1e9 * attn::peaks::measure_gflops(unit));
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "attn/tensor.h"

#pragma GCC visibility push(default)
namespace attn::peaks {

/// A loop of independent multiply-adds: as fast as one instruction set can multiply one type. Vector units work on
/// zeros in registers; matrix tiles on random numbers that they load, because zeros from registers run a quarter faster
/// than any product of real numbers can.
struct Unit {
  std::string_view isa;  ///< as available_isas() names it
  DType dtype;
  std::string_view instruction;
  double flops;  ///< of one loop; a multiply-add counts as two
  void (*run)(int64_t loops);
};

/// The units of this architecture, whether or not this CPU has them: only those of available_isas() may run.
std::span<const Unit> units();

/// The unit that multiplies `dtype` under `isa`; that of float32 where the instruction set has none for a 16-bit type.
/// Throws Error if no unit of `isa` is known.
const Unit& unit_for(std::string_view isa, DType dtype);

/// GFLOP/s of a unit on all threads of the library, from a run of a few milliseconds.
double measure_gflops(const Unit& unit);

/// GFLOP/s that the active instruction set allows for products of `dtype` on all threads of the library: of its
/// quickest unit. Matrix tiles multiply float32 (and float16, of which layers make float32 copies) as 3, 2 or 1
/// bfloat16 parts, by `precision`, which takes 6, 3 or 1 of their products. Takes some 10 milliseconds.
double measure_products(DType dtype, Float32Precision precision = Float32Precision::full);

/// GB/s of one pass over [data, data + bytes) on all threads of the library.
double measure_read(const void* data, int64_t bytes);

}  // namespace attn::peaks
#pragma GCC visibility pop
