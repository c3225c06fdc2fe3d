// Threads: parallel_for() over an executor, and the executor that is there by default, a persistent pool.
//
// How a job runs. The thread that claims the pool (busy_) publishes the tasks and a number of seats; workers take a
// seat each, and owner and workers draw tasks until there are none. Each begins with a share of its own, the same from
// job to job, so that it finds in its cache what it left there, and then helps with the others'. Then the owner
// withdraws the seats that are left and waits for the workers that sit. So a worker that comes late finds no seat and
// touches nothing, and the owner never waits for a thread that has not begun.
//
// What is followed by a notification is changed with sequential consistency: weaker orders let a processor look for
// sleepers before the change can be seen, and miss one.
//
// A caller that finds the pool busy runs its tasks itself. That one rule covers calls from many threads at once and
// calls from inside a task, and makes a deadlock impossible: nobody ever waits for the pool.
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/core.h"
#include "core/control_groups.h"
#include "core/profile.h"

namespace attn {
namespace {

// How long a worker looks out for the next job before it sleeps. An operator publishes several jobs in a row: a worker
// that spins begins the next one after 1 us, one that sleeps after 20 us (2 cores of an AMD EPYC, Linux 6.18). Spinning
// much longer than waking takes would only keep the core from others.
constexpr auto kSpinTime = std::chrono::microseconds(50);

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until `word` is no longer `old`: first spinning, then asleep until notified.
void wait_while(const std::atomic<uint32_t>& word, uint32_t old) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 16; ++i) {
      if (word.load(std::memory_order_acquire) != old) return;
      pause_cpu();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  word.wait(old, std::memory_order_acquire);
}

std::atomic<int> wanted_threads{0};  // 0 until it is set or first asked for

int own_thread_count() {
  int count = wanted_threads.load(std::memory_order_relaxed);
  if (count > 0) return count;
  const int available = std::clamp(available_processors(), 1, kMaxThreads);
  return wanted_threads.compare_exchange_strong(count, available) ? available : count;
}

class Pool {
 public:
  void run(int64_t tasks, TaskRef body);
  /// Ends all workers and leaves the pool claimed for ever: later jobs run on their callers alone. Does nothing while a
  /// job runs, for its workers may be waiting for the very thread that is calling.
  void close();
  /// In the child of a fork: the workers, and any job that was running, exist in the parent only.
  void forget_workers();

 private:
  static constexpr uint32_t kSeat = 1u << 16;  // state_ = free seats * kSeat + workers seated
  static constexpr uint32_t kSeated = kSeat - 1;

  void resize(int workers);
  void stop_workers();
  void publish(int64_t tasks, const TaskRef& body, int seats);
  void draw_tasks(int home);
  void retire();
  void serve(int worker);
  bool take_seat();
  static void* serve_pool(void* worker);

  /// Consecutive tasks that one thread begins with.
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  struct Worker {
    Pool* pool = nullptr;
    int number = 0;
    pthread_t thread{};
  };

  std::atomic<bool> busy_{false};  // owned by one caller; guards what follows
  std::atomic<bool> stopping_{false};
  std::atomic<uint32_t> jobs_{0};  // counts publications; workers wait for it to change
  std::atomic<uint32_t> state_{0};
  std::array<Share, kMaxThreads> shares_{};
  int share_count_ = 0;
  const TaskRef* body_ = nullptr;
  JobSpan span_;
  int workers_ = 0;
  std::array<Worker, kMaxThreads> worker_{};
};

void Pool::run(int64_t tasks, TaskRef body) {
  if (busy_.exchange(true, std::memory_order_acquire)) {
    for (int64_t task = 0; task < tasks; ++task) body(task);
    return;
  }
  const int wanted = own_thread_count() - 1;
  if (workers_ != wanted) resize(wanted);
  publish(tasks, body, static_cast<int>(std::min<int64_t>(workers_, tasks - 1)));
  draw_tasks(0);
  retire();
  busy_.store(false, std::memory_order_release);
}

void Pool::publish(int64_t tasks, const TaskRef& body, int seats) {
  body_ = &body;
  span_ = current_span();
  share_count_ = seats + 1;
  const int64_t least = tasks / share_count_, longer = tasks % share_count_;
  int64_t first = 0;
  for (int i = 0; i < share_count_; ++i) {
    Share& share = shares_[static_cast<size_t>(i)];
    share.next.store(first, std::memory_order_relaxed);
    share.end = first += least + (i < longer ? 1 : 0);
  }
  state_.store(static_cast<uint32_t>(seats) * kSeat, std::memory_order_release);
  jobs_.fetch_add(1);
  if (seats == workers_) {
    jobs_.notify_all();
  } else {
    for (int i = 0; i < seats; ++i) jobs_.notify_one();
  }
}

void Pool::draw_tasks(int home) {
  const TaskSpan span(span_);
  for (int i = 0; i < share_count_; ++i) {
    Share& share = shares_[static_cast<size_t>((home + i) % share_count_)];
    while (share.next.load(std::memory_order_relaxed) < share.end) {
      const int64_t task = share.next.fetch_add(1, std::memory_order_relaxed);
      if (task >= share.end) break;
      (*body_)(task);
    }
  }
}

void Pool::retire() {
  uint32_t seated = state_.fetch_and(kSeated, std::memory_order_acquire) & kSeated;
  while (seated != 0) {
    wait_while(state_, seated);
    seated = state_.load(std::memory_order_acquire);
  }
}

bool Pool::take_seat() {
  uint32_t state = state_.load(std::memory_order_relaxed);
  while (state >= kSeat) {
    if (state_.compare_exchange_weak(state, state - kSeat + 1, std::memory_order_acquire, std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void Pool::serve(int worker) {
  for (;;) {
    const uint32_t job = jobs_.load(std::memory_order_acquire);  // before looking for a seat, so that no job is missed
    if (stopping_.load(std::memory_order_relaxed)) return;
    if (take_seat()) {
      draw_tasks(worker + 1);
      if (state_.fetch_sub(1) == 1) state_.notify_one();
    }
    wait_while(jobs_, job);
  }
}

void* Pool::serve_pool(void* worker) {
  const Worker& self = *static_cast<Worker*>(worker);
  name_thread("worker " + std::to_string(self.number + 1));
  self.pool->serve(self.number);
  return nullptr;
}

void Pool::resize(int workers) {
  stop_workers();
  // Signals belong to the host's threads: a worker, which inherits this mask, takes none.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (workers_ < workers) {
    Worker& worker = worker_[static_cast<size_t>(workers_)];
    worker.pool = this;
    worker.number = workers_;
    if (pthread_create(&worker.thread, nullptr, serve_pool, &worker) != 0) break;
    ++workers_;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  // Where the system grants fewer threads, say so in thread_count() and do not try again at each call.
  int wanted = workers + 1;
  if (workers_ < workers) wanted_threads.compare_exchange_strong(wanted, workers_ + 1);
}

void Pool::stop_workers() {
  stopping_.store(true, std::memory_order_relaxed);
  jobs_.fetch_add(1);
  jobs_.notify_all();
  while (workers_ > 0) pthread_join(worker_[static_cast<size_t>(--workers_)].thread, nullptr);
  stopping_.store(false, std::memory_order_relaxed);
}

void Pool::close() {
  if (!busy_.exchange(true, std::memory_order_acquire)) stop_workers();
}

void Pool::forget_workers() {
  workers_ = 0;
  state_.store(0, std::memory_order_relaxed);
  stopping_.store(false, std::memory_order_relaxed);
  busy_.store(false, std::memory_order_relaxed);
}

// Initialised at compile time and never destroyed: usable by the first static object and by the last.
constinit Pool pool;
static_assert(std::is_trivially_destructible_v<Pool>);

// Ties the pool to the life of the process, or of the shared library that holds it.
struct Lifetime {
  Lifetime() {
    pthread_atfork(nullptr, nullptr, [] { pool.forget_workers(); });
  }
  ~Lifetime() { pool.close(); }
};
const Lifetime lifetime;

std::atomic<Executor*> host_executor{nullptr};

// The first exception of a job. Tasks run on threads that must not unwind into their executor.
class FirstFailure {
 public:
  void keep(std::exception_ptr failure) noexcept {
    if (!taken_.exchange(true, std::memory_order_relaxed)) failure_ = std::move(failure);
  }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::atomic<bool> taken_{false};
  std::exception_ptr failure_;
};

}  // namespace

void TaskRef::require(bool callable) {
  if (!callable) throw Error("parallel_for", {"the function of the tasks is null"});
}

namespace {

bool has_tasks(int64_t tasks) {
  if (tasks < 0)
    throw Error("parallel_for", {"the number of tasks is " + std::to_string(tasks) + ", must not be negative"});
  return tasks > 0;
}

/// Runs the tasks on a host's executor. Without NDEBUG it sees to it that each runs once.
void run_on(Executor& host, int64_t tasks, TaskRef body) {
#ifdef NDEBUG
  host.run(tasks, body);
#else
  std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
  const auto refuse = [&](int64_t task, const std::string& what) {
    throw Error("parallel_for", {"the executor " + what + " task " + std::to_string(task) + " of " +
                                 std::to_string(tasks) + ", must run each once"});
  };
  std::atomic<int64_t> outside{0};
  const auto counted = [&](int64_t task) {
    if (task < 0 || task >= tasks) outside = task;
    else if (runs[static_cast<size_t>(task)]++ == 0) body(task);
  };
  host.run(tasks, counted);
  if (outside != 0) refuse(outside, "ran");
  for (int64_t task = 0; task < tasks; ++task) {
    const int times = runs[static_cast<size_t>(task)];
    if (times != 1) refuse(task, times == 0 ? "did not run" : "ran " + std::to_string(times) + " times");
  }
#endif
}

}  // namespace

void parallel_for(int64_t tasks, TaskRef body) {
  if (!has_tasks(tasks)) return;
  if (tasks == 1) return body(0);
  FirstFailure failure;
  const auto guarded = [&](int64_t task) {
    try {
      body(task);
    } catch (...) {
      failure.keep(std::current_exception());
    }
  };
  if (Executor* host = host_executor.load(std::memory_order_acquire)) {
    run_on(*host, tasks, guarded);
  } else {
    pool.run(tasks, guarded);
  }
  failure.rethrow();
}

int thread_count() {
  Executor* host = host_executor.load(std::memory_order_acquire);
  return host ? std::clamp(host->threads(), 1, kMaxThreads) : own_thread_count();
}

void set_thread_count(int threads) {
  if (threads < 0 || threads > kMaxThreads)
    throw Error("set_thread_count", {"the number of threads is " + std::to_string(threads) +
                                     ", must be from 0 (one for each processor) to " + std::to_string(kMaxThreads)});
  wanted_threads.store(threads, std::memory_order_relaxed);
}

Executor& own_executor() {
  class Own final : public Executor {
   public:
    void run(int64_t tasks, TaskRef body) override {
      if (has_tasks(tasks)) pool.run(tasks, body);
    }
    int threads() const override { return own_thread_count(); }
  };
  static Own own;
  return own;
}

void set_executor(Executor* executor) { host_executor.store(executor, std::memory_order_release); }

}  // namespace attn
