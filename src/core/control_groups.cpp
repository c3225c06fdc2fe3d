#include "core/control_groups.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <thread>

#ifdef __linux__
#include <sched.h>
#endif

namespace attn {
namespace {

/// "cpu,cpuacct" names cpu.
bool names(std::string_view list, std::string_view controller) {
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (list.substr(begin, end - begin) == controller) return true;
    begin = end + 1;
  }
  return false;
}

int affinity() {
#ifdef __linux__
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

/// Processors that the quota of a group allows; infinity if it has none.
double quota_of(const std::string& group) {
  double quota = 0, period = 0;
  std::istringstream both(first_line(group + "/cpu.max"));  // version 2: "max 100000", or "150000 100000"
  if (!(both >> quota >> period)) {
    std::istringstream(first_line(group + "/cpu.cfs_quota_us")) >> quota;  // version 1: -1 is none
    std::istringstream(first_line(group + "/cpu.cfs_period_us")) >> period;
  }
  return quota > 0 && period > 0 ? quota / period : INFINITY;
}

}  // namespace

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<std::string> control_groups(std::string_view controller, const std::string& root) {
  std::vector<std::string> groups;
  std::ifstream own(root + "/proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {  // "0::/group" of version 2, "4:cpu,cpuacct:/group" of version 1
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string list = line.substr(first + 1, second - first - 1);
    if (!list.empty() && !names(list, controller)) continue;
    const std::string mount = root + "/sys/fs/cgroup" + (list.empty() ? "" : "/" + std::string(controller));
    // A container may see its own group as the root, and its name from outside: groups that are not there say nothing.
    for (std::string group = line.substr(second + 1); group.starts_with('/');) {
      groups.push_back(mount + (group == "/" ? "" : group));
      if (group == "/") break;
      group.resize(std::max<size_t>(group.rfind('/'), 1));
    }
  }
  return groups;
}

int available_processors(const std::string& root) {
  double processors = affinity();
  for (const std::string& group : control_groups("cpu", root))
    processors = std::min(processors, std::ceil(quota_of(group)));
  return std::max(1, static_cast<int>(processors));
}

}  // namespace attn
