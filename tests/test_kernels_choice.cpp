// The order in which instruction sets are chosen.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kernels/dispatch.h"

namespace attn::kernels {
namespace {

/// By the maker of the processor, not by a feature that some makers' processors have and run at half speed.
TEST(Choice, Bfloat16ProductsAreChosenWhereTheyAreQuick) {
  const auto place = [](const char* vendor, const char* isa) {
    const std::vector<std::string> names = preference(vendor);
    return std::find(names.begin(), names.end(), isa) - names.begin();
  };
#if defined(__x86_64__)
  EXPECT_LT(place("AuthenticAMD", "avx512_bf16"), place("AuthenticAMD", "avx512"));
  EXPECT_LT(place("GenuineIntel", "avx512"), place("GenuineIntel", "avx512_bf16"));
  EXPECT_LT(place("GenuineIntel", "avx512_bf16"), place("GenuineIntel", "avx2"));
  EXPECT_LT(place("", "avx512"), place("", "avx512_bf16"));
  for (const char* vendor : {"AuthenticAMD", "GenuineIntel"}) {
    EXPECT_EQ(place(vendor, "amx_fp16"), 0);
    EXPECT_EQ(place(vendor, "amx"), 1);
  }
#endif
  for (const char* vendor : {"AuthenticAMD", "GenuineIntel", "", "a vendor to come"}) {
    const std::vector<std::string> names = preference(vendor);
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
    EXPECT_EQ(names.size(), preference("").size());
  }
}

/// Nothing is said to be missing that is there, and on a CPU without matrix tiles nothing is.
TEST(Choice, WhatTheSystemRefusesIsNamed) {
  const std::vector<std::string> names = available();
  const std::string refused = missing();
  EXPECT_TRUE(refused.empty() || refused.starts_with("amx: ")) << refused;
  const bool there = std::find(names.begin(), names.end(), "amx") != names.end();
  EXPECT_TRUE(!there || refused.empty()) << refused;
}

}  // namespace
}  // namespace attn::kernels
