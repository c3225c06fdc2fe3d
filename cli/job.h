// The processes that mpirun has started, as ranks of one job. attn needs no MPI: the module attn_mpi.so does, which is
// opened where an option as --data-parallel is given.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "attn/cluster_grid.h"

namespace CLI {
class App;
}

namespace cli {

/// What the launcher says to a process in its environment: how many there are, and which this one is.
struct Launched {
  int processes = 1;
  int rank = 0;
};
Launched launched();
/// A launcher kills all processes once one has failed. The other ranks wait here, so that rank 0 can write the message.
void wait_for_first_rank();

/// The name of a --sequence-schedule that is measured.
inline constexpr const char* kAuto = "auto";

/// What ranks share, as --data-parallel and the like say it; 0 where an option is not given.
struct Parallel {
  int64_t data = 0, sequence = 0, tensor = 0;
  std::string schedule = "ring";          ///< of sequences
  std::optional<double> wait_limit = {};  ///< --rank-timeout

  void add_data(CLI::App& command);
  void add_sequence(CLI::App& command);
  void add_schedule(CLI::App& command);  ///< after add_sequence()
  void add_tensor(CLI::App& command);
  void add_wait_limit(CLI::App& command);
  bool is_given() const { return data || sequence || tensor; }
  int64_t ranks() const {
    return std::max<int64_t>(data, 1) * std::max<int64_t>(sequence, 1) * std::max<int64_t>(tensor, 1);
  }
  attn::cluster::GridShape shape() const;  ///< with 1 where an option is not given
  std::string text() const;                ///< "--data-parallel 2 --tensor-parallel 2"
};

class Job {
 public:
  /// Joins the job of `attn command` if an option asks for it; else this process is alone. Only rank 0 writes to
  /// standard output and error from then on. Throws UsageError or AlreadySaid if the launcher has started another
  /// number of processes, and Error if there is no MPI.
  Job(const char* command, const Parallel& wanted);
  ~Job() { leave(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  bool is_shared() const { return shared_; }
  bool is_first() const { return ranks_->rank() == 0; }
  attn::cluster::Communicator& ranks() const { return *ranks_; }
  const attn::cluster::RankGrid& grid() const { return *grid_; }
  /// How ranks that share sequences exchange keys: as --sequence-schedule says, where auto is what `fastest` finds.
  void set_schedule(const Parallel& parallel, const std::function<attn::cluster::Schedule()>& fastest);
  /// The ranks that share the layers of a model; null where each has all.
  attn::cluster::Communicator* tensor_ranks() const;
  /// An even share of the cores for each rank that may use them, unless --threads is given.
  void share_threads(const CLI::App& command) const;
  /// Throws for all ranks unless all run the same version and instructions, and have the same of this.
  void require_same(const std::string& what, const std::string& mine) const;
  /// Ranks on this machine, and those of them that may use the same cores; this one is among both.
  int64_t on_machine() const { return on_machine_; }
  int64_t on_cores() const { return on_cores_; }

  /// Runs `work`. What it throws for all ranks is said by rank 0, and becomes AlreadySaid once all have left the job;
  /// anything else ends the processes of all ranks at once, after this rank has said why.
  void run(const std::function<void()>& work);

 private:
  void silence();
  void count_neighbours();
  /// Waits for the other ranks to leave as well.
  void leave();
  bool shared_ = false;
  bool with_mpi_ = false;
  int64_t on_machine_ = 1, on_cores_ = 1;
  attn::cluster::Communicator* ranks_;
  std::optional<attn::cluster::RankGrid> grid_;
  int standard_error_ = -1;  // of a rank that must not write, in case it ends all
};

}  // namespace cli
