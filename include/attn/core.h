// core: what every other module uses: element types, views and tensors (tensor.h), arrays (core_array.h), errors,
// threads, random numbers.
//
// ```cpp
// #include "attn/core.h"
// int main() {
//   attn::set_thread_count(2);
//   attn::Tensor<float, 2> x({100, 64});
//   attn::Random random(7);  // the same numbers on every machine
//   attn::fill_normal(x, random);
//   attn::parallel_for(100, [&](int64_t row) { x[row * 64] = 0; });
// }
// ```
#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "attn/core_array.h"
#include "attn/tensor.h"

#pragma GCC visibility push(default)
namespace attn {

// ----------------------------------------------------------------------------------------------------------- errors

/// The exception that every public function throws on bad input, before it writes anything: "[function] reason; ...".
class Error : public std::runtime_error {
 public:
  Error(std::string_view operation, std::vector<std::string> reasons);
  const std::string& operation() const { return operation_; }
  /// Every violated condition, one sentence each.
  const std::vector<std::string>& reasons() const { return reasons_; }

 private:
  std::string operation_;
  std::vector<std::string> reasons_;
};

// ---------------------------------------------------------------------------------------------------------- threads

/// A reference to a callable `void(int64_t task)`: a lambda, a function or a function object. The callable must outlive
/// the call that the reference is passed to; all tasks share it. Throws Error for a null pointer or an empty
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

/// Runs tasks. A host that has its own threads implements this interface and passes it to set_executor().
class Executor {
 public:
  virtual ~Executor() = default;
  /// Runs body(0) to body(tasks - 1), each once, in any order, on any threads, and returns when all are done. Several
  /// threads may call it at once, and a task may call it. An executor that omits or repeats a task makes results wrong;
  /// a library built without NDEBUG checks this and throws Error.
  virtual void run(int64_t tasks, TaskRef body) = 0;
  /// The number of tasks that can run at the same time; it may change between calls. The library clamps it to 1 ..
  /// kMaxThreads.
  virtual int threads() const = 0;
};

/// The largest number of threads of the library's pool and of an executor.
constexpr int kMaxThreads = 1024;

/// Runs body(0) to body(tasks - 1) on the current executor. If tasks throw, one of the exceptions is rethrown here.
/// Throws Error for a negative number of tasks.
void parallel_for(int64_t tasks, TaskRef body);
/// The number of tasks that can run at the same time, 1 to kMaxThreads.
int thread_count();
/// Sets the size of the library's own pool. 1 is the calling thread only. 0, the default, is one thread per processor
/// that the affinity of the process and the quota of its container allow. Throws Error below 0 and above kMaxThreads.
void set_thread_count(int threads);
/// Replaces the library's pool by `executor`, which is borrowed until the next call; nullptr restores the pool.
void set_executor(Executor* executor);
/// The library's pool, for executors that wrap it.
Executor& own_executor();

// --------------------------------------------------------------------------------------------------- random numbers

/// Philox4x32-10 (Salmon et al., SC'11): maps a 64-bit key and a 128-bit counter to four uniform 32-bit words.
std::array<uint32_t, 4> philox(uint64_t key, const std::array<uint32_t, 4>& counter);

/// A stream of random numbers from philox(). The same seed gives the same stream on every machine.
class Random {
 public:
  /// A stream of this seed and number that has given `drawn` words already.
  explicit Random(uint64_t seed, uint64_t stream = 0, uint64_t drawn = 0);
  /// Words given so far: next() takes one, uniform() two, normal() four, below() two or more.
  uint64_t drawn() const { return drawn_; }
  uint32_t next();
  /// Uniform in [0, 1).
  double uniform();
  /// Normal with mean 0 and variance 1 (Box-Muller).
  double normal();
  /// Uniform in [0, bound). Throws Error unless bound > 0.
  int64_t below(int64_t bound);

 private:
  void draw_block();
  uint64_t key_, stream_, drawn_;
  std::array<uint32_t, 4> words_{};
};

/// Fills a view of a floating type with normal numbers of mean 0 and this standard deviation, in index order. Throws
/// Error for another type, for a view without data and for a deviation that is not finite.
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
inline void fill_normal(const Array& x, Random& random, double deviation = 1) {
  fill_normal(x.flat(), random, deviation);
}

}  // namespace attn
#pragma GCC visibility pop
