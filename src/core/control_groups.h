// What a container may use: the control groups of Linux that this process is in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace attn {

/// The folders of this process's group of `controller` ("cpu", "memory") and of all groups above it, the nearest first,
/// in version 2 and version 1 of the interface: a limit in any of them counts. `root` is before /proc and /sys.
[[gnu::visibility("default")]] std::vector<std::string> control_groups(std::string_view controller,
                                                                       const std::string& root = "");

/// The first line of a small file; empty if there is none.
std::string first_line(const std::string& path);

/// Processors that this process may keep busy: those of its affinity (taskset), and no more than the quota of its
/// control groups, rounded up. At least 1.
int available_processors(const std::string& root = "");

}  // namespace attn
