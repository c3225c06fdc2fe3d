// autograd_ranks: sequences and layers that several ranks share, on the tape.
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

#include <span>
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
  SharedSequence(cluster::Communicator& ranks, cluster::Placement placement, uint64_t seed = 0,
                 cluster::Schedule schedule = cluster::Schedule::ring);

  cluster::Communicator& ranks() const { return *ranks_; }
  const cluster::Placement& placement() const { return placement_; }
  uint64_t seed() const { return seed_; }
  /// How attention() exchanges keys.
  cluster::Schedule schedule() const { return schedule_; }
  /// The tokens of this rank,
  int64_t tokens() const { return std::ssize(positions_); }
  /// and their positions in the whole.
  const std::vector<int64_t>& positions() const { return positions_; }

 private:
  cluster::Communicator* ranks_;
  cluster::Placement placement_;
  uint64_t seed_;
  cluster::Schedule schedule_;
  std::vector<int64_t> positions_;
};

// ------------------------------------------------------------------------------------------------------ shared layers
//
// Ranks that share a layer each have some of its heads or features (tensor parallelism, Shoeybi et al. 2019,
// arXiv:1909.08053). What goes into the layer, x, and what comes out has the same bits on all of them. Sums are in
// float32, or float64, in the order of ranks. All ranks call these functions alike, and borrow `ranks` until the
// backward has run.

/// x, whose gradient is the sum of those of all ranks. x [.., C].
Value shared_input(Tape& tape, const Value& x, cluster::Communicator& ranks);
/// The sum of x over the ranks, + bias + residual, as `output`. x and residual [.., C]; bias [C] float32 or float64.
Value sum_over_ranks(Tape& tape, const Value& x, cluster::Communicator& ranks, DType output, const Value& bias = {},
                     const Value& residual = {});
/// embedding() where the rank's table [V', C] has the rows from `first` on of a table that the ranks share. An id that
/// no rank has gives zeros.
Value embedding_over_ranks(Tape& tape, std::span<const int64_t> ids, const Value& table, int64_t first,
                           std::vector<int64_t> shape, cluster::Communicator& ranks);
/// The columns of all ranks side by side. x [.., C], with a C of each rank.
Value gather_columns(Tape& tape, const Value& x, cluster::Communicator& ranks);
/// Columns of x from `first` on, as many as the weight [n] has: this rank's part of `whole` columns that ranks share.
struct SharedColumns {
  int64_t first = 0, whole = 0;
  bool counts = true;  ///< no rank before this one has the same columns
  Value weight = {};
};
/// rms_norm() over the columns of all ranks, of each of the parts; copies the other columns of x [.., C].
Value rms_norm_over_ranks(Tape& tape, const Value& x, std::vector<SharedColumns> parts, double epsilon,
                          cluster::Communicator& ranks);
/// cross_entropy() where the rank's logits [R, V'], float32 or float64, are the columns from `first` on of those that
/// the ranks share. Throws Error for a target that no rank has, or several.
Value cross_entropy_over_ranks(Tape& tape, const Value& logits, const std::vector<int64_t>& targets,
                               std::vector<double> weights, int64_t first, cluster::Communicator& ranks);

}  // namespace attn::autograd
#pragma GCC visibility pop
