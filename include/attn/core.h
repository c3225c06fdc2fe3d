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

#pragma GCC visibility push(default)
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

/// A borrowed callable `void(int64_t task)`: a lambda, which may be mutable, a function, a function object. It must
/// outlive the call that it is passed to, and all tasks share it. Throws Error for a null pointer or an empty
/// std::function.
class TaskRef {
 public:
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, TaskRef>>>
  TaskRef(F&& function) {
    using Callable = std::remove_reference_t<F>;
    if constexpr (std::is_function_v<Callable>) {
      object_ = reinterpret_cast<void*>(&function);
      call_ = [](void* object, int64_t task) { reinterpret_cast<Callable*>(object)(task); };
    } else {
      if constexpr (std::is_constructible_v<bool, Callable&> && !std::is_empty_v<Callable>)
        require(static_cast<bool>(function));
      object_ = const_cast<void*>(static_cast<const void*>(&function));
      call_ = [](void* object, int64_t task) { (*static_cast<Callable*>(object))(task); };
    }
  }
  void operator()(int64_t task) const { call_(object_, task); }

 private:
  static void require(bool callable);
  void* object_;
  void (*call_)(void*, int64_t);
};

/// Who runs the tasks. A host with threads of its own implements this and passes it to set_executor().
class Executor {
 public:
  virtual ~Executor() = default;
  /// Runs body(0) ... body(tasks - 1), each once, in any order, on any threads; returns when all are done.
  /// Must be callable from many threads at once and from inside a task. A task that is left out or run twice makes
  /// results wrong: a library that was built without NDEBUG throws Error, others do not look.
  virtual void run(int64_t tasks, TaskRef body) = 0;
  /// How many tasks may run at the same time; may change from call to call. What is below 1 counts as 1, what is above
  /// kMaxThreads as that.
  virtual int threads() const = 0;
};

/// The most threads that the library's pool has and that an executor counts as.
constexpr int kMaxThreads = 1024;

/// Runs body(0) ... body(tasks - 1) on the current executor. An exception thrown by a task is rethrown here, once.
/// Throws Error for a negative number of tasks.
void parallel_for(int64_t tasks, TaskRef body);
/// Tasks that may run at the same time, 1 to kMaxThreads.
int thread_count();
/// Sizes the library's own pool (1 = the calling thread alone); 0, the default = one thread a processor that this
/// process may use by its affinity and the quota of its container. Throws Error below 0 and above kMaxThreads.
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
  /// Goes on where a stream stood after `drawn` words.
  explicit Random(uint64_t seed, uint64_t stream = 0, uint64_t drawn = 0);
  /// How many words have been drawn: next() takes one, uniform() two, normal() four, below() two or more.
  uint64_t drawn() const { return drawn_; }
  uint32_t next();
  /// Uniform in [0, 1).
  double uniform();
  /// Normal, mean 0, variance 1 (Box-Muller).
  double normal();
  /// Uniform in [0, bound). Throws Error unless bound > 0.
  int64_t below(int64_t bound);

 private:
  void draw_block();
  uint64_t key_, stream_, drawn_;
  std::array<uint32_t, 4> words_{};
};

/// Normal numbers of mean 0, in the order of the indices, into a view of any floating type. Throws Error for another
/// type, a view that has no data and a deviation that is not finite.
void fill_normal(Random& random, double deviation, void* data, DType dtype, const int64_t* size, const int64_t* stride,
                 int rank);
template <int Rank>
void fill_normal(const View<Rank>& x, Random& random, double deviation = 1) {
  fill_normal(random, deviation, x.data, x.dtype, x.size.data(), x.stride.data(), Rank);
}
template <class T, int Rank>
void fill_normal(Tensor<T, Rank>& x, Random& random, double deviation = 1) {
  fill_normal(x.view(), random, deviation);
}

}  // namespace attn
#pragma GCC visibility pop
