// What a configuration costs, without the model: parameters by part, FLOPs, the cache, the memory of a training.
#include <algorithm>
#include <cmath>

#include "attn/models.h"
#include "core/profile.h"
#include "models/shape.h"

namespace attn::models {
namespace {

double wide(int64_t count) { return static_cast<double>(count); }

/// Keys that the tokens [first, end) of a sequence see in a layer, all together; token n sees n + 1, or the last
/// `window`.
double keys_seen(bool causal, int64_t window, int64_t first, int64_t end) {
  if (!causal) return wide(end - first) * wide(window ? std::min(end, window) : end);
  const auto before = [&](int64_t n) {  // by the first n tokens
    const int64_t growing = window ? std::min(n, window) : n;
    return 0.5 * wide(growing) * wide(growing + 1) + wide(n - growing) * wide(window);
  };
  return before(end) - before(first);
}

/// Multiply-adds of a token in linear attention: it writes into the state and reads it, with the delta rule once more.
double linear_products(const Config& config) {
  const nn::LinearMixerOptions o = linear_options(config);
  return (o.delta ? 3 : 2) * wide(o.value_heads * o.head_dim * (o.value_dim + o.normalize));
}

/// Keys and blocks of keys that the tokens [first, end) read in a layer that selects `count` blocks, their own among
/// them, which each reads up to itself.
struct Selecting {
  double selected = 0, earlier_blocks = 0;
};
Selecting selecting(int64_t block, int64_t count, int64_t first, int64_t end) {
  Selecting sum;
  for (int64_t n = first; n < end; ++n) {
    sum.selected += wide(n % block + 1 + std::min(n / block, count - 1) * block);
    sum.earlier_blocks += wide(n / block);
  }
  return sum;
}

/// Multiply-adds of these tokens with MoBA, which scores all earlier blocks.
double moba_products(const Config& config, int64_t first, int64_t end) {
  const LayerShape shape = selecting_shape(config);
  const Selecting sum = selecting(config.moba.block, config.moba.count, first, end);
  return (2 * sum.selected + sum.earlier_blocks) * wide(shape.heads * shape.key_width);
}

/// With NSA: three branches, and the weights of compressed keys once more; each token is mapped to compressed ones.
double nsa_products(const Config& config, int64_t first, int64_t end) {
  const LayerShape shape = selecting_shape(config);
  const Selecting sum = selecting(config.nsa.block, config.nsa.count, first, end);
  const double keys = 2 * sum.selected + 2 * keys_seen(true, config.nsa.window, first, end) + 3 * sum.earlier_blocks;
  return keys * wide(shape.heads * shape.key_width) +
         wide((end - first) * 2 * shape.kv_heads * shape.key_width * shape.key_width);
}

enum class Component { embedding, attention, feed_forward, norm, head };

Component part_of(const std::string& name) {
  for (const char* table :
       {"tokens.", "positions.", "types.", "encoder_tokens.", "encoder_positions.", "embedding_projection."})
    if (name.starts_with(table)) return Component::embedding;
  if (name.starts_with("head") || name.starts_with("pooler")) return Component::head;
  if (name.find("norm") != std::string::npos) return Component::norm;
  return name.find("feed_forward.") != std::string::npos ? Component::feed_forward : Component::attention;
}

}  // namespace

// --------------------------------------------------------------------------------------------------- numbers and FLOPs

int64_t ParameterShape::count() const {
  int64_t total = 1;
  for (int64_t extent : shape) total *= extent;
  return total;
}

ParameterCounts count_parameters(const Config& config) {
  ParameterCounts counts;
  for (const ParameterShape& parameter : parameter_shapes(config)) {
    int64_t* const fields[] = {&counts.embedding, &counts.attention, &counts.feed_forward, &counts.norms, &counts.head};
    *fields[static_cast<int>(part_of(parameter.name))] += parameter.count();
  }
  return counts;
}

double forward_flops(const Config& config, int64_t tokens, int64_t cached, bool last_only) {
  if (tokens < 0 || cached < 0)
    throw Error("model", {"tokens is " + std::to_string(tokens) + " and cached " + std::to_string(cached) +
                          ", neither may be negative"});
  double layers = 0, head = 0;  // multiply-adds: of a token in all layers, of a row of logits
  for (const ParameterShape& parameter : parameter_shapes(config)) {
    const Component part = part_of(parameter.name);
    if (parameter.name.find(".compress_") != std::string::npos) continue;  // in nsa_products()
    const bool tied = config.head && !config.classes && config.tie_embeddings && parameter.name == "tokens.weight";
    if (parameter.decay && (part == Component::head || tied)) head += wide(parameter.count());
    else if (parameter.decay && part != Component::embedding) layers += wide(parameter.count());
  }
  double mixing = 0;
  const auto attend = [&](AttentionKind kind, int64_t layer, double seen) {
    const LayerShape shape = attention_shape(config, attention_place(config, kind, layer));
    mixing += seen * wide(shape.heads) * wide(shape.key_width + shape.value_width);
  };
  for (int64_t n = 0; n < config.layers; ++n) {
    if (has_attention(config, n))
      attend(AttentionKind::self, n, keys_seen(config.causal, window_of(config, n), cached, cached + tokens));
    else if (mixer_of(config, n) == 'l') mixing += wide(tokens) * linear_products(config);
    else if (mixer_of(config, n) == 'm') mixing += moba_products(config, cached, cached + tokens);
    else if (mixer_of(config, n) == 'n') mixing += nsa_products(config, cached, cached + tokens);
    if (config.encoder_layers) attend(AttentionKind::cross, n, wide(tokens) * wide(cached + tokens));
  }
  for (int64_t n = 0; n < config.encoder_layers; ++n) attend(AttentionKind::encoder, n, wide(tokens) * wide(tokens));
  const double rows = config.classes || config.pooler || last_only ? 1 : wide(tokens);
  return 2 * (wide(tokens) * layers + mixing + rows * head);
}

int64_t cache_bytes_per_token(const Config& config, DType dtype, KVStorage storage) {
  if (config.heads < 1) throw Error("model", {"heads is " + std::to_string(config.heads) + ", must be positive"});
  if (!config.kept_heads.empty()) check(config);
  int64_t numbers = 0, attention = 0;
  for (int64_t place = 0; place < attention_place(config, AttentionKind::self, config.layers); ++place) {
    const LayerShape shape = attention_shape(config, place);
    attention += KVCacheConfig{.kv_heads = shape.kv_heads,
                               .head_dim = shape.key_width,
                               .value_dim = shape.value_width,
                               .dtype = dtype,
                               .page_size = 1,
                               .storage = storage}
                     .page_bytes();
  }
  const LayerShape shape = selecting_shape(config);
  const int64_t token = 2 * shape.kv_heads * shape.key_width;
  for (int64_t n = 0; n < config.layers; ++n) {
    if (selects_keys(config, n)) numbers += token;
    if (mixer_of(config, n) == 'n') numbers += (token - 1) / config.nsa.block + 1;
  }
  return attention + size_of(dtype) * numbers;
}

// -------------------------------------------------------------------------------------------------------------- memory

namespace {

/// What a Buffer of so many bytes occupies: large ones whole huge pages.
double in_pages(double bytes) {
  constexpr double kPage = kHugePage;
  return bytes < kHugeFrom ? bytes : std::ceil(bytes / kPage) * kPage;
}

/// What an array of the tape occupies: its memory comes in eight sizes to a doubling.
double recycled(double bytes) {
  double step = 64;
  while (step * 16 < bytes) step *= 2;
  return in_pages(std::ceil(bytes / step) * step);
}

/// Bytes of the arrays that operations of the tape make from batches of so many rows.
class Arrays {
 public:
  Arrays(const Config& config, double element, double sequences, double length)
      : config_(config), element_(element), B_(sequences), L_(length) {
    for (const ParameterShape& parameter : parameter_shapes(config)) {
      if (parameter.name.ends_with("feed_forward.up.weight")) up_ = wide(parameter.shape[0]);
      if (parameter.name.ends_with("feed_forward.down.weight")) hidden_ = wide(parameter.shape[1]);
    }
  }

  /// [B, L, width], `count` of them.
  double rows(double width, double count = 1) const { return count * recycled(B_ * L_ * width * element_); }
  double model(double count = 1) const { return rows(wide(config_.embed_dim), count); }
  double attended(const LayerShape& of) const { return rows(wide(of.heads * of.value_width)); }
  /// Queries, keys and values; of the textbook's single head they are three arrays.
  double projected(const LayerShape& of) const {
    if (!has_blocks()) return rows(wide(of.key_width), 2) + rows(wide(of.value_width));
    return rows(wide(of.heads * of.key_width + of.kv_heads * (of.key_width + of.value_width)));
  }
  double feed_forward() const { return has_blocks() ? rows(up_) + rows(hidden_) : 0; }
  double logits(double size) const {
    constexpr double kMasked = 0.2;  // of the tokens of a masked language model, at most
    if (config_.classes) return recycled(size * B_ * (classifies_tokens(config_) ? L_ : 1) * wide(config_.classes));
    return recycled(size * B_ * L_ * (config_.causal ? 1 : kMasked) * wide(config_.vocab_size));
  }

  /// What the mixer of a layer without attention leaves on the tape; of the program's own nothing is known.
  double mixer(int64_t layer) const {
    if (mixer_of(config_, layer) == 'c') return model(3) + model(6);  // the projection; its parts, products, result
    if (mixer_of(config_, layer) == 'r') return recurrence();
    if (mixer_of(config_, layer) == 'o') return 0;
    if (mixer_of(config_, layer) == 'm') return selecting(config_.moba.count);
    if (mixer_of(config_, layer) == 'n') return selecting(config_.nsa.count) + nsa_branches();
    const nn::LinearMixerOptions o = linear_options(config_);
    const double values = wide(o.value_heads * o.value_dim), channels = wide(2 * o.heads * o.head_dim) + values;
    const double decays = wide(o.value_heads) * (o.decay == nn::MixerDecay::row ? wide(o.head_dim) : 1);
    double bytes = rows(channels, o.convolution ? 2 : 1) + rows(values);
    if (o.features != nn::MixerFeatures::none) bytes += rows(channels - values, 2);
    if (o.decay == nn::MixerDecay::token || o.decay == nn::MixerDecay::row) bytes += rows(decays) + statistics(decays);
    if (o.beta != nn::MixerBeta::none) bytes += 2 * statistics(wide(o.value_heads));
    if (o.skip) bytes += rows(values, 3);
    if (o.norm != nn::MixerNorm::none) bytes += rows(values);
    return bytes + (o.gate == nn::MixerGate::none ? 0 : rows(values, 3));
  }
  /// What an LSTM leaves: the gates before their functions, those with them, cells, the output, and its projection.
  double recurrence() const {
    const double H = wide(config_.lstm.hidden_dim ? config_.lstm.hidden_dim : config_.embed_dim);
    return rows(4 * H) + statistics(5 * H) + rows(H);
  }
  /// What attention to `count` selected blocks leaves: projections, the output, and the numbers of the blocks.
  double selecting(int64_t count) const {
    const LayerShape of = selecting_shape(config_);
    return projected(of) * (config_.positions == PositionEncoding::rope ? 2 : 1) + attended(of) +
           statistics(wide(of.heads)) + recycled(8 * B_ * L_ * wide(of.heads * (count + 1)));
  }
  /// What NSA leaves besides: keys and values of two more branches, rows to compress, the branches' outputs, their
  /// products with the gates and sums, and the mask.
  double nsa_branches() const {
    const LayerShape of = selecting_shape(config_);
    const double keys = wide(2 * of.kv_heads * of.key_width);
    return rows(keys, 4) + rows(keys, 4) + rows(wide(of.heads * of.key_width), 7) + rows(wide(3 * of.heads), 5) +
           statistics(2 * wide(of.heads)) + L_ * L_ / wide(config_.nsa.block);
  }
  /// What a branch of a block leaves besides what it computes: its norms and the sum with the residual, and, unless its
  /// last product adds the residual itself, that product and perhaps its dropout.
  double branch(bool adds_residual) const {
    const bool drops = config_.dropout > 0, both = config_.norm_placement == NormPlacement::sandwich;
    const bool apart = !adds_residual || drops || both || config_.norm_placement == NormPlacement::branch;
    return model(2 + both + apart + drops) + statistics(2 + 2 * both);
  }
  /// What a block leaves besides its attention or mixer.
  double branches(bool adds_residual) const {
    return branch(adds_residual) + (config_.feed_forward ? branch(true) + feed_forward() : 0);
  }
  /// What one layer with attention leaves on the tape.
  double layer(const LayerShape& of) const {
    double bytes = projected(of) * (config_.positions == PositionEncoding::rope ? 2 : 1) + attended(of) +
                   statistics(wide(of.heads));
    if (learns_distances(config_)) bytes += distances(of);
    return has_blocks() ? bytes + branches(true) : bytes;
  }
  /// What the cross-attention of a layer keeps besides: its queries, the rows' keys and values, norm and branch.
  double cross(const LayerShape& of) const {
    return rows(wide(of.heads * of.key_width)) + rows(wide(of.kv_heads * (of.key_width + of.value_width))) +
           attended(of) + branch(true) + statistics(wide(of.heads));
  }
  /// Gradients of inner values while one layer runs backward. Without a gate the feed-forward's two arrays are of one
  /// size, and the gradient of the first takes the memory of the second.
  double layer_gradients() const {
    const LayerShape of = largest();
    const double attention = projected(of) * (config_.positions == PositionEncoding::rope ? 2 : 1) + attended(of) +
                             (learns_distances(config_) ? distances(of) : 0);
    const double inside = config_.gated ? feed_forward() : feed_forward() / 2;
    return model(2) + std::max({attention, largest_mixer(), inside});
  }
  /// Embeddings, positions and the last norm, of layers and encoder.
  double around() const {
    const bool table = learns_positions(config_) || config_.positions == PositionEncoding::sinusoidal;
    const double ids = 40 * B_ * L_;  // tokens, targets and positions as int64, some of them twice
    const double once =
        model((table ? 3 : 1) + (config_.dropout > 0 ? 1 : 0) + (has_blocks() ? 1 : 0)) + statistics(2) + ids;
    return config_.encoder_layers ? 2 * once + model() : once;  // the encoder's rows gather a gradient from all layers
  }
  /// What a layer without a tape has at once.
  double inference() const {
    const double attention = projected(largest()) * 2 + attended(largest());
    return model(4) + std::max(attention, largest_mixer()) + feed_forward() + statistics(4);
  }

  /// What the tape keeps of all layers, and, where each is computed again, of their inputs and the one that is.
  double layers() const {
    double bytes = 0;
    for (int64_t place = 0; place < attention_count(config_); ++place) {
      const LayerShape of = attention_shape(config_, place);
      bytes += is_cross(place) ? cross(of) : layer(of);
    }
    for (int64_t n = 0; n < config_.layers; ++n)
      if (!has_attention(config_, n)) bytes += mixer(n) + branches(false);
    return bytes;
  }
  double recomputed() const {
    return wide(config_.layers + config_.encoder_layers + 1) * model() +
           std::max(layer(largest()), largest_mixer() + branches(false)) +
           (config_.encoder_layers ? cross(largest()) : 0);
  }

 private:
  bool has_blocks() const { return config_.model != "selfhead"; }
  bool is_cross(int64_t place) const {
    return config_.encoder_layers && place >= config_.layers && place < 2 * config_.layers;
  }
  double largest_mixer() const {
    double most = 0;
    for (int64_t n = 0; n < config_.layers; ++n)
      if (!has_attention(config_, n)) most = std::max(most, mixer(n));
    return most;
  }
  /// The attention layer with the most heads; none of a model without attention.
  LayerShape largest() const {
    if (attention_count(config_) == 0) return {0, 0, 0, 0};
    LayerShape most = attention_shape(config_);
    for (int64_t place = 1; place < attention_count(config_); ++place)
      if (const LayerShape other = attention_shape(config_, place); other.heads > most.heads) most = other;
    return most;
  }
  /// Numbers of a row in at least float32: means, deviations, log-sum-exps.
  double statistics(double count) const { return count * recycled(B_ * L_ * std::max(element_, 4.0)); }
  /// T5's bias: looked up, with heads first, and the buckets.
  double distances(const LayerShape& of) const {
    return 2 * recycled(L_ * L_ * wide(of.heads) * element_) + 8 * L_ * L_;
  }

  const Config& config_;
  double element_, B_, L_, up_ = 0, hidden_ = 0;
};

}  // namespace

TrainingMemory training_memory(const Config& config, nn::Precision precision, int64_t sequences, int64_t length,
                               bool recompute, const std::function<bool(std::string_view)>& trains) {
  if (sequences < 1 || length < 1)
    throw Error("model", {"sequences is " + std::to_string(sequences) + " and length " + std::to_string(length) +
                          ", both must be positive"});
  const double element = wide(size_of(nn::Parameters({.precision = precision}).dtype()));
  const double master = std::max(element, 4.0);
  TrainingMemory memory;
  for (const ParameterShape& parameter : parameter_shapes(config)) {
    const double count = wide(parameter.count());
    if (trains && !trains(parameter.name)) {
      memory.weights += in_pages(count * (parameter.decay ? element : master));
      continue;
    }
    memory.weights += in_pages(count * master) + (parameter.decay && element < master ? in_pages(count * element) : 0);
    memory.gradients += recycled(count * master);
    memory.moments += 2 * in_pages(count * master);
  }
  const Arrays arrays(config, element, wide(sequences), wide(length));
  memory.activations = arrays.around() + 2 * arrays.logits(master) + arrays.layer_gradients() +
                       (element < master ? arrays.logits(element) : 0);
  memory.activations += recompute ? arrays.recomputed() : arrays.layers();
  memory.validation = 2 * arrays.logits(master) + arrays.inference();
  return memory;
}

}  // namespace attn::models
