// The one forward: embeddings, blocks, norm, head.
#include <algorithm>
#include <cmath>

#include "attn/models.h"
#include "core/checker.h"
#include "models/shape.h"

namespace attn::models {
namespace {

nn::Position position_of(Positions positions) {
  switch (positions) {
    case Positions::rope: return nn::Position::rope;
    case Positions::relative: return nn::Position::relative;
    case Positions::alibi: return nn::Position::alibi;
    default: return nn::Position::none;
  }
}

int64_t hidden_width(const Config& config) {
  if (config.hidden_dim) return config.hidden_dim;
  return config.gated ? (config.embed_dim * 8 / 3 + 31) / 32 * 32 : 4 * config.embed_dim;
}

nn::NormOptions norm_options(const Config& config) {
  return {.rms = config.norm == NormKind::rms, .bias = config.bias, .epsilon = config.norm_epsilon};
}

nn::BlockOptions block_options(const Config& config) {
  nn::BlockOptions options;
  options.attention.heads = config.heads;
  options.attention.kv_heads = config.kv_heads;
  options.attention.head_width = config.head_dim;
  options.attention.bias = options.attention.output_bias = config.bias;
  options.attention.causal = config.causal;
  options.attention.window = config.window;
  options.attention.dropout = config.dropout;
  options.attention.position = position_of(config.positions);
  options.attention.rope.theta = config.rope_theta;
  options.attention.rope.interleaved = config.rope_interleaved;
  options.feed_forward = {
      .hidden = hidden_width(config), .activation = config.activation, .gated = config.gated, .bias = config.bias};
  options.norm = norm_options(config);
  options.norm_first = config.norm_first;
  options.dropout = config.dropout;
  return options;
}

/// Sinusoids have amplitude 1: tokens are brought to that size (Vaswani et al. 2017, 3.4).
double embedding_scale(const Config& config) {
  if (config.embedding_scale > 0) return config.embedding_scale;
  return config.positions == Positions::sinusoidal ? std::sqrt(static_cast<double>(config.embed_dim)) : 1;
}

bool is_selfhead(const Config& config) { return config.model == "selfhead"; }

}  // namespace

Model::Model(const Config& config, nn::Precision precision, uint64_t seed)
    : Model(config, {.precision = precision, .seed = seed}, nn::drawn) {}

Model::Model(const Config& config, nn::Precision precision, nn::Source source, nn::Purpose purpose)
    : Model(config, {.precision = precision, .purpose = purpose},
            source ? std::move(source) : throw Error("model", {"the source must not be null"})) {}

Model::Model(const Config& config, nn::Parameters::Options options, nn::Source source) : config_(config) {
  check(config);
  options.scheme = config.init;
  options.residual_factor = 1 / std::sqrt(2 * static_cast<double>(config.layers));
  parameters_ = std::make_unique<nn::Parameters>(options, std::move(source));
  const nn::Scope root(*parameters_);
  const int64_t C = config.embed_dim;
  tokens_ = nn::Embedding(root / "tokens", config.vocab_size, C, {.scale = embedding_scale(config)});
  if (config.positions == Positions::learned) positions_ = nn::Embedding(root / "positions", config.context, C);

  int64_t width = C;
  if (is_selfhead(config)) {
    nn::SelfAttentionOptions single;
    single.key_width = config.key_dim;
    single.value_width = config.value_dim;
    single.output_width = config.output_projection ? C : 0;
    single.bias = config.bias;
    single.causal = config.causal;
    single.dropout = config.dropout;
    single_heads_.emplace_back(root / "attention", C, single);
    if (!config.output_projection) width = attention_shape(config).value_width;
  } else {
    for (int64_t n = 0; n < config.layers; ++n)
      blocks_.emplace_back(root / "blocks" / std::to_string(n), C, block_options(config));
    norm_ = nn::Norm(root / "norm", C, norm_options(config));
  }
  if (config.classes) head_ = nn::Linear(root / "head", width, config.classes, {.bias = true});
  else if (!config.tie_embeddings) head_ = nn::Linear(root / "head", width, config.vocab_size, {.bias = false});
}

Value Model::block(Tape& tape, size_t layer, const Value& x, const nn::AttentionInputs& inputs) const {
  const Tape::Scope scope(tape, "block " + std::to_string(layer));
  return is_selfhead(config_) ? single_heads_[layer](tape, x, inputs) : blocks_[layer](tape, x, inputs);
}

/// x [B, L, C] and what learned or sinusoidal positions add to it; its first row stands at `first`.
Value Model::add_positions(Tape& tape, const Value& x, int64_t first) const {
  const bool sinusoidal = config_.positions == Positions::sinusoidal;
  if (!positions_.table && !sinusoidal) return x;
  const int64_t B = x.shape()[0], L = x.shape()[1];
  std::vector<int64_t> places(static_cast<size_t>(B * L));
  for (int64_t n = 0; n < B * L; ++n) places[n] = n % L + (sinusoidal ? 0 : first);
  if (!sinusoidal) return add(tape, x, positions_(tape, std::move(places), {B, L}));
  const Value table(nn::sinusoids(L, x.shape()[2], x.dtype(), first));
  return add(tape, x, embedding(tape, std::move(places), table, {B, L}));
}

/// The last layer's rows [B, L, C].
Value Model::hidden(Tape& tape, const Batch& batch, const ForwardOptions& options) const {
  const int64_t B = batch.sequences, L = batch.length;
  const int64_t first = options.cache ? options.cache->length() : 0;
  Value x = tokens_(tape, batch.tokens, {B, L});
  x = add_positions(tape, x, first);
  if (norm_.weight && !config_.norm_first) x = norm_(tape, x);  // as BERT: blocks end in a norm, so it begins with one
  x = dropout(tape, x, config_.dropout);

  const auto layers = static_cast<size_t>(config_.layers);
  if (options.traces) options.traces->assign(layers, {});
  for (size_t n = 0; n < layers; ++n) {
    nn::AttentionInputs inputs;
    inputs.key_length = batch.lengths;
    if (options.cache) inputs.cache = {&options.cache->layers_[n], options.cache->sequences_};
    if (options.traces) inputs.trace = &(*options.traces)[n];
    const auto run = [this, n, inputs](Tape& inner, const Value& in) { return block(inner, n, in, inputs); };
    x = options.recompute ? recompute(tape, x, run) : run(tape, x);
  }
  return norm_.weight && config_.norm_first ? norm_(tape, x) : x;
}

Value Model::forward(Tape& tape, const Batch& batch, const ForwardOptions& options) const {
  check_call(tape, batch, options, false);
  const int64_t B = batch.sequences, L = batch.length;
  Value x = hidden(tape, batch, options);
  const DType logits = parameters_->dtype() == DType::float64 ? DType::float64 : DType::float32;
  const Tape::Scope scope(tape, "head");
  if (config_.classes) {
    const std::vector<int64_t> lengths =
        batch.lengths.empty() ? std::vector<int64_t>(static_cast<size_t>(B), L) : batch.lengths;
    x = config_.pooling == Pooling::first ? select_rows(tape, x, std::vector<int64_t>(static_cast<size_t>(B), 0))
                                          : mean_pool(tape, x, lengths);
    return linear(tape, x, head_.weight, head_.bias, logits);
  }
  if (options.last_only) {
    std::vector<int64_t> last(static_cast<size_t>(B), L - 1);
    for (size_t b = 0; b < batch.lengths.size(); ++b) last[b] = batch.lengths[b] - 1;
    x = select_rows(tape, x, std::move(last));
    x = Value(x.data().reshaped({B, 1, x.data().width()}));
  }
  return linear(tape, x, head_.weight ? head_.weight : tokens_.table, {}, logits);
}

Value Model::loss(Tape& tape, const Batch& batch, const ForwardOptions& options) const {
  check_call(tape, batch, options, true);
  return cross_entropy(tape, forward(tape, batch, options), batch.targets);
}

KvCache::Config Model::cache_config() const {
  const AttentionShape heads = attention_shape(config_);
  KvCache::Config shape;
  shape.kv_heads = heads.kv_heads;
  shape.head_dim = heads.key_width;
  shape.value_dim = heads.value_width;
  shape.dtype = owned().dtype();
  return shape;
}

Cache Model::new_cache(int64_t sequences) const {
  Checker checker("model");
  checker.require(config_.causal, "only a causal model can continue a text");
  checker.require(sequences > 0,
                  [&] { return "a cache for " + std::to_string(sequences) + " sequences, must be 1 or more"; });
  checker.done();
  const KvCache::Config shape = cache_config();
  Cache cache;
  for (int64_t n = 0; n < config_.layers; ++n) cache.layers_.emplace_back(shape);
  for (int64_t b = 0; b < sequences; ++b) {
    int64_t id = 0;
    for (KvCache& layer : cache.layers_) id = layer.add();
    cache.sequences_.push_back(id);
  }
  return cache;
}

int64_t Cache::bytes() const {
  int64_t total = 0;
  for (const KvCache& layer : layers_) {
    const KvCache::Config& shape = layer.config();
    total += layer.pages_in_use() * shape.page_size * shape.kv_heads * (shape.head_dim + shape.value_dim) *
             size_of(shape.dtype);
  }
  return total;
}

void Cache::truncate(int64_t length) {
  if (layers_.empty() && length != 0)
    throw Error("Cache", {"an empty cache cannot be cut to " + std::to_string(length) + " tokens"});
  for (KvCache& layer : layers_)
    for (int64_t id : sequences_) layer.truncate(id, length);
}

void Model::load(const io::Safetensors& file, const std::string& prefix) {
  std::vector<std::string> reasons;
  for (const nn::Parameter& parameter : owned().all()) {
    try {
      file.require(prefix + parameter.name, parameter.master.dtype(), parameter.master.shape());
    } catch (const Error& error) {
      reasons.insert(reasons.end(), error.reasons().begin(), error.reasons().end());
    }
  }
  if (!reasons.empty()) throw Error("load", std::move(reasons));
  for (const nn::Parameter& parameter : owned().all())
    file.copy(prefix + parameter.name, parameter.master.dtype(), parameter.master.shape(), parameter.master.data());
  parameters_->refresh();
}

std::vector<io::NamedTensor> Model::tensors(const std::string& prefix) const {
  std::vector<io::NamedTensor> all;
  for (const nn::Parameter& parameter : owned().all())
    all.push_back(
        {prefix + parameter.name, parameter.master.dtype(), parameter.master.shape(), parameter.master.data()});
  return all;
}

std::vector<ParameterShape> parameter_shapes(const Config& config) {
  const Model shell(config, nn::Parameters::Options(), nullptr);
  std::vector<ParameterShape> shapes;
  for (const nn::Parameter& parameter : shell.parameters().all())
    shapes.push_back({parameter.name, parameter.master.shape(), parameter.decay});
  return shapes;
}

}  // namespace attn::models
