// core: what every module stands on. Element types, views and tensors (tensor.h), errors, threads, random numbers.
#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "attn/tensor.h"

namespace attn {

// ----------------------------------------------------------------------------------------------------------- errors

/// What every public function throws on bad input: "[operator] reason; reason; ...". Nothing has been written by then.
class Error : public std::runtime_error {
 public:
  Error(std::string_view operation, std::vector<std::string> reasons);
  const std::string& operation() const { return operation_; }
  /// Every violated condition, not only the first.
  const std::vector<std::string>& reasons() const { return reasons_; }

 private:
  std::string operation_;
  std::vector<std::string> reasons_;
};

// ---------------------------------------------------------------------------------------------------------- threads

/// A borrowed callable `void(int64_t task)`. The callable must outlive the call it is passed to.
class TaskRef {
 public:
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, TaskRef>>>
  TaskRef(const F& function)
      : object_(&function), call_([](const void* object, int64_t task) { (*static_cast<const F*>(object))(task); }) {}
  void operator()(int64_t task) const { call_(object_, task); }

 private:
  const void* object_;
  void (*call_)(const void*, int64_t);
};

/// Who runs the tasks. A host with threads of its own implements this and passes it to set_executor().
class Executor {
 public:
  virtual ~Executor() = default;
  /// Runs body(0) ... body(tasks - 1), each once, in any order, on any threads; returns when all are done.
  /// Must be callable from many threads at once and from inside a task.
  virtual void run(int64_t tasks, TaskRef body) = 0;
  /// How many tasks may run at the same time.
  virtual int threads() const = 0;
};

/// Runs body(0) ... body(tasks - 1) on the current executor. An exception thrown by a task is rethrown here, once.
void parallel_for(int64_t tasks, TaskRef body);
/// Tasks that may run at the same time.
int thread_count();
/// Sizes the library's own pool (1 = the calling thread alone); 0 = one thread a hardware core, the default.
void set_thread_count(int threads);
/// Replaces the library's pool; nullptr brings it back. The executor must outlive its use.
void set_executor(Executor* executor);
/// The library's pool, for an executor of the host that wraps it.
Executor& own_executor();

// --------------------------------------------------------------------------------------------------- random numbers

/// Philox4x32-10 (Salmon et al., SC'11): four uniform 32-bit words from a 64-bit key and a 128-bit counter.
std::array<uint32_t, 4> philox(uint64_t key, const std::array<uint32_t, 4>& counter);

/// A stream of numbers over philox(): the same seed gives the same stream on every machine.
class Random {
 public:
  explicit Random(uint64_t seed, uint64_t stream = 0) : key_(seed), stream_(stream) {}
  uint32_t next();
  /// Uniform in [0, 1).
  double uniform();
  /// Normal, mean 0, variance 1 (Box-Muller).
  double normal();
  /// Uniform in [0, bound), bound > 0.
  int64_t below(int64_t bound);

 private:
  uint64_t key_, stream_, block_ = 0;
  std::array<uint32_t, 4> words_{};
  int used_ = 4;
};

}  // namespace attn
