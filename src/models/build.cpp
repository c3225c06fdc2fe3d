// How a configuration becomes layers: their options, and the names under which a model asks for its parameters.
#include <algorithm>
#include <cmath>

#include "attn/models.h"
#include "core/checker.h"
#include "models/families.h"
#include "models/shape.h"

namespace attn::models {
namespace {

nn::AttentionPositions position_of(PositionEncoding positions) {
  switch (positions) {
    case PositionEncoding::rope: return nn::AttentionPositions::rope;
    case PositionEncoding::relative:
    case PositionEncoding::learned_relative: return nn::AttentionPositions::relative;
    case PositionEncoding::alibi: return nn::AttentionPositions::alibi;
    default: return nn::AttentionPositions::none;
  }
}

int64_t hidden_width(const Config& config) {
  if (config.hidden_dim) return config.hidden_dim;
  return config.gated ? (config.embed_dim * 8 / 3 + 31) / 32 * 32 : 4 * config.embed_dim;
}

nn::NormOptions norm_options(const Config& config) {
  return {.rms = config.norm == NormKind::rms, .bias = config.bias, .epsilon = config.norm_epsilon};
}

double dropout_of_weights(const Config& config) {
  return config.attention_dropout < 0 ? config.dropout : config.attention_dropout;
}

/// What self-attention and cross-attention have in common.
nn::MultiHeadAttentionOptions shared_options(const Config& config, AttentionKind kind, int64_t layer) {
  nn::MultiHeadAttentionOptions options;
  const LayerShape shape = attention_shape(config, attention_place(config, kind, layer));
  options.heads = shape.heads;
  options.kv_heads = shape.kv_heads;
  options.head_dim = shape.key_width;
  options.bias = config.bias || config.qkv_bias;
  options.output_bias = config.bias;
  options.dropout = dropout_of_weights(config);
  options.attention_scale = config.attention_scale;
  options.softcap = config.softcap;
  return options;
}

/// ALiBi's slopes of the heads that are left, which are those of the whole model.
std::vector<float> slopes_of(const Config& config, AttentionKind kind, int64_t layer) {
  if (config.positions != PositionEncoding::alibi || config.kept_heads.empty()) return {};
  const std::vector<float> all = nn::alibi_slopes(config.heads);
  const int64_t group = config.kv_heads ? config.heads / config.kv_heads : 1;
  std::vector<float> slopes;
  for (const int64_t kept : config.kept_heads[static_cast<size_t>(attention_place(config, kind, layer))])
    slopes.insert(slopes.end(), all.begin() + kept * group, all.begin() + (kept + 1) * group);
  return slopes;
}

nn::MultiHeadAttentionOptions attention_options(const Config& config, int64_t layer, bool encoder) {
  const AttentionKind kind = encoder ? AttentionKind::encoder : AttentionKind::self;
  nn::MultiHeadAttentionOptions options = shared_options(config, kind, layer);
  options.slopes = slopes_of(config, kind, layer);
  options.causal = config.causal && !encoder;
  options.window = window_of(config, layer);
  options.sinks = config.sinks;
  options.gate = config.attention_gate;
  options.query_key_norm = config.query_key_norm;
  options.norm_epsilon = config.norm_epsilon;
  options.position = position_of(config.positions);
  options.rope.theta = options.window && config.window_theta > 0 ? config.window_theta : config.rope_theta;
  options.rope.interleaved = config.rope_interleaved;
  options.rope.rotary_dim = config.rotary_dim;
  options.rope_scaling = {.kind = config.rope_scaling,
                          .factor = config.rope_factor,
                          .context = config.rope_context ? config.rope_context : config.context,
                          .low = config.rope_low,
                          .high = config.rope_high,
                          .fast = config.rope_fast,
                          .slow = config.rope_slow,
                          .magnitude = config.rope_magnitude,
                          .whole = config.rope_whole,
                          .within = config.rope_within,
                          .beyond = config.rope_beyond};
  options.buckets = config.buckets;
  options.max_distance = config.max_distance;
  options.shares_distances = config.shared_relative_bias && layer > 0;
  return options;
}

/// The options of a mixer with heads, keys and values as attention has them.
template <class Options>
Options with_heads(Options options, const Config& config) {
  options.heads = config.heads;
  options.kv_heads = config.kv_heads;
  options.head_dim = config.head_dim;
  options.bias = config.bias;
  options.rope.theta = config.positions == PositionEncoding::rope ? config.rope_theta : 0;
  options.rope.interleaved = config.rope_interleaved;
  options.rope.rotary_dim = config.rotary_dim;
  return options;
}

/// Null where the layer has attention.
nn::MixerMaker mixer_maker(const Config& config, int64_t layer) {
  switch (mixer_of(config, layer)) {
    case 'l':
      return [options = linear_options(config)](const nn::Scope& scope, int64_t width) {
        return std::make_shared<nn::LinearMixer>(scope, width, options);
      };
    case 'c':
      return [options = config.short_convolution](const nn::Scope& scope, int64_t width) {
        return std::make_shared<nn::ShortConvolution>(scope, width, options);
      };
    case 'r':
      return [options = config.lstm](const nn::Scope& scope, int64_t width) {
        return std::make_shared<nn::Lstm>(scope, width, options);
      };
    case 'm':
      return [options = with_heads(config.moba, config)](const nn::Scope& scope, int64_t width) {
        return std::make_shared<nn::MobaAttention>(scope, width, options);
      };
    case 'n':
      return [options = with_heads(config.nsa, config)](const nn::Scope& scope, int64_t width) {
        return std::make_shared<nn::NativeSparseAttention>(scope, width, options);
      };
    case 'o': return config.own_mixer;
    default: return {};
  }
}

nn::BlockOptions block_options(const Config& config, int64_t layer, bool encoder) {
  nn::BlockOptions options;
  if (!encoder) options.mixer = mixer_maker(config, layer);
  if (!options.mixer) options.attention = attention_options(config, layer, encoder);
  if (config.encoder_layers && !encoder) {
    options.cross = shared_options(config, AttentionKind::cross, layer);
    options.cross.encoder_dim = config.embed_dim;
  }
  options.feed_forward = {
      .hidden_dim = hidden_width(config), .activation = config.activation, .gated = config.gated, .bias = config.bias};
  options.has_feed_forward = config.feed_forward;
  options.norm = norm_options(config);
  options.norm_placement = config.norm_placement;
  if (config.norm_placement == NormPlacement::pre_except_first && layer > 0)
    options.norm_placement = NormPlacement::pre;
  options.parallel = config.parallel;
  options.dropout = config.dropout;
  return options;
}

nn::SelfAttentionOptions single_head_options(const Config& config) {
  nn::SelfAttentionOptions options;
  options.key_width = config.key_dim;
  options.value_width = config.value_dim;
  options.output_width = config.output_projection ? config.embed_dim : 0;
  options.bias = config.bias;
  options.causal = config.causal;
  options.dropout = dropout_of_weights(config);
  return options;
}

nn::LoraOptions lora_options(const Config& config) {
  return {.rank = config.lora_rank,
          .alpha = config.lora_alpha,
          .rank_stabilized = config.lora_rank_stabilized,
          .dropout = config.lora_dropout,
          .targets = lora_targets(config)};
}

/// Sinusoids have amplitude 1: tokens are brought to that size (Vaswani et al. 2017, 3.4).
double embedding_scale(const Config& config) {
  if (config.embedding_scale > 0) return config.embedding_scale;
  return config.positions == PositionEncoding::sinusoidal ? std::sqrt(static_cast<double>(config.embed_dim)) : 1;
}

}  // namespace

void check_tensor_ranks(const Config& config, int ranks) {
  if (ranks == 1) return;
  Checker checker("model");
  const auto n = [](int64_t count) { return std::to_string(count); };
  bool attends = !is_selfhead(config);
  for (int64_t layer = 0; layer < config.layers; ++layer) attends = attends && has_attention(config, layer);
  checker.require(attends, "ranks share the layers of models with multi-head attention alone");
  int64_t fewest = config.heads;
  for (int64_t place = 0; attends && place < attention_count(config); ++place)
    fewest = std::min(fewest, attention_shape(config, place).heads);
  checker.require(!attends || fewest >= ranks, [&] {
    return n(ranks) + " ranks cannot share the " + n(fewest) + " heads of a layer: each must have one";
  });
  checker.require(hidden_width(config) >= ranks, "there are more ranks than features of the hidden layers");
  checker.require(config.vocab_size >= ranks || !has_tokens(config), "there are more ranks than tokens");
  checker.require(config.source_vocab_size == 0 || config.source_vocab_size >= ranks,
                  "there are more ranks than tokens of the encoder");
  checker.done();
}

namespace {

/// Throws Error for a target that no layer has.
void check_adapters(const Config& config, const nn::Parameters& parameters) {
  Checker checker("model");
  for (const std::string& target : config.lora_rank ? lora_targets(config) : std::vector<std::string>()) {
    const auto is_adapted = [&](const nn::Parameter& parameter) {
      const std::string layer = target == "gate_up" ? "up" : target;
      return parameter.name.ends_with("." + layer + ".lora.a") || parameter.name.ends_with(".lora." + target + ".a");
    };
    const auto& all = parameters.all();
    checker.require(std::any_of(all.begin(), all.end(), is_adapted), [&] {
      return "lora_targets names \"" + target + "\", but no layer of this model has an adapter of this name";
    });
  }
  checker.done();
}

}  // namespace

Model::Model(const Config& config, nn::Precision precision, uint64_t seed)
    : Model(config, {.precision = precision, .seed = seed}, nn::random_parameter) {}

Model::Model(const Config& config, nn::Precision precision, nn::ParameterSource source, nn::Purpose purpose)
    : Model(config, {.precision = precision, .purpose = purpose},
            source ? std::move(source) : throw Error("model", {"the source must not be null"})) {}

Model::Model(const Config& config, nn::Parameters::Options options, nn::ParameterSource source) : config_(config) {
  check(config);
  if (options.tensor_ranks) check_tensor_ranks(config, options.tensor_ranks->size());
  options.initialization = config.init;
  options.lora = lora_options(config);
  options.residual_factor = 1 / std::sqrt(2 * static_cast<double>(config.layers));
  parameters_ = std::make_unique<nn::Parameters>(options, std::move(source));
  const nn::Scope root(*parameters_);
  const int64_t C = config.embed_dim, E = token_dim(config), rows = config.context + config.position_offset;
  const bool learned = learns_positions(config), ends_in_norm = config.norm_placement == NormPlacement::post;
  if (has_tokens(config))
    tokens_ = nn::Embedding(root / "tokens", config.vocab_size, E, {.scale = embedding_scale(config), .shared = true});
  if (learned) positions_ = nn::Embedding(root / "positions", rows, E);
  if (config.type_vocab_size) types_ = nn::Embedding(root / "types", config.type_vocab_size, E);
  if (E != C) embedding_projection_ = nn::Linear(root / "embedding_projection", E, C);
  if (config.encoder_layers) {
    if (config.source_vocab_size)
      encoder_tokens_ = nn::Embedding(root / "encoder_tokens", config.source_vocab_size, E,
                                      {.scale = embedding_scale(config), .shared = true});
    const int64_t source_rows = config.source_context ? config.source_context + config.position_offset : rows;
    if (learned) encoder_positions_ = nn::Embedding(root / "encoder_positions", source_rows, E);
    make_layers(root / "encoder", encoder_, config.encoder_layers, true);
    nn::Norm& norm = ends_in_norm ? encoder_embedding_norm_ : encoder_norm_;
    norm = nn::Norm(root / "encoder_norm", ends_in_norm ? E : C, norm_options(config));
  }
  int64_t width = C;
  if (is_selfhead(config)) {
    layers_.emplace_back(nn::SelfAttention(root / "attention", C, single_head_options(config)));
    if (!config.output_projection) width = attention_shape(config).value_width;
  } else {
    make_layers(root / "blocks", layers_, config.layers, false);
    // Blocks that end in a norm begin with one, as BERT; after the others is one.
    if (!ends_in_norm && config.embedding_norm)
      embedding_norm_ = nn::Norm(root / "embedding_norm", E, norm_options(config));
    nn::Norm& norm = ends_in_norm ? embedding_norm_ : norm_;
    norm = nn::Norm(root / "norm", ends_in_norm ? E : C, norm_options(config));
  }
  if (config.head) make_head(root, width);
  if (config.pooler) pooler_ = nn::Linear(root / "pooler", width, width);
  check_adapters(config, *parameters_);
}

void Model::make_layers(const nn::Scope& scope, Layers& layers, int64_t count, bool encoder) {
  for (int64_t n = 0; n < count; ++n) {
    nn::Block block(scope / std::to_string(n), config_.embed_dim, block_options(config_, n, encoder));
    if (block.options.attention.shares_distances && learns_distances(config_))
      block.attention.share_distances(std::get<nn::Block>(layers.front()).attention);
    layers.emplace_back(std::move(block));
  }
}

void Model::make_head(const nn::Scope& root, int64_t width) {
  const bool tied = !config_.classes && config_.tie_embeddings;
  if (config_.head_dense) {
    const int64_t to = tied || (!config_.classes && find_family(config_.model)) ? token_dim(config_) : width;
    head_dense_ = nn::Linear(root / "head_dense", width, to, {.bias = config_.head_dense_bias});
    width = to;
  }
  if (config_.head_norm) head_norm_ = nn::Norm(root / "head_norm", width, norm_options(config_));
  if (config_.classes)
    head_ = nn::Linear(root / "head", width, config_.classes, {.bias = config_.pooling != ClassifierPooling::last});
  nn::Slice of_logits;
  if (root.tensor_ranks()) of_logits.ranges = {nn::share_of(config_.vocab_size, *root.tensor_ranks())};
  if (!tied && !config_.classes)
    head_ = nn::Linear(root / "head", width, config_.vocab_size, {.bias = config_.head_bias, .slice = of_logits});
  if (tied && config_.head_bias)
    head_.bias = (root / "head").variable("bias", {config_.vocab_size}, nn::ParameterRole::bias, of_logits);
}

int64_t state_bytes(const Config& config, nn::Precision precision) {
  const Model shell(config, {.precision = precision, .purpose = nn::Purpose::inference}, nullptr);
  int64_t total = 0;
  for (const nn::MixerState& state : shell.new_states(1)) total += state.bytes();
  const LayerShape shape = selecting_shape(config);
  const int64_t token = 2 * shape.kv_heads * shape.key_width * size_of(shell.parameters().dtype());
  for (int64_t n = 0; n < config.layers; ++n)
    if (mixer_of(config, n) == 'n') total += (config.nsa.window - 1 + config.nsa.block - 1) * token;
  return total;
}

std::vector<ParameterShape> parameter_shapes(const Config& config) {
  const Model shell(config, nn::Parameters::Options(), nullptr);
  std::vector<ParameterShape> shapes;
  for (const nn::Parameter& parameter : shell.parameters().all())
    shapes.push_back({parameter.name, parameter.master.shape(), parameter.decay});
  return shapes;
}

}  // namespace attn::models
