// cluster_grid: the ranks of a job as a grid, for models whose ranks share batches, sequences and layers at a time.
//
// ```cpp
// #include <cstdio>
// #include "attn/cluster_grid.h"
// int main() {
//   attn::cluster::Communicator& ranks = attn::cluster::one_rank();  // or those of attn/cluster_mpi.h
//   const attn::cluster::RankGrid grid(ranks, {.data = 0, .tensor = 1});  // 0: all that the others leave
//   std::printf("%d ranks share batches, %d each layer\n", grid.shape().data, grid.shape().tensor);
// }
// ```
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "attn/cluster.h"

#pragma GCC visibility push(default)
namespace attn::cluster {

/// How many ranks share what. 0 of one axis: as many as there are for the others.
struct GridShape {
  int data = 0;      ///< the batches of an update (data parallelism),
  int sequence = 1;  ///< the tokens of each sequence (sequence parallelism),
  int tensor = 1;    ///< the heads and features of each layer (tensor parallelism)
};

/// The ranks of a job as a grid of three axes. Rank (d S + s) T + t has the places d, s and t of the axes.
class RankGrid {
 public:
  /// This process alone.
  RankGrid();
  /// All ranks call it. Borrows `all`. Throws Error unless the axes multiply to the number of ranks.
  RankGrid(Communicator& all, GridShape shape);

  const GridShape& shape() const { return shape_; }
  Communicator& all() const { return *all_; }
  /// The ranks that differ from this one in s alone,
  Communicator& sequence() const { return *sequence_; }
  /// in t alone: together they have a whole model;
  Communicator& tensor() const { return *tensor_; }
  /// and in d and s: they have the same part of it.
  Communicator& replicas() const { return *replicas_; }
  /// How the ranks of sequence() exchange keys in attention; at first Schedule::ring.
  Schedule schedule() const { return schedule_; }
  /// All ranks set the same. Throws Error for groups that do not divide the ranks of sequence().
  void set_schedule(Schedule schedule);
  int data_place() const { return all_->rank() / (shape_.sequence * shape_.tensor); }

 private:
  Communicator& axis(std::unique_ptr<Communicator>& own, int size, int color);
  GridShape shape_;
  Schedule schedule_;
  Communicator *all_, *sequence_, *tensor_, *replicas_;
  std::unique_ptr<Communicator> own_sequence_, own_tensor_, own_replicas_;
};

/// on_all_ranks(grid.all(), ..) for work that has calls over the axes too: an error that the ranks of an axis have
/// found is passed on to all,
void on_all_ranks(const RankGrid& grid, const std::string& step, const std::function<void()>& work);
/// or to the ranks alone that compute a batch together, which differ from this one in s and t.
void on_ranks_of_batch(const RankGrid& grid, const std::string& step, const std::function<void()>& work);

}  // namespace attn::cluster
#pragma GCC visibility pop
