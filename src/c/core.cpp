// The functions of attn/c_core.h: tensors, threads, random numbers.
#include <deque>
#include <limits>
#include <mutex>

#include "c/arguments.h"

using attn::Random;
using attn::TaskRef;
using attn::c::Arguments;
using attn::c::guarded;

const char* attn_version() { return ATTN_VERSION; }

attn_tensor attn_dense(void* data, int32_t dtype, int32_t rank, const int64_t* size) {
  attn_tensor tensor{data, dtype, rank, {}, {}};
  if (rank < 1 || rank > 4 || size == nullptr) {
    tensor.rank = 0;
    return tensor;
  }
  int64_t next = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    tensor.size[axis] = size[axis];
    tensor.stride[axis] = next;
    // A stride that no address has: the call that gets it says so.
    if (__builtin_mul_overflow(next, size[axis], &next)) next = std::numeric_limits<int64_t>::max();
  }
  return tensor;
}

// ------------------------------------------------------------------------------------------------------------ threads

int32_t attn_thread_count() { return attn::thread_count(); }

attn_status attn_set_thread_count(int32_t threads) {
  return guarded([&] { attn::set_thread_count(threads); });
}

namespace {

/// The functions of a host as an executor.
class Host final : public attn::Executor {
 public:
  explicit Host(const attn_executor& host) : host_(host) {}
  void run(int64_t tasks, TaskRef body) override {
    host_.run(
        host_.context, tasks, [](void* job, int64_t task) { (*static_cast<TaskRef*>(job))(task); }, &body);
  }
  int threads() const override { return host_.threads(host_.context); }
  bool is(const attn_executor& other) const {
    return host_.context == other.context && host_.run == other.run && host_.threads == other.threads;
  }

 private:
  attn_executor host_;
};

/// The one of these functions. None is ever destroyed, as a call on another thread may still be in it.
Host& host_of(const attn_executor& executor) {
  static std::mutex mutex;
  static std::deque<Host>& hosts = *new std::deque<Host>;
  const std::lock_guard lock(mutex);
  for (Host& host : hosts)
    if (host.is(executor)) return host;
  return hosts.emplace_back(executor);
}

}  // namespace

attn_status attn_set_executor(const attn_executor* executor) {
  return guarded([&] {
    Arguments a("attn_set_executor");
    const attn_executor host = a.executor(executor);
    a.done();
    attn::set_executor(executor ? &host_of(host) : nullptr);
  });
}

attn_status attn_parallel_for(int64_t tasks, attn_task body, void* job) {
  return guarded([&] {
    Arguments a("attn_parallel_for");
    a.given("body", reinterpret_cast<const void*>(body));
    a.done();
    attn::parallel_for(tasks, [&](int64_t task) { body(job, task); });
  });
}

// ----------------------------------------------------------------------------------------------------- random numbers

attn_status attn_philox(uint64_t key, const uint32_t* counter, uint32_t* words) {
  return guarded([&] {
    Arguments a("attn_philox");
    a.given("counter", counter);
    a.given("words", words);
    a.done();
    const std::array<uint32_t, 4> drawn = attn::philox(key, {counter[0], counter[1], counter[2], counter[3]});
    std::copy(drawn.begin(), drawn.end(), words);
  });
}

namespace {

/// draw(stream) goes to `value`, and the stream has moved on, unless it throws.
template <class Value, class Draw>
attn_status drawn(const char* function, attn_random* random, Value* value, const Draw& draw) {
  return guarded([&] {
    Arguments a(function);
    a.given("random", random);
    a.given(std::is_same_v<Value, uint32_t> ? "word" : "value", value);
    a.done();
    Random stream(random->seed, random->stream, random->drawn);
    *value = draw(stream);
    random->drawn = stream.drawn();
  });
}

}  // namespace

attn_status attn_random_next(attn_random* random, uint32_t* word) {
  return drawn("attn_random_next", random, word, [](Random& stream) { return stream.next(); });
}

attn_status attn_random_uniform(attn_random* random, double* value) {
  return drawn("attn_random_uniform", random, value, [](Random& stream) { return stream.uniform(); });
}

attn_status attn_random_normal(attn_random* random, double* value) {
  return drawn("attn_random_normal", random, value, [](Random& stream) { return stream.normal(); });
}

attn_status attn_random_below(attn_random* random, int64_t bound, int64_t* value) {
  return drawn("attn_random_below", random, value, [&](Random& stream) { return stream.below(bound); });
}

attn_status attn_fill_normal(attn_random* random, double deviation, const attn_tensor* x) {
  return guarded([&] {
    Arguments a("attn_fill_normal");
    a.needed("random", random);
    const attn_tensor filled = a.any_rank("x", x);
    const attn::DType dtype = a.dtype("x", filled.dtype);
    a.call([&] {
      Random stream(random->seed, random->stream, random->drawn);
      attn::fill_normal(stream, deviation, filled.data, dtype, filled.size, filled.stride, filled.rank);
      random->drawn = stream.drawn();
    });
  });
}
