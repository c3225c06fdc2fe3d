// Ranks that share the sequences of a model.
#include "attn/models_ranks.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "cluster/call.h"
#include "core/checker.h"
#include "models/shape.h"

namespace attn::models {
namespace {

/// The options of the layer whose attention takes longest: one without a window, if there is any.
AttentionOptions longest_attention(const Config& config) {
  AttentionOptions options = {.causal = config.causal};
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (!has_attention(config, layer)) continue;
    const int64_t window = window_of(config, layer);
    if (window == 0) return {.causal = config.causal};
    options.window = {window - 1, config.causal ? -1 : window - 1};
  }
  return options;
}

/// The first layer's attention on one of the ranks that share layers. The first has the most heads.
cluster::ClusterShape shape_on(int rank, int tensor_ranks, const Config& config, DType dtype) {
  const LayerShape whole = attention_shape(config);
  const nn::HeadShare own = nn::share_of_heads(whole.heads, whole.kv_heads, rank, tensor_ranks);
  return {.B = 1,
          .H = own.heads.count(),
          .Hk = own.kv_heads.count(),
          .D = whole.key_width,
          .Dv = whole.value_width,
          .dtype = dtype};
}

}  // namespace

cluster::Placement placement_for(const Config& config, int64_t tokens, int ranks) {
  return config.causal && config.window == 0 ? cluster::Placement::zigzag(tokens, ranks)
                                             : cluster::Placement::contiguous(tokens, ranks);
}

Batch shard_of(const Batch& batch, const autograd::SharedSequence& sequence) {
  const int64_t B = batch.sequences, L = batch.length, whole = sequence.placement().tokens();
  Checker checker("shard_of");
  checker.require(batch.cu_seqlens.empty() && batch.lengths.empty(),
                  "the sequences are packed or padded, and ranks share sequences of one length");
  checker.require(std::ssize(batch.tokens) == B * L && !batch.tokens.empty() && batch.source.empty(),
                  "the batch must have tokens, and none for an encoder");
  checker.require(L == whole, [&] {
    return "the sequences have " + std::to_string(L) + " tokens, and the placement " + std::to_string(whole);
  });
  checker.done();
  Batch shard;
  shard.sequences = B;
  shard.length = sequence.tokens();
  const auto take = [&](const auto& from, auto& to) {
    if (std::ssize(from) != B * L) return;
    for (int64_t b = 0; b < B; ++b)
      for (const int64_t position : sequence.positions()) to.push_back(from[static_cast<size_t>(b * L + position)]);
  };
  take(batch.tokens, shard.tokens);
  take(batch.token_type_ids, shard.token_type_ids);
  take(batch.targets, shard.targets);
  take(batch.target_weights, shard.target_weights);
  return shard;
}

cluster::Schedule choose_schedule(const Config& config, int64_t tokens, DType dtype, const cluster::RankGrid& grid,
                                  bool backward) {
  check_sequence_ranks(config, grid.shape().sequence);
  if (grid.shape().sequence == 1) return cluster::Schedule::ring;
  const cluster::ClusterShape shape = shape_on(grid.tensor().rank(), grid.tensor().size(), config, dtype);
  const cluster::ClusterCosts costs = cluster::measure_costs(grid.sequence(), shape);
  const cluster::Placement placement = placement_for(config, tokens, grid.shape().sequence);
  const cluster::Schedule mine = cluster::choose(placement, shape, costs, longest_attention(config), backward);
  return cluster::gather(grid.all(), std::vector<cluster::Schedule>{mine}).front().front();
}

double exchange_bytes(const Config& config, int64_t tokens, DType dtype, const cluster::GridShape& ranks,
                      const cluster::Schedule& schedule) {
  const int R = ranks.sequence, members = cluster::group_size(schedule, R);
  Checker checker("exchange_bytes");
  cluster::check_groups(checker, schedule, R);
  checker.done();
  if (R == 1) return 0;
  const cluster::ClusterShape shape = shape_on(0, ranks.tensor, config, dtype);
  const auto wide = [](int64_t count) { return static_cast<double>(count); };
  const double shard = std::ceil(wide(tokens) / wide(R)), element = wide(size_of(dtype)), sum = std::max(element, 4.0);
  const double queries = shard * wide(shape.H * shape.D), outputs = shard * wide(shape.H * shape.Dv),
               keys = shard * wide(shape.Hk * (shape.D + shape.Dv));
  // Shards of keys that wait, and sums of their gradients that go and come in two steps.
  const double others = wide(R / members - 1), waiting = schedule.keys == cluster::Schedule::Keys::gather ? others : 2;
  double bytes = keys * (std::min(waiting, others) * element + 2 * std::min(2.0, others) * sum);
  if (members > 1)  // q, k, v, out, dout, lse, dq, dk and dv of other tokens and fewer heads
    bytes += (queries + keys) * (element + sum) + outputs * 2 * element + shard * wide(shape.H) * sum;
  return bytes;
}

}  // namespace attn::models
