// autograd_ranks: sequences that several ranks share, on the tape.
//
// ```cpp
// #include "attn/autograd_ranks.h"
// using namespace attn;
// int main() {
//   cluster::Communicator& ranks = cluster::one_rank();  // or those of attn/cluster_mpi.h
//   const autograd::SharedSequence sequence(ranks, cluster::Placement::zigzag(32, ranks.size(), 8));
//   autograd::Tape tape({.record = true});
//   const autograd::Value qkv(Array(DType::float32, {1, sequence.tokens(), 3 * 16}), true);  // of this rank's tokens
//   autograd::attention(tape, {qkv, 0, 2, 8}, {qkv, 16, 2, 8}, {qkv, 32, 2, 8}, {.causal = true}, {}, nullptr, {},
//                       &sequence);
// }
// ```
#pragma once

#include <vector>

#include "attn/autograd.h"
#include "attn/cluster.h"

#pragma GCC visibility push(default)
namespace attn::autograd {

/// Which tokens of a sequence this rank has, and the ranks that have the others: attention() exchanges keys with them.
/// All ranks record the same operations, and run the backward together.
class SharedSequence {
 public:
  /// Borrows the ranks. `seed` of the dropout of attention weights is the same on all ranks; other dropout should have
  /// another seed on each (TapeOptions::seed). Throws Error if the placement is for another number of ranks, or leaves
  /// this rank without tokens.
  SharedSequence(cluster::Communicator& ranks, cluster::Placement placement, uint64_t seed = 0);

  cluster::Communicator& ranks() const { return *ranks_; }
  const cluster::Placement& placement() const { return placement_; }
  uint64_t seed() const { return seed_; }
  /// The tokens of this rank,
  int64_t tokens() const { return std::ssize(positions_); }
  /// and their positions in the whole.
  const std::vector<int64_t>& positions() const { return positions_; }

 private:
  cluster::Communicator* ranks_;
  cluster::Placement placement_;
  uint64_t seed_;
  std::vector<int64_t> positions_;
};

}  // namespace attn::autograd
#pragma GCC visibility pop
