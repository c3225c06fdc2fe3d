// What a configuration costs, without the model: parameters by part, FLOPs, the cache, the memory of a training.
#include <algorithm>
#include <cmath>

#include "attn/models.h"
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

enum class Part { embedding, attention, feed_forward, norm, head };

Part part_of(const std::string& name) {
  for (const char* table :
       {"tokens.", "positions.", "types.", "encoder_tokens.", "encoder_positions.", "embedding_projection."})
    if (name.starts_with(table)) return Part::embedding;
  if (name.starts_with("head") || name.starts_with("pooler")) return Part::head;
  if (name.find("norm") != std::string::npos) return Part::norm;
  return name.find("feed_forward.") != std::string::npos ? Part::feed_forward : Part::attention;
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
    throw Error("model",
                {std::to_string(tokens) + " tokens behind " + std::to_string(cached) + ": neither must be negative"});
  double layers = 0, head = 0;  // multiply-adds: of a token in all layers, of a row of logits
  for (const ParameterShape& parameter : parameter_shapes(config)) {
    const Part part = part_of(parameter.name);
    const bool tied = config.head && !config.classes && config.tie_embeddings && parameter.name == "tokens.weight";
    if (parameter.decay && (part == Part::head || tied)) head += wide(parameter.count());
    else if (parameter.decay && part != Part::embedding) layers += wide(parameter.count());
  }
  const AttentionShape shape = attention_shape(config);
  double pairs = wide(config.encoder_layers) * wide(tokens) * wide(tokens);
  for (int64_t n = 0; n < shape.layers; ++n)
    pairs += keys_seen(config.causal, window_of(config, n), cached, cached + tokens);
  if (config.encoder_layers) pairs += wide(shape.layers) * wide(tokens) * wide(cached + tokens);
  const double attention = pairs * wide(shape.heads) * wide(shape.key_width + shape.value_width);
  const double rows = config.classes || config.pooler || last_only ? 1 : wide(tokens);
  return 2 * (wide(tokens) * layers + attention + rows * head);
}

int64_t cache_bytes_per_token(const Config& config, DType dtype) {
  if (config.heads < 1) throw Error("model", {"heads is " + std::to_string(config.heads) + ", must be positive"});
  const AttentionShape shape = attention_shape(config);
  return size_of(dtype) * shape.layers * shape.kv_heads * (shape.key_width + shape.value_width);
}

// -------------------------------------------------------------------------------------------------------------- memory

namespace {

/// What a Buffer of so many bytes occupies: large ones whole huge pages.
double in_pages(double bytes) {
  constexpr double kHugePage = 1 << 21;
  return bytes < kHugePage / 4 ? bytes : std::ceil(bytes / kHugePage) * kHugePage;
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
      : config_(config), shape_(attention_shape(config)), element_(element), B_(sequences), L_(length) {
    for (const ParameterShape& parameter : parameter_shapes(config)) {
      if (parameter.name.ends_with("feed_forward.up.weight")) up_ = wide(parameter.shape[0]);
      if (parameter.name.ends_with("feed_forward.down.weight")) hidden_ = wide(parameter.shape[1]);
    }
  }

  /// [B, L, width], `count` of them.
  double rows(double width, double count = 1) const { return count * recycled(B_ * L_ * width * element_); }
  double model(double count = 1) const { return rows(wide(config_.embed_dim), count); }
  double qkv() const { return rows(wide(shape_.heads * D() + shape_.kv_heads * (D() + shape_.value_width))); }
  double attended() const { return rows(wide(shape_.heads * shape_.value_width)); }
  /// Queries, keys and values of the textbook's single head are three arrays.
  double projected() const { return has_blocks() ? qkv() : rows(wide(D()), 2) + rows(wide(shape_.value_width)); }
  double feed_forward() const { return has_blocks() ? rows(up_) + rows(hidden_) : 0; }
  double logits(double size) const {
    return recycled(size * (config_.classes ? B_ * wide(config_.classes) : B_ * L_ * wide(config_.vocab_size)));
  }

  /// What one layer leaves on the tape.
  double layer() const {
    const double dropped = config_.dropout > 0 ? 1 : 0;
    double bytes =
        projected() * (config_.positions == Positions::rope ? 2 : 1) + attended() + statistics(wide(shape_.heads));
    if (learns_distances(config_)) bytes += distances();
    if (!has_blocks()) return bytes;
    // Two norms and two branches, each with its product, perhaps its dropout, and the sum with the residual.
    return bytes + model(2 + 2 * (2 + dropped)) + 2 * statistics(2) + feed_forward();
  }
  /// What a layer's look at an encoder's rows leaves besides: its queries, the rows' keys and values, norm and branch.
  double cross() const {
    if (config_.encoder_layers == 0) return 0;
    const double dropped = config_.dropout > 0 ? 1 : 0;
    return rows(wide(shape_.heads * D())) + rows(wide(shape_.kv_heads * (D() + shape_.value_width))) + attended() +
           model(3 + dropped) + statistics(wide(shape_.heads) + 2);
  }
  /// Gradients of inner values while one layer runs backward.
  double layer_gradients() const {
    return model(3) + projected() * (config_.positions == Positions::rope ? 2 : 1) + attended() + feed_forward() +
           (learns_distances(config_) ? distances() : 0);
  }
  /// Embeddings, positions and the last norm, of layers and encoder.
  double around() const {
    const bool table = learns_positions(config_) || config_.positions == Positions::sinusoidal;
    const double ids = 40 * B_ * L_;  // tokens, targets and positions as int64, some of them twice
    const double once =
        model((table ? 3 : 1) + (config_.dropout > 0 ? 1 : 0) + (has_blocks() ? 1 : 0)) + statistics(2) + ids;
    return config_.encoder_layers ? 2 * once + model() : once;  // the encoder's rows gather a gradient from all layers
  }
  /// What a layer without a tape has at once.
  double inference() const { return model(4) + projected() * 2 + attended() + feed_forward() + statistics(4); }

  /// What the tape keeps of all layers, and, where each is computed again, of their inputs and the one that is.
  double layers() const { return all() * layer() + wide(shape_.layers) * cross(); }
  double recomputed() const { return all() * model() + layer() + cross() + model(); }

 private:
  double all() const { return wide(shape_.layers + config_.encoder_layers); }
  bool has_blocks() const { return config_.model != "selfhead"; }
  int64_t D() const { return shape_.key_width; }
  /// Numbers of a row in at least float32: means, deviations, log-sum-exps.
  double statistics(double count) const { return count * recycled(B_ * L_ * std::max(element_, 4.0)); }
  /// T5's bias: looked up, with heads first, and the buckets.
  double distances() const { return 2 * recycled(L_ * L_ * wide(shape_.heads) * element_) + 8 * L_ * L_; }

  const Config& config_;
  AttentionShape shape_;
  double element_, B_, L_, up_ = 0, hidden_ = 0;
};

}  // namespace

TrainingMemory training_memory(const Config& config, nn::Precision precision, int64_t sequences, int64_t length,
                               bool recompute) {
  if (sequences < 1 || length < 1)
    throw Error("model", {std::to_string(sequences) + " sequences of " + std::to_string(length) +
                          " tokens: both must be positive"});
  const double element = wide(size_of(nn::Parameters({.precision = precision}).dtype()));
  const double master = std::max(element, 4.0);
  TrainingMemory memory;
  double saved = 0;
  for (const ParameterShape& parameter : parameter_shapes(config)) {
    const double count = wide(parameter.count());
    memory.weights += in_pages(count * master) + (parameter.decay && element < master ? in_pages(count * element) : 0);
    memory.gradients += recycled(count * master);
    memory.moments += 2 * in_pages(count * master);
    saved += 3 * count * master;
  }
  const Arrays arrays(config, element, wide(sequences), wide(length));
  memory.activations = arrays.around() + 2 * arrays.logits(master) + arrays.layer_gradients() +
                       (element < master ? arrays.logits(element) : 0);
  memory.activations += recompute ? arrays.recomputed() : arrays.layers();
  memory.between = std::max(saved, 2 * arrays.logits(master) + arrays.inference());
  return memory;
}

}  // namespace attn::models
