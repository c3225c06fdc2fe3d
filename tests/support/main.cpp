// Runs the tests. A filter that selects nothing is a failure, and so is a suite that no ctest test means:
// ctest tells in ATTN_SUITES which ones it has. On x86 there are more kernel sets to test, see isa_amx_emulated.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#if defined(__x86_64__)
#include "kernels/dispatch.h"

namespace attn::kernels {
extern const Isa isa_amx_emulated, isa_amx_emulated_parts, isa_amx_emulated_fp16;
}
#endif

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
#if defined(__x86_64__)
  attn::kernels::offer(attn::kernels::isa_amx_emulated);
  attn::kernels::offer(attn::kernels::isa_amx_emulated_parts);
  attn::kernels::offer(attn::kernels::isa_amx_emulated_fp16);
#endif
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  const char* registered = std::getenv("ATTN_SUITES");  // " Forward Backward "
  for (int n = 0; registered != nullptr && n < all.total_test_suite_count(); ++n) {
    std::string suite = all.GetTestSuite(n)->name();
    suite.resize(std::min(suite.find('/'), suite.size()));  // instances of a typed suite have numbers
    if (std::strstr(registered, (" " + suite + " ").c_str()) != nullptr) continue;
    std::fprintf(stderr, "no ctest test runs the suite %s\n", suite.c_str());
    return 1;
  }
  const int result = RUN_ALL_TESTS();
  if (all.test_to_run_count() > 0) return result;
  std::fprintf(stderr, "no test was selected\n");
  return 1;
}
