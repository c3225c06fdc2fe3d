// models_ranks: how ranks share the sequences of a model: which tokens each has, and how they exchange keys.
//
// ```cpp
// #include "attn/models_ranks.h"
// using namespace attn;
// int main() {
//   cluster::Communicator& ranks = cluster::one_rank();  // or those of attn/cluster_mpi.h
//   models::Config config = models::family("llama");
//   config.vocab_size = 100;
//   const models::Model model(config, nn::Precision::float32, 1);
//   const models::Batch text = {.tokens = {5, 7, 9, 8}, .targets = {7, 9, 8, 5}, .sequences = 1, .length = 4};
//   const autograd::SharedSequence sequence(ranks, models::placement_for(config, text.length, ranks.size()));
//   autograd::Tape tape;
//   model.loss(tape, shard_of(text, sequence), {.sequence = &sequence});  // this rank's part of the loss
// }
// ```
#pragma once

#include "attn/autograd_ranks.h"
#include "attn/cluster_grid.h"
#include "attn/models.h"

#pragma GCC visibility push(default)
namespace attn::models {

/// Which tokens each rank has, for models of this configuration. With a causal mask all ranks have the same work; with
/// a window a rank exchanges keys with its neighbours alone.
cluster::Placement placement_for(const Config& config, int64_t tokens, int ranks);

/// This rank's tokens of sequences of the placement's length. Throws Error for other batches: padded, packed or empty.
Batch shard_of(const Batch& batch, const autograd::SharedSequence& sequence);

/// The schedule of attention that is expected to take the least time in sequences of `tokens`, with a backward or
/// without. All ranks of the grid call it and get the same: it measures messages and chunks on all of them at once, as
/// cluster::measure_costs(). `dtype` is the type of the computation. Throws Error as check_sequence_ranks().
cluster::Schedule choose_schedule(const Config& config, int64_t tokens, DType dtype, const cluster::RankGrid& grid,
                                  bool backward);

/// Bytes that ranks which share sequences need beyond their own tokens' arrays, for each sequence of `tokens` that they
/// train on at once: keys and values of other ranks and gradients on their way, of one layer at a time. An upper bound,
/// reached by a rank that attends to all tokens before its own. `dtype` is the type of the computation. Throws Error if
/// the schedule's groups do not divide the ranks.
double exchange_bytes(const Config& config, int64_t tokens, DType dtype, const cluster::GridShape& ranks,
                      const cluster::Schedule& schedule);

}  // namespace attn::models
#pragma GCC visibility pop
