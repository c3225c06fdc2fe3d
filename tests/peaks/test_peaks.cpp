// The multiply-add units that this machine's peaks are measured with. No test looks at how fast they are.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "attn/attn.h"
#include "support/checks.h"
#include "support/errors.h"

namespace attn::test {
namespace {

/// Every plan names a unit, and the unit runs wherever the instruction set does.
TEST(Peaks, EveryInstructionSetHasItsUnits) {
  for_each_isa([](const std::string& isa) {
    if (isa.starts_with("amx_emulated")) return;  // the tests' own
    for (DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
      const peaks::Unit& unit = peaks::unit_for(isa, dtype);
      EXPECT_TRUE(unit.dtype == dtype || size_of(dtype) == 2) << unit.instruction;
      EXPECT_GT(peaks::measure_gflops(unit), 0) << unit.instruction;
      EXPECT_GT(peaks::measure_products(dtype), 0) << name_of(dtype);
    }
  });
}

TEST(Peaks, AnUnknownInstructionSetIsAnError) {
  const std::string error = error_of([] { peaks::unit_for("quantum", DType::float32); });
  EXPECT_EQ(error, "[unit_for] no multiply-add unit of the instruction set 'quantum' is known");
}

TEST(Peaks, AReadHasARate) {
  const Buffer memory(int64_t{1} << 20);
  const double rate = peaks::measure_read(memory.data(), memory.bytes());
  EXPECT_TRUE(std::isfinite(rate) && rate > 0) << rate;
}

}  // namespace
}  // namespace attn::test
