#include "executor.h"

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

#include "attn/core.h"

namespace bindings {
namespace {

namespace nb = nanobind;
using Clock = std::chrono::steady_clock;
using Parallel = void (*)(void (*function)(void*), void* data, unsigned threads, unsigned flags);
using MaxThreads = int (*)();

constexpr auto kBetweenChecks = std::chrono::milliseconds(50);

std::atomic<Parallel> team_parallel{nullptr};
std::atomic<MaxThreads> team_threads{nullptr};
pid_t team_process = 0;
std::thread::id main_thread;

/// One job on an OpenMP team: every thread draws tasks until none is left. They do not throw: parallel_for() sees to
/// it.
struct Region {
  attn::TaskRef body;
  int64_t tasks;
  std::atomic<int64_t> next{0};

  static void work(void* data) {
    Region& region = *static_cast<Region*>(data);
    for (int64_t task; (task = region.next.fetch_add(1)) < region.tasks;) region.body(task);
  }
};

class PythonExecutor final : public attn::Executor {
 public:
  void run(int64_t tasks, attn::TaskRef body) override {
    if (std::this_thread::get_id() != main_thread) return run_on_threads(tasks, body);
    // Python handles signals on the main thread alone, which is one of those that draw tasks.
    std::atomic<bool> interrupted{false};
    std::exception_ptr signal;
    Clock::time_point checked = Clock::now();
    const auto interruptible = [&](int64_t task) {
      if (interrupted.load(std::memory_order_relaxed)) return;
      body(task);
      if (std::this_thread::get_id() != main_thread || Clock::now() - checked < kBetweenChecks) return;
      const nb::gil_scoped_acquire locked;
      if (PyErr_CheckSignals() != 0) {
        signal = std::make_exception_ptr(nb::python_error());
        interrupted.store(true, std::memory_order_relaxed);
      }
      checked = Clock::now();
    };
    run_on_threads(tasks, interruptible);
    if (signal) std::rethrow_exception(signal);
  }

  int threads() const override {
    const MaxThreads max_threads = team_threads.load();
    return max_threads ? std::max(max_threads(), 1) : attn::own_executor().threads();
  }

 private:
  void run_on_threads(int64_t tasks, attn::TaskRef body) {
    const Parallel parallel = team_parallel.load();
    // A team does not live on in the child of a fork: starting it there would wait for ever.
    if (!parallel || getpid() != team_process) return attn::own_executor().run(tasks, body);
    Region region{body, tasks};
    const int64_t wanted = std::min<int64_t>(tasks, threads());
    if (wanted <= 1) Region::work(&region);
    else parallel(Region::work, &region, static_cast<unsigned>(wanted), 0);
  }
};

PythonExecutor executor;

}  // namespace

void install_executor() {
  main_thread = std::this_thread::get_id();
  attn::set_executor(&executor);
}

void use_openmp_team(uintptr_t gomp_parallel, uintptr_t omp_get_max_threads) {
  team_process = getpid();
  team_threads.store(reinterpret_cast<MaxThreads>(omp_get_max_threads));
  team_parallel.store(reinterpret_cast<Parallel>(gomp_parallel));
}

bool uses_openmp_team() { return team_parallel.load() != nullptr; }

}  // namespace bindings
