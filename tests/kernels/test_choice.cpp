// The order in which instruction sets are chosen.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#if defined(__x86_64__) && defined(__linux__)
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#endif

#include "attn/core.h"
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

#if defined(__x86_64__) && defined(__linux__)

/// From here on the system answers arch_prctl by EACCES, in this process and what it becomes.
bool refuse_arch_prctl() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x1023, 0, 1),  // the loader asks for other things
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof filter / sizeof *filter, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// Run by the next test in a process of its own.
TEST(Choice, InAProcessThatIsRefused) {
  if (!std::getenv("ATTN_TILES_REFUSED")) GTEST_SKIP() << "a part of the next test";
  ASSERT_EQ(request_tiles(), EACCES);
  const std::string reason = refused_tiles(EACCES);
  EXPECT_EQ(reason, "amx: the system refuses this process the CPU's matrix tiles: Permission denied");
  for (const std::string& name : available()) EXPECT_FALSE(name == "amx" || name == "amx_fp16");
  EXPECT_TRUE(missing().empty() || missing() == reason) << "empty on a CPU without tiles";
  EXPECT_FALSE(std::string(active_kernels().name).starts_with("amx"));
  EXPECT_THROW(force("amx"), Error);
}

/// A seccomp filter, as containers have them, may refuse the permission: another instruction set is chosen.
TEST(Choice, ARefusalFallsBack) {
  EXPECT_EQ(refused_tiles(0), "");
  const pid_t child = fork();
  if (child == 0) {
    setenv("ATTN_TILES_REFUSED", "1", 1);
    if (!refuse_arch_prctl()) _exit(77);
    execl("/proc/self/exe", "test", "--gtest_filter=Choice.InAProcessThatIsRefused", "--gtest_brief=1", nullptr);
    _exit(78);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "this system lets no process filter its own calls";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

#endif

}  // namespace
}  // namespace attn::kernels
