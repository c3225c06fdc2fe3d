// profile: what a program spends its time on. While a Profiler exists, every operation of the library reports a span:
// its name and shape, when it began and ended, and the work that its shape implies. Layers, tapes, training and
// generation group them by name, and so can you.
//
// ```cpp
// #include <cstdio>
// #include "attn/attention.h"
// #include "attn/profile.h"
// int main() {
//   attn::Tensor<float, 4> q({1, 8, 512, 64}), out({1, 8, 512, 64});
//   attn::Profiler profiler;
//   { const attn::ProfileSpan span("my layer"); attn::attention(q, q, q, out); }
//   for (const attn::ProfileRow& row : attn::summarize(profiler.take_spans()))
//     std::printf("%s %s: %.3f ms\n", row.scope.c_str(), row.operation.c_str(), 1e3 * row.seconds);
// }
// ```
//
// Without a Profiler a span costs one load of a flag. With one, it costs 0.1 to 0.2 microseconds.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/tensor.h"

#pragma GCC visibility push(default)
namespace attn {

// ------------------------------------------------------------------------------------------------------------- memory

/// Bytes of the arrays, buffers and scratch of this process that are in use, large ones as whole pages of 2 MiB; memory
/// that a tape keeps for its next arrays does not count.
int64_t memory_in_use();
/// The largest memory_in_use() since reset_memory_peak(). It is tracked while a Profiler exists.
int64_t memory_peak();
/// Sets the peak to the memory that is in use now.
void reset_memory_peak();
/// Bytes of the scratch of all threads, which is part of memory_in_use().
int64_t scratch_in_use();

// -------------------------------------------------------------------------------------------------------------- spans

/// The extents that decide how much an operation has to do, at most six: M, K and N of a product [M, K] x [K, N].
class OperationShape {
 public:
  OperationShape() = default;
  OperationShape(std::initializer_list<int64_t> extents) : rank_(static_cast<int>(extents.size())) {
    std::copy(extents.begin(), extents.end(), extents_.begin());
  }
  std::string text() const;  ///< "512 x 768 x 2304"

 private:
  std::array<int64_t, 6> extents_{};
  int rank_ = 0;
};

/// What an operation is, from its arguments alone.
struct OperationWork {
  OperationShape shape = {};
  /// Multiply-adds of its products, each counted as two; 0 of an operation without products, such as a norm.
  double flops = 0;
  /// Bytes of its arguments and results, each counted once: the least that moves between memory and processor.
  double bytes = 0;
};

enum class SpanKind {
  scope,      ///< a name for what happens inside: a layer, a step of training
  operation,  ///< a call of an operator, as attention or matmul
  task        ///< what one thread of the library's pool did of a parallel_for()
};
constexpr auto enum_names(SpanKind) { return std::to_array<std::string_view>({"scope", "operation", "task"}); }

struct Span {
  std::string name = {};
  SpanKind kind = SpanKind::scope;
  int64_t id = 0;
  int64_t parent = 0;       ///< id of the innermost span that was open on its thread; 0 = none
  int32_t thread = 0;       ///< index into Profiler::threads()
  int64_t begin = 0;        ///< nanoseconds since the Profiler was made
  int64_t end = 0;          ///< the same
  OperationWork work = {};  ///< of an operation
  int64_t peak = 0;         ///< the largest memory_in_use() while it was open, of the whole process; 0 of a task
};

struct ProfilerOptions {
  /// Called with each span when it ends, by one thread at a time; spans are then not kept. It must not call the
  /// library.
  std::function<void(Span&&)> on_span = {};
  bool tasks = false;  ///< also spans of what each thread of the pool did
};

/// Collects the spans of all threads from its construction to stop().
class Profiler {
 public:
  /// Throws Error if another Profiler collects.
  explicit Profiler(ProfilerOptions options = {});
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Ends the collection. Spans that are open are dropped.
  void stop();
  /// The spans that have ended since the last call, in the order of their ends: a span is after those inside it.
  std::vector<Span> take_spans();
  /// Names of the threads that have reported to any Profiler: "main" is the one that made the first, "worker 1" the
  /// first of the pool. A thread keeps its index.
  std::vector<std::string> threads() const;
};

namespace detail {
extern std::atomic<bool> profiling;
}  // namespace detail
/// True while a Profiler collects.
inline bool is_profiling() { return detail::profiling.load(std::memory_order_relaxed); }

/// A span from its construction to its destruction, on the thread of both.
class ProfileSpan {
 public:
  explicit ProfileSpan(std::string_view scope) {
    if (is_profiling()) open(scope, SpanKind::scope, {});
  }
  /// `work` returns the OperationWork of the operation; it is called only if a Profiler collects.
  template <class Work>
  ProfileSpan(std::string_view operation, const Work& work) {
    if (is_profiling()) open(operation, SpanKind::operation, work());
  }
  ~ProfileSpan() {
    if (id_ != 0) close();
  }
  ProfileSpan(const ProfileSpan&) = delete;
  ProfileSpan& operator=(const ProfileSpan&) = delete;

 private:
  void open(std::string_view name, SpanKind kind, const OperationWork& work);
  void close();
  int64_t id_ = 0;
};

/// The bytes of an array of this shape; 0 of a view without data.
template <class Pointer, int Rank>
double bytes_of(const BasicView<Pointer, Rank>& x) {
  return x.data ? static_cast<double>(x.count() * size_of(x.dtype)) : 0;
}

// ------------------------------------------------------------------------------------------------------------ summary

/// All calls of an operation with one shape in one scope.
struct ProfileRow {
  std::string scope = {};  ///< the names of the open spans, joined by "/", as "forward/block 3/attention/qkv"
  /// Empty for the time of a scope that none of its operations and inner scopes took.
  std::string operation = {};
  std::string shape = {};
  int64_t calls = 0;
  double seconds = 0;           ///< without the spans inside
  double flops = 0, bytes = 0;  ///< of all calls, see OperationWork
  int64_t peak = 0;             ///< the largest Span::peak
};

/// Rows in the order of first calls. Their seconds add up to those of the outermost spans; tasks are left out. `merge`
/// maps the name of a scope to the name that it has in the rows, as "block 3" to "block *"; null = as it is.
std::vector<ProfileRow> summarize(std::span<const Span> spans,
                                  const std::function<std::string(const std::string&)>& merge = {});

}  // namespace attn
#pragma GCC visibility pop
