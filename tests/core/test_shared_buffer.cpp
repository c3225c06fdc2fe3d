// core: memory that the matrices of a model share.
#include "core/shared_buffer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "attn/core.h"
#include "attn/profile.h"

namespace attn::test {
namespace {

TEST(SharedBuffer, MatricesOfOneModelShareItsPages) {
  constexpr int64_t kMatrix = 700 * 1024, kMatrices = 100, kPage = int64_t{2} << 20;
  const int64_t before = memory_in_use();
  {
    std::vector<SharedBuffer> all;
    for (int64_t n = 0; n < kMatrices; ++n) {
      all.emplace_back(kMatrix + n);
      EXPECT_EQ(all.back().bytes(), kMatrix + n);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(all.back().data()) % 64, 0u);
      std::memset(all.back().data(), static_cast<int>(n), static_cast<size_t>(kMatrix + n));
    }
    for (int64_t n = 0; n < kMatrices; ++n) {  // nobody has written into another
      const auto* bytes = static_cast<const unsigned char*>(all[static_cast<size_t>(n)].data());
      EXPECT_TRUE(bytes[0] == n && bytes[kMatrix + n - 1] == n) << n;
    }
    // Each region of 32 MiB has 46 of them; the last one is counted up to its last page.
    EXPECT_LE(memory_in_use() - before, kMatrices * (kMatrix + 99) + 3 * kPage);
    const SharedBuffer copy = all.front();
    all.clear();
    EXPECT_GE(memory_in_use() - before, kMatrix);
    EXPECT_EQ(static_cast<const unsigned char*>(copy.data())[kMatrix - 1], 0);
  }
  EXPECT_EQ(memory_in_use(), before);
}

TEST(SharedBuffer, OtherSizesHaveTheirOwnMemory) {
  const int64_t before = memory_in_use();
  {
    const SharedBuffer none, small(1000), large(int64_t{10} << 20);
    EXPECT_EQ(none.data(), nullptr);
    EXPECT_EQ(memory_in_use() - before, 1024 + (int64_t{10} << 20));
  }
  EXPECT_EQ(memory_in_use(), before);
  EXPECT_THROW(SharedBuffer(-1), Error);
}

}  // namespace
}  // namespace attn::test
