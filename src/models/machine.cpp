// The memory that this process may still take: the system's, and that of its control groups, version 1 or 2.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "attn/models.h"
#include "core/control_groups.h"

namespace attn::models {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

/// The first number of a file; nothing if there is none, as in "max".
std::optional<double> number_in(const std::string& path) {
  std::ifstream file(path);
  double value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

/// The number after `name` in a file of lines "name number".
std::optional<double> number_of(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    double value = 0;
    if (words >> word >> value && word == name) return value;
  }
  return std::nullopt;
}

/// What one group leaves: its limit without what it uses. Pages of files that can be dropped do not count as used.
double left_in(const std::string& folder, const char* limit, const char* usage, const char* droppable) {
  const std::optional<double> most = number_in(folder + limit), used = number_in(folder + usage);
  if (!most || !used) return kUnknown;
  return std::max(0.0, *most - *used + number_of(folder + "/memory.stat", droppable).value_or(0));
}

}  // namespace

double available_memory(const std::string& root) {
  double left = kUnknown;
  if (const auto kibibytes = number_of(root + "/proc/meminfo", "MemAvailable:")) left = *kibibytes * 1024;
  for (const std::string& group : control_groups("memory", root)) {
    left = std::min(left, left_in(group, "/memory.max", "/memory.current", "inactive_file"));
    left = std::min(left, left_in(group, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file"));
  }
  return left;
}

}  // namespace attn::models
