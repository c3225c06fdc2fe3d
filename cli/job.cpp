#include "job.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <malloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attn/c_core.h"
#include "commands.h"
#include "mpi_module.h"
#include "options.h"
#include "output.h"

namespace cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModule = "attn_mpi.so";
constexpr double kWaitLimit = 1800;  // seconds, as torch.distributed has it

/// What CLI11 says of a name; nothing if it is right.
std::string wrong_schedule(const std::string& name) {
  try {
    if (name != kAuto) attn::cluster::Schedule::named(name);
    return "";
  } catch (const attn::Error& error) {
    return error.reasons().front() + "; or auto";
  }
}

/// The first of these variables that is a number.
std::optional<int> number_in(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const char* text = std::getenv(name)) return std::atoi(text);
  return std::nullopt;
}

/// Beside the program, or where it is installed.
void* open_module() {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  for (const fs::path& path : {folder / kModule, folder / ATTN_MODULES / kModule}) {
    if (!fs::exists(path)) continue;
    if (void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) return module;  // MPI opens modules that need it
    throw attn::Error("job", {fmt::format("MPI cannot be loaded: {}", dlerror())});
  }
  throw attn::Error("job", {fmt::format("this attn was built without MPI, there is no {}: build it where CMake finds "
                                        "MPI 3 (Debian: libopenmpi-dev)",
                                        kModule)});
}

template <class Function>
Function* symbol(const char* name) {
  static void* const module = open_module();
  return reinterpret_cast<Function*>(dlsym(module, name));
}

attn::cluster::Communicator* start_mpi(double wait_limit) {
  const char* reason = nullptr;
  attn::cluster::Communicator* ranks = symbol<decltype(attn_mpi_start)>("attn_mpi_start")(wait_limit, &reason);
  if (!ranks) throw attn::Error("job", {reason});
  return ranks;
}

}  // namespace

Launched launched() {
  return {number_in({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}).value_or(1),
          number_in({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}).value_or(0)};
}

void wait_for_first_rank() { sleep(10); }

void Parallel::add_data(CLI::App& command) {
  command
      .add_option("--data-parallel", data,
                  "ranks that share the batches of an update, the processes of mpirun -n; 0 = one process, without MPI")
      ->check(whole(0, 1 << 20));
}

void Parallel::add_sequence(CLI::App& command) {
  command
      .add_option("--sequence-parallel", sequence,
                  "ranks that share the tokens of each sequence, for language models with long contexts; 0 = none")
      ->check(whole(0, 1 << 20));
}

void Parallel::add_schedule(CLI::App& command) {
  command
      .add_option("--sequence-schedule", schedule,
                  "how ranks that share sequences exchange keys: ring, gather, heads, or heads:n in groups of n ranks; "
                  "auto measures which takes the least time")
      ->check(CLI::Validator(wrong_schedule, "NAME"))
      ->needs(command.get_option("--sequence-parallel"));
}

void Parallel::add_tensor(CLI::App& command) {
  command
      .add_option("--tensor-parallel", tensor,
                  "ranks that share the heads and features of each layer, for models larger than a machine; 0 = none")
      ->check(whole(0, 1 << 20));
}

void Parallel::add_wait_limit(CLI::App& command) {
  command
      .add_option(
          "--rank-timeout", wait_limit,
          "seconds that ranks wait for one that does not answer before they end the job; default 1800, 0 = forever")
      ->check(number(0, 1e9));
}

attn::cluster::GridShape Parallel::shape() const {
  const auto extent = [](int64_t ranks) { return static_cast<int>(std::max<int64_t>(ranks, 1)); };
  return {extent(data), extent(sequence), extent(tensor)};
}

std::string Parallel::text() const {
  std::string all;
  for (const auto& [name, ranks] : {std::pair("data", data), {"sequence", sequence}, {"tensor", tensor}})
    if (ranks > 0) all += fmt::format("{}--{}-parallel {}", all.empty() ? "" : " ", name, ranks);
  return all;
}

Job::Job(const char* command, const Parallel& parallel)
    : shared_(parallel.is_given()), ranks_(&attn::cluster::one_rank()), grid_(std::in_place) {
  const int started = launched().processes;
  const int64_t wanted = parallel.ranks();
  if (!shared_ && started > 1)
    throw UsageError(fmt::format("there are {0} processes: {1} {0} makes them work together", started,
                                 std::string_view(command) == "train" ? "--data-parallel" : "--tensor-parallel"));
  if (!shared_ && parallel.wait_limit)
    throw UsageError("--rank-timeout is for ranks, as those of --data-parallel: there is one process");
  if (wanted <= 1 && started == 1) return;
  // What calls over ranks use for a moment goes back to the system, and leaves no holes between arrays that stay.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  ranks_ = start_mpi(parallel.wait_limit.value_or(kWaitLimit));
  with_mpi_ = true;
  if (ranks_->rank() > 0) silence();
  if (const int size = ranks_->size(); size != wanted) {
    if (size < started)
      say("attn: MPI knows {} of {} processes: the launcher belongs to another MPI than {}\n", size, started, kModule);
    else
      say("attn: {} needs {} processes, and there {}: mpirun -n {} attn {} ...\n", parallel.text(), wanted,
          size == 1 ? "is 1" : fmt::format("are {}", size), wanted, command);
    leave();
    throw AlreadySaid{2};
  }
  count_neighbours();
  grid_.emplace(*ranks_, parallel.shape());
}

void Job::set_schedule(const Parallel& parallel, const std::function<attn::cluster::Schedule()>& fastest) {
  grid_->set_schedule(parallel.schedule == kAuto ? fastest() : attn::cluster::Schedule::named(parallel.schedule));
}

attn::cluster::Communicator* Job::tensor_ranks() const {
  return grid_->tensor().size() > 1 ? &grid_->tensor() : nullptr;
}

void Job::share_threads(const CLI::App& command) const {
  if (shared_ && command.get_parent()->count("--threads") == 0)
    attn::set_thread_count(std::max<int>(1, attn::thread_count() / static_cast<int>(on_cores_)));
}

void Job::require_same(const std::string& what, const std::string& mine) const {
  attn::cluster::require_same(*ranks_, "version", attn_version());
  attn::cluster::require_same(*ranks_, "instruction set", attn::active_isa());
  attn::cluster::require_same(*ranks_, what, mine);
}

void Job::leave() {
  grid_.emplace();
  ranks_ = &attn::cluster::one_rank();
  if (std::exchange(with_mpi_, false)) symbol<decltype(attn_mpi_end)>("attn_mpi_end")();
}

void Job::silence() {
  standard_error_ = dup(STDERR_FILENO);
  const int nothing = open("/dev/null", O_WRONLY);
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, stream);
  close(nothing);
}

void Job::count_neighbours() {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof cores, &cores);
  const std::string machine(host, sizeof host),
      place = machine + std::string(reinterpret_cast<char*>(&cores), sizeof cores);
  const std::vector<std::string> all = attn::cluster::gather(*ranks_, place);
  on_cores_ = std::count(all.begin(), all.end(), place);
  on_machine_ = std::count_if(all.begin(), all.end(), [&](const std::string& one) { return one.starts_with(machine); });
}

void Job::run(const std::function<void()>& work) {
  if (!with_mpi_) return work();
  std::string reason;
  try {
    return work();
  } catch (const attn::cluster::RanksError& error) {
    say("attn: {}\n", joined(error.reasons(), "; "));
    leave();
    throw AlreadySaid{1};
  } catch (const std::exception& error) {
    reason = error.what();
  }
  if (standard_error_ >= 0) dup2(standard_error_, STDERR_FILENO);
  say("attn: rank {}: {}\n", ranks_->rank(), reason);
  symbol<decltype(attn_mpi_abort)>("attn_mpi_abort")(1);
}

}  // namespace cli
