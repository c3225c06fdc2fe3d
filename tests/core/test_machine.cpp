// core: how many processors a container leaves to this process, from folders that look like /proc and /sys; what caches
// they have.
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "core/caches.h"
#include "core/control_groups.h"

namespace attn::test {
namespace {

/// A root with files in it, removed at the end.
class Root {
 public:
  using Files = std::map<std::string, std::string>;
  explicit Root(const Files& files) {
    char name[] = "/tmp/attn-groups-XXXXXX";
    path_ = mkdtemp(name);
    for (const auto& [file, text] : files) {
      const std::filesystem::path path = path_ + "/" + file;
      std::filesystem::create_directories(path.parent_path());
      std::ofstream(path) << text;
    }
  }
  ~Root() { std::filesystem::remove_all(path_); }
  int processors() const { return available_processors(path_); }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

const int kAll = available_processors("/nowhere");  // by affinity alone

TEST(ControlGroups, NoFilesNoLimit) {
  EXPECT_GE(kAll, 1);
  EXPECT_EQ(Root(Root::Files{}).processors(), kAll);
  EXPECT_EQ(Root(Root::Files{{"proc/self/cgroup", "nonsense\n::\n0::\n"}}).processors(), kAll);
}

TEST(ControlGroups, AQuotaIsRoundedUp) {
  for (const auto& [text, processors] : std::map<std::string, int>{{"max 100000\n", kAll},
                                                                   {"100000 100000\n", 1},
                                                                   {"50000 100000\n", 1},
                                                                   {"150000 100000\n", std::min(2, kAll)},
                                                                   {"1000 1000000\n", 1},
                                                                   {"900000000 100000\n", kAll},
                                                                   {"0 0\n", kAll},
                                                                   {"-3 100000\n", kAll},
                                                                   {"", kAll},
                                                                   {"one two\n", kAll}})
    EXPECT_EQ(Root(Root::Files{{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/cpu.max", text}}).processors(),
              processors)
        << text;
}

/// The tightest of the group and those above it, in both versions of the interface.
TEST(ControlGroups, GroupsAboveCount) {
  const std::string group = "0::/a.slice/b\n";
  EXPECT_EQ(Root(Root::Files{{"proc/self/cgroup", group},
                             {"sys/fs/cgroup/a.slice/cpu.max", "100000 100000"},
                             {"sys/fs/cgroup/a.slice/b/cpu.max", "max 100000"}})
                .processors(),
            1);
  const std::string old = "9:memory:/m\n3:cpu,cpuacct:/docker/x\n1:cpuset:/c\n";
  EXPECT_EQ(Root(Root::Files{{"proc/self/cgroup", old},
                             {"sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us", "-1"},
                             {"sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "70000"},
                             {"sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000"}})
                .processors(),
            1);
  // Inside a container the group is named as from outside, and is at the root.
  EXPECT_EQ(Root(Root::Files{{"proc/self/cgroup", old},
                             {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "70000"},
                             {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"}})
                .processors(),
            1);
}

TEST(ControlGroups, FoldersNearestFirst) {
  const Root root(Root::Files{{"proc/self/cgroup", "4:memory:/m/n\n3:cpu:/c\n0::/u\n"}});
  const std::string mount = root.path() + "/sys/fs/cgroup";
  EXPECT_EQ(control_groups("memory", root.path()), (std::vector<std::string>{mount + "/memory/m/n", mount + "/memory/m",
                                                                             mount + "/memory", mount + "/u", mount}));
}

#if defined(__x86_64__)
/// Stays on one processor while it lives: those of a laptop may have different caches.
class OnOneProcessor {
 public:
  OnOneProcessor() : number_(sched_getcpu()) {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(number_, &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~OnOneProcessor() { sched_setaffinity(0, sizeof before_, &before_); }
  OnOneProcessor(const OnOneProcessor&) = delete;
  OnOneProcessor& operator=(const OnOneProcessor&) = delete;
  std::string folder() const { return "/sys/devices/system/cpu/cpu" + std::to_string(number_); }

 private:
  int number_;
  cpu_set_t before_{};
};

/// Bytes of a unified cache as Linux describes it, "1024K"; 0 if it does not.
int64_t cache_of_linux(const OnOneProcessor& processor, int level) {
  for (int i = 0; i < 8; ++i) {
    const std::string folder = processor.folder() + "/cache/index" + std::to_string(i) + "/";
    if (first_line(folder + "level") != std::to_string(level) || first_line(folder + "type") != "Unified") continue;
    const std::string size = first_line(folder + "size");
    return std::stoll(size) << (size.ends_with("M") ? 20 : 10);
  }
  return 0;
}

TEST(Caches, AreThoseThatLinuxDescribes) {
  const OnOneProcessor here;
  if (cache_of_linux(here, 2) == 0) GTEST_SKIP() << "the system describes no cache";
  EXPECT_EQ(described_caches().second, cache_of_linux(here, 2));
  EXPECT_EQ(described_caches().third, cache_of_linux(here, 3));
}
#else
TEST(Caches, AreNotDescribed) { EXPECT_EQ(described_caches().second, 0); }
#endif

TEST(Caches, AreWithinBounds) {
  EXPECT_GE(caches().second, int64_t{256} << 10);
  EXPECT_GE(caches().third, 2 * caches().second);
  EXPECT_LE(caches().third, int64_t{32} << 20);
}

}  // namespace
}  // namespace attn::test
