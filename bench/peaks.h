// What this machine allows: the rate of its multiply-add units and of its memory, measured with the threads that the
// library uses, so that every timing can be printed next to the limit that held in the same second.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "attn/attn.h"

namespace bench {

/// A loop of independent multiply-adds in registers: as fast as one instruction set can go on one type.
struct Unit {
  std::string_view isa;  // as the library names it
  attn::DType dtype;
  std::string_view instruction;
  double flops;  // of one loop
  void (*run)(int64_t loops);
};

/// What this architecture has, whether or not this CPU can run it: only attn::available_isas() may be run.
std::span<const Unit> units();
/// Reads [begin, end), a multiple of 512 bytes aligned to 32, with the widest loads among the available ISAs.
void read_memory(const char* begin, const char* end);

/// The unit for arithmetic on `dtype` under `isa`. 16-bit types compute in float32 where there is no dot product of
/// them.
const Unit& unit_for(std::string_view isa, attn::DType dtype);

/// GFLOP/s of a unit on all threads of the library, from a run of a few milliseconds.
double measure_gflops(const Unit& unit);
/// GB/s of one pass over memory on all threads of the library.
double measure_read(const void* data, int64_t bytes);

double seconds_now();
double median(std::span<const double> values);

}  // namespace bench
