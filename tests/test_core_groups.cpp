// core: how many processors a container leaves to this process, from folders that look like /proc and /sys.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

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
  // Inside a container the group is named as from outside, and lies at the root.
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

}  // namespace
}  // namespace attn::test
