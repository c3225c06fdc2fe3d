// autograd: statistics of attention on the tape, for losses that depend on them (attn/attention_statistics.h defines
// them). nn::AttentionTrace::statistics() computes those of a layer.
//
// ```cpp
// #include "attn/autograd_statistics.h"
// using namespace attn::autograd;
// int main() {
//   Tape tape({.record = true});
//   const Value x(attn::Array(attn::DType::float32, {1, 10, 96}), true);
//   const Heads q{x, 0, 4, 8}, k{x, 32, 4, 8}, v{x, 64, 4, 8};  // 4 heads of width 8 each, in columns of x
//   attn::Array lse;
//   attention(tape, q, k, v, {}, {}, &lse);
//   tape.backward(mean(tape, attention_statistics(tape, q, k, lse, {.entropy = true}, {})));
// }
// ```
#pragma once

#include <vector>

#include "attn/attention_statistics.h"
#include "attn/autograd.h"

#pragma GCC visibility push(default)
namespace attn::autograd {

/// The row statistics to compute, as columns in this order. The views of `sets` must live until backward() has run.
struct StatisticsSelection {
  bool entropy = false;
  bool participation = false;
  bool maximum = false;
  bool distance = false;
  bool same_token = false;  ///< with sets.query_token_ids and sets.key_token_ids
  KeySets sets = {};        ///< sets.bands: a column each
  int64_t label_sets = 0;   ///< of sets.labels: a column each
  int64_t count() const {
    return entropy + participation + maximum + distance + same_token + static_cast<int64_t>(sets.bands.size()) +
           label_sets;
  }
};

/// The statistics of every row as columns, [B, H, Lq, C], of lse's type. lse [B, H, Lq], options, bias and sink are
/// those of the attention() call on q and k. q, k, bias and sink get gradients, through lse too. Weigh the columns with
/// linear(), make a loss with mean().
Value attention_statistics(Tape& tape, const Heads& q, const Heads& k, const Array& lse,
                           const StatisticsSelection& wanted, AttentionOptions options, const Value& bias = {},
                           const Value& sink = {});

/// The mean of x [B, .., L, C], [1] in float32 or float64. If `lengths` [B] is given, only the first lengths[b] rows of
/// sequence b count. Throws Error if no row counts.
Value mean(Tape& tape, const Value& x, const std::vector<int64_t>& lengths = {});

}  // namespace attn::autograd
#pragma GCC visibility pop
