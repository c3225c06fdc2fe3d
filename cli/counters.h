// What the processor and the kernel count while a part of the program runs (perf_event of Linux).
#pragma once

#include <array>
#include <string>

namespace cli {

class Counters {
 public:
  static constexpr size_t kCount = 6;
  /// "cycles" and so on.
  static const std::array<const char*, kCount>& names();
  using Values = std::array<double, kCount>;

  /// Begins to count, on this thread and on all that it starts from now on.
  Counters();
  ~Counters();
  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;

  /// The numbers since construction; NaN of what cannot be counted here.
  Values read() const;
  /// Which cannot, and why: "cycles, instructions: No such file or directory"; "" if all can.
  std::string missing() const;

 private:
  std::array<int, kCount> files_;     // -1: not counted
  std::array<int, kCount> errors_{};  // of errno
};

}  // namespace cli
