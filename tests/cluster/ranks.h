// ranks: the ranks of the program under test, whichever MPI it is linked with.
#pragma once

#include <memory>
#include <vector>

#include "attn/cluster_grid.h"

namespace attn::test {

/// All ranks.
cluster::Communicator& world();
/// The first n of them; null on the others. All ranks call it.
std::unique_ptr<cluster::Communicator> first_ranks(int n);
/// The same as a grid, which owns its communicator.
inline std::shared_ptr<cluster::RankGrid> first_grid(int n, cluster::GridShape shape = {}) {
  const std::shared_ptr<cluster::Communicator> ranks = first_ranks(n);
  if (!ranks) return nullptr;
  return {new cluster::RankGrid(*ranks, shape), [ranks](cluster::RankGrid* grid) { delete grid; }};
}
/// All ranks, which share batches.
inline const cluster::RankGrid& world_grid() {
  static const cluster::RankGrid grid(world(), {});
  return grid;
}
/// Of one rank.
inline const cluster::RankGrid& one_rank_grid() {
  static const cluster::RankGrid grid;
  return grid;
}

/// Counts the bytes that the messages of a rank have.
class Counting : public cluster::Communicator {
 public:
  explicit Counting(cluster::Communicator& ranks) : ranks_(ranks) {}
  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  std::unique_ptr<cluster::Transfer> start(std::span<const cluster::Message> sent,
                                           std::span<const cluster::Message> received, int tag) override {
    for (const cluster::Message& message : sent) bytes += message.bytes;
    return ranks_.start(sent, received, tag);
  }
  void all_gather(const void* from, int64_t count, void* to) override { ranks_.all_gather(from, count, to); }
  std::unique_ptr<cluster::Communicator> split(int color) override { return ranks_.split(color); }

  int64_t bytes = 0;

 private:
  cluster::Communicator& ranks_;
};

/// Writes down the tags of messages, in the order in which they are started on any axis of a grid.
class Watching : public cluster::Communicator {
 public:
  Watching(cluster::Communicator& ranks, std::vector<int>& tags) : ranks_(ranks), tags_(tags) {}
  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  std::unique_ptr<cluster::Transfer> start(std::span<const cluster::Message> sent,
                                           std::span<const cluster::Message> received, int tag) override {
    tags_.push_back(tag);
    return ranks_.start(sent, received, tag);
  }
  void all_gather(const void* from, int64_t count, void* to) override { ranks_.all_gather(from, count, to); }
  std::unique_ptr<cluster::Communicator> split(int color) override {
    parts_.push_back(ranks_.split(color));
    return std::make_unique<Watching>(*parts_.back(), tags_);
  }
  int job_rank(int rank) const override { return ranks_.job_rank(rank); }

 private:
  cluster::Communicator& ranks_;
  std::vector<int>& tags_;
  std::vector<std::unique_ptr<cluster::Communicator>> parts_;
};

}  // namespace attn::test
