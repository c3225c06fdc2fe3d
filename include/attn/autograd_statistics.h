// autograd: statistics of attention on the tape, so that a loss may have them (attn/attention_statistics.h says what
// they are). nn::AttentionTrace::statistics() has those of a layer.
#pragma once

#include <vector>

#include "attn/attention_statistics.h"
#include "attn/autograd.h"

#pragma GCC visibility push(default)
namespace attn::autograd {

/// Statistics of rows as columns, in this order. What `sets` borrows must live until backward() has run.
struct StatisticsColumns {
  bool entropy = false;
  bool participation = false;
  bool maximum = false;
  bool distance = false;
  bool same_token = false;  ///< with sets.query_token and sets.key_token
  KeySets sets = {};        ///< sets.bands: a column each
  int64_t label_sets = 0;   ///< of sets.labels: a column each
  int64_t count() const {
    return entropy + participation + maximum + distance + same_token + static_cast<int64_t>(sets.bands.size()) +
           label_sets;
  }
};

/// [B, H, Lq, C]: the columns of `wanted` for every row, of lse's type. lse [B, H, Lq], options, bias and sink are
/// those of an attention() on q and k, which get the gradients, through lse too. linear() weighs columns, mean() makes
/// a loss.
Value attention_statistics(Tape& tape, const Heads& q, const Heads& k, const Array& lse,
                           const StatisticsColumns& wanted, AttentionOptions options, const Value& bias = {},
                           const Value& sink = {});

/// The mean of x [B, .., L, C], one element in float32 or float64; of sequence b the first lengths[b] rows
/// count, if they are given. Throws Error if none does.
Value mean(Tape& tape, const Value& x, const std::vector<int64_t>& lengths = {});

}  // namespace attn::autograd
#pragma GCC visibility pop
