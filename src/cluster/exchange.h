// How keys and values come from other ranks while a rank computes, and how it goes through pairs of chunks.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "cluster/call.h"

namespace attn::cluster {

/// Message tags: what is sent forward and back in one call must not be mistaken for each other.
enum Tag { kKeys = 1, kGradients = 2 };

/// Keys and values of a chunk.
struct ChunkKeys {
  ConstView<4> k, v;  // [B, Hk, n, D] and [B, Hk, n, Dv]
};

/// Keys and values of all ranks, one rank in each step: its own, then those of the rank before it, and so on. A chunk
/// that no query of the rank may attend to does not come.
class KeyExchange {
 public:
  /// k and v are the rank's own. `ahead` steps are under way while one is used.
  KeyExchange(Communicator& ranks, const Whole& whole, const ConstView<4>& k, const ConstView<4>& v, int ahead);

  /// The rank whose keys come in a step.
  int source(int step) const { return (rank_ - step + size_) % size_; }
  /// Starts what is to be under way, and waits for the keys of the step. Steps are asked for in order.
  void enter(int step);
  /// The keys at a place of the rank of this step, to which some query of this rank may attend.
  ChunkKeys keys(int64_t place) const;
  /// Lets messages proceed.
  void progress();

  /// The most memory of keys and values of other ranks that a rank needs.
  static int64_t buffer_bytes(const Whole& whole, int rank, int ahead);

 private:
  struct Step {
    int number = 0;
    std::vector<int64_t> places, offsets;  // in `memory`
    Buffer memory;
    std::unique_ptr<Transfer> transfer;
  };

  void start(int step);
  void pack_own();

  Communicator& ranks_;
  const Whole& whole_;
  const ConstView<4> k_, v_;
  const int rank_, size_, ahead_;
  const RankChunks own_;
  Buffer packed_;                   // the chunks that others need, as they are sent
  std::vector<int64_t> packed_at_;  // by place - own_.first(); -1: nobody needs it
  std::deque<Step> steps_;          // that of enter(), and those under way
  int started_ = 0;
};

/// Steps under way for a schedule.
inline int steps_ahead(Schedule::Keys keys, int ranks) { return keys == Schedule::Keys::gather ? ranks : 1; }

}  // namespace attn::cluster
