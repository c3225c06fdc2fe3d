#include "counters.h"

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "output.h"

namespace cli {
namespace {

struct Event {
  const char* name;
  uint32_t type;
  uint64_t event;
};
constexpr std::array<Event, Counters::kCount> kEvents = {
    {{"cycles", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES},
     {"instructions", PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS},
     {"cache misses", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES},
     {"branch misses", PERF_TYPE_HARDWARE, PERF_COUNT_HW_BRANCH_MISSES},
     {"page faults", PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS},
     {"context switches", PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CONTEXT_SWITCHES}}};

}  // namespace

const std::array<const char*, Counters::kCount>& Counters::names() {
  static const std::array<const char*, kCount> all = [] {
    std::array<const char*, kCount> names{};
    for (size_t n = 0; n < kCount; ++n) names[n] = kEvents[n].name;
    return names;
  }();
  return all;
}

Counters::Counters() {
  for (size_t n = 0; n < kCount; ++n) {
    perf_event_attr wanted;
    std::memset(&wanted, 0, sizeof wanted);
    wanted.size = sizeof wanted;
    wanted.type = kEvents[n].type;
    wanted.config = kEvents[n].event;
    wanted.inherit = 1;
    wanted.exclude_kernel = kEvents[n].type == PERF_TYPE_HARDWARE;  // which users without rights may not count
    wanted.exclude_hv = 1;
    // With more events than the processor counts at a time, each is counted in turn: these times say how much.
    wanted.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
    files_[n] = static_cast<int>(syscall(SYS_perf_event_open, &wanted, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
    if (files_[n] < 0) errors_[n] = errno;
  }
}

Counters::~Counters() {
  for (const int file : files_)
    if (file >= 0) close(file);
}

Counters::Values Counters::read() const {
  Values values;
  values.fill(std::nan(""));
  for (size_t n = 0; n < kCount; ++n) {
    std::array<uint64_t, 3> content{};  // the count, and for how long it was wanted and done
    if (files_[n] < 0 || ::read(files_[n], content.data(), sizeof content) != sizeof content) continue;
    const auto [count, wanted, done] = content;
    if (done > 0) values[n] = static_cast<double>(count) * static_cast<double>(wanted) / static_cast<double>(done);
  }
  return values;
}

std::string Counters::missing() const {
  std::map<int, std::vector<std::string>> reasons;
  for (size_t n = 0; n < kCount; ++n)
    if (files_[n] < 0) reasons[errors_[n]].emplace_back(kEvents[n].name);
  std::vector<std::string> parts;
  for (const auto& [error, names] : reasons) parts.push_back(joined(names, ", ") + ": " + std::strerror(error));
  return joined(parts, "; ");
}

}  // namespace cli
