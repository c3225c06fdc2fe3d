// What the rest of the library reports to a Profiler beside spans: memory, threads, and what each did of a job.
#pragma once

#include <cstdint>
#include <string>

#include "attn/profile.h"

namespace attn {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kHugeFrom = kHugePage / 4;  // the scratch of one thread (0.6 MiB at D = 128) gains from it already
/// What a Buffer of so many bytes takes: from kHugeFrom on whole huge pages.
[[gnu::visibility("default")]] int64_t occupied_bytes(int64_t bytes);

/// Adds to memory_in_use(). Exported for attn::models.
[[gnu::visibility("default")]] void count_memory(int64_t bytes) noexcept;
void count_scratch(int64_t bytes) noexcept;

/// Names the calling thread in profiles.
void name_thread(std::string name);

/// The innermost open span of a thread that publishes a job; it is empty without a Profiler. The name is borrowed from
/// that thread until the job is done.
struct JobSpan {
  int64_t id = 0;
  const std::string* name = nullptr;
};
JobSpan current_span();

/// What the calling thread does of a job, as a span.
class TaskSpan {
 public:
  explicit TaskSpan(const JobSpan& job) : job_(job) {
    if (job.name && is_profiling()) open();
  }
  ~TaskSpan() {
    if (begin_ >= 0) close();
  }
  TaskSpan(const TaskSpan&) = delete;
  TaskSpan& operator=(const TaskSpan&) = delete;

 private:
  void open();
  void close() const;
  JobSpan job_;
  int64_t begin_ = -1;
  int64_t run_ = 0;
};

}  // namespace attn
