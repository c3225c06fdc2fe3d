// The axes of a grid of ranks, each with a communicator of its own.
#include "attn/cluster_grid.h"
#include "cluster/call.h"
#include "core/checker.h"

namespace attn::cluster {
namespace {

/// With the axis that was given as 0.
GridShape completed(GridShape shape, int ranks) {
  int known = 1;
  for (const int axis : {shape.data, shape.sequence, shape.tensor})
    if (axis > 0) known *= axis;
  for (int* axis : {&shape.data, &shape.sequence, &shape.tensor})
    if (*axis == 0) *axis = std::max(1, ranks / known), known *= *axis;
  return shape;
}

}  // namespace

RankGrid::RankGrid() : RankGrid(one_rank(), {}) {}

RankGrid::RankGrid(Communicator& all, GridShape shape) : shape_(completed(shape, all.size())), all_(&all) {
  const int64_t product = int64_t{shape_.data} * shape_.sequence * shape_.tensor;
  Checker checker("RankGrid");
  checker.require(shape_.data > 0 && shape_.sequence > 0 && shape_.tensor > 0 && product == all.size(), [&] {
    return "the axes are data " + std::to_string(shape_.data) + " x sequence " + std::to_string(shape_.sequence) +
           " x tensor " + std::to_string(shape_.tensor) + ", must multiply to the number of ranks, " +
           std::to_string(all.size());
  });
  checker.done();
  const int S = shape_.sequence, T = shape_.tensor, t = all.rank() % T, s = all.rank() / T % S, d = data_place();
  tensor_ = &axis(own_tensor_, T, d * S + s);
  sequence_ = &axis(own_sequence_, S, d * T + t);
  replicas_ = &axis(own_replicas_, shape_.data * S, t);
}

Communicator& RankGrid::axis(std::unique_ptr<Communicator>& own, int size, int color) {
  if (size == 1) return one_rank();
  if (size == all_->size()) return *all_;
  own = all_->split(color);
  return *own;
}

void RankGrid::set_schedule(Schedule schedule) {
  Checker checker("RankGrid");
  check_groups(checker, schedule, shape_.sequence);
  checker.done();
  schedule_ = schedule;
}

// Each rank says once to every communicator that it fails, so that no other rank waits for it there.

void on_all_ranks(const RankGrid& grid, const std::string& step, const std::function<void()>& work) {
  on_all_ranks(grid.all(), step, [&] { on_ranks_of_batch(grid, step, work); });
}

void on_ranks_of_batch(const RankGrid& grid, const std::string& step, const std::function<void()>& work) {
  on_all_ranks(grid.tensor(), step, [&] { on_all_ranks(grid.sequence(), step, work); });
}

}  // namespace attn::cluster
