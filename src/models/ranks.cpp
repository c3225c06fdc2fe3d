// Ranks that share the sequences of a model.
#include "attn/models_ranks.h"

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

/// The first layer's attention on this rank.
cluster::ClusterShape shape_on(const cluster::Communicator& tensor_ranks, const Config& config, DType dtype) {
  const LayerShape whole = attention_shape(config);
  const nn::HeadShare own = nn::share_of_heads(whole.heads, whole.kv_heads, tensor_ranks.rank(), tensor_ranks.size());
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
  const cluster::ClusterShape shape = shape_on(grid.tensor(), config, dtype);
  const cluster::ClusterCosts costs = cluster::measure_costs(grid.sequence(), shape);
  const cluster::Placement placement = placement_for(config, tokens, grid.shape().sequence);
  const cluster::Schedule mine = cluster::choose(placement, shape, costs, longest_attention(config), backward);
  return cluster::gather(grid.all(), std::vector<cluster::Schedule>{mine}).front().front();
}

}  // namespace attn::models
