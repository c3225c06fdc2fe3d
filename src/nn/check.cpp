#include "nn/check.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace attn::nn {
namespace {

constexpr int64_t kMost = int64_t{1} << 31;
constexpr int64_t kMostHeads = int64_t{1} << 20;
constexpr int64_t kWidestHead = 1024;  // the operator's

/// "heads is 0, must be in [1, 1024]"
void check_in(Checker& checker, std::string_view part, const char* name, int64_t value, int64_t low, int64_t high) {
  checker.require(value >= low && value <= high, [&] {
    return std::string(part) + name + " is " + std::to_string(value) + ", must be in [" + std::to_string(low) + ", " +
           std::to_string(high) + "]";
  });
}

}  // namespace

std::string shape_of(const std::vector<int64_t>& shape) {
  return to_string(shape.data(), static_cast<int>(shape.size()));
}

std::string shape_of(const Value& x) { return shape_of(x.shape()); }

void check_extent(Checker& checker, std::string_view part, const char* name, int64_t value) {
  check_in(checker, part, name, value, 1, kMost);
}

void check_option(Checker& checker, std::string_view part, const char* name, int64_t value) {
  check_in(checker, part, name, value, 0, kMost);
}

void check_dropout(Checker& checker, std::string_view part, double probability) {
  checker.require(probability >= 0 && probability < 1, [&] {
    return std::string(part) + "dropout is " + std::to_string(probability) + ", must be in [0, 1)";
  });
}

void check_buckets(Checker& checker, std::string_view part, bool bidirectional, int64_t buckets, int64_t max_distance) {
  const int64_t sides = bidirectional ? 2 : 1;
  if (checker.require(buckets >= 2 * sides && buckets % sides == 0 && buckets <= kMost, [&] {
        return std::string(part) + "buckets is " + std::to_string(buckets) + ", must be " +
               (bidirectional ? "even and at least 4: half of them look ahead" : "at least 2");
      }))
    checker.require(max_distance > buckets / sides / 2, [&] {
      return std::string(part) + "max_distance is " + std::to_string(max_distance) + ", must be more than the " +
             std::to_string(buckets / sides / 2) + " distances that have a bucket each";
    });
}

void check_options(Checker& checker, std::string_view part, int64_t width, const NormOptions& options) {
  check_extent(checker, part, "width", width);
  checker.require(options.epsilon >= 0 && std::isfinite(options.epsilon), [&] {
    return std::string(part) + "epsilon is " + std::to_string(options.epsilon) + ", must be finite and not negative";
  });
}

void check_options(Checker& checker, std::string_view part, int64_t width, const FeedForwardOptions& options) {
  check_extent(checker, part, "width", width);
  check_option(checker, part, "hidden_dim", options.hidden_dim);
}

namespace {

void check_rope(Checker& checker, std::string_view part, int64_t head_dim, const MultiHeadAttentionOptions& options) {
  const int64_t rotated = options.rope.rotary_dim;
  const auto reason = [&](const std::string& words) { return [=] { return std::string(part) + words; }; };
  checker.require(options.encoder_dim == 0, reason("rope is for self-attention: encoder_dim must be 0"));
  checker.require(rotated > 0 || head_dim % 2 == 0, [&] {
    return std::string(part) + "the width of a head is " + std::to_string(head_dim) + ", must be even with rope";
  });
  checker.require(rotated >= 0 && rotated <= head_dim && rotated % 2 == 0, [&] {
    return std::string(part) + "rotary_dim is " + std::to_string(rotated) + ", must be even and at most the " +
           std::to_string(head_dim) + " columns of a head";
  });
  checker.require(options.rope.theta > 1 && std::isfinite(options.rope.theta),
                  reason("rope's theta must be more than 1 and finite"));
  checker.require(options.rope.frequencies.empty() && options.rope.magnitude == 1 && !options.rope.inverse,
                  reason("rope's frequencies, magnitude and direction are the layer's own: rope_scaling changes them"));
  check_rope_scaling(checker, part, options.rope_scaling, (rotated > 0 ? rotated : head_dim) / 2);
}

}  // namespace

void check_rope_scaling(Checker& checker, std::string_view part, const RopeScalingOptions& scaling, int64_t pairs) {
  const auto reason = [&](const std::string& words) { return [=] { return std::string(part) + words; }; };
  if (scaling.kind == RopeScaling::none) return;
  checker.require(scaling.factor >= 1 && std::isfinite(scaling.factor),
                  reason("the factor of rope's scaling must be at least 1 and finite"));
  checker.require(scaling.kind == RopeScaling::linear || scaling.context > 0,
                  reason("rope's scaling needs the context of the first training"));
  checker.require(scaling.kind != RopeScaling::llama3 || (scaling.low > 0 && scaling.high > scaling.low),
                  reason("rope's scaling blends from low to high, which must be positive and rise"));
  checker.require(scaling.kind != RopeScaling::yarn || (scaling.slow > 0 && scaling.fast > scaling.slow),
                  reason("rope's scaling blends from fast to slow, which must be positive and fall"));
  checker.require(scaling.magnitude >= 0 && std::isfinite(scaling.magnitude),
                  reason("the magnitude of rope's scaling must be finite and not negative"));
  if (scaling.kind != RopeScaling::longrope) return;
  const auto serve = [&](const std::vector<double>& factors) {
    const auto is_factor = [](double each) { return each > 0 && std::isfinite(each); };
    return static_cast<int64_t>(factors.size()) == pairs && std::all_of(factors.begin(), factors.end(), is_factor);
  };
  checker.require(serve(scaling.within) && serve(scaling.beyond), [&] {
    return std::string(part) + "longrope needs a positive factor for each of " + std::to_string(pairs) +
           " pairs, within its context and beyond, not " + std::to_string(scaling.within.size()) + " and " +
           std::to_string(scaling.beyond.size());
  });
  checker.require(scaling.context > 1, reason("longrope's context must be more than 1"));
}

void check_options(Checker& checker, std::string_view part, int64_t width, const MultiHeadAttentionOptions& options) {
  const int64_t heads = options.heads, kv_heads = options.kv_heads ? options.kv_heads : heads;
  check_extent(checker, part, "width", width);
  check_in(checker, part, "heads", heads, 1, kMostHeads);
  check_in(checker, part, "kv_heads", options.kv_heads, 0, kMostHeads);
  check_in(checker, part, "head_dim", options.head_dim, 0, kWidestHead);
  check_option(checker, part, "encoder_dim", options.encoder_dim);
  check_option(checker, part, "window", options.window);
  check_dropout(checker, part, options.dropout);
  for (const auto& [name, value] : {std::pair("attention_scale", options.attention_scale),
                                    {"softcap", options.softcap},
                                    {"norm_epsilon", options.norm_epsilon}})
    checker.require(value >= 0 && std::isfinite(value),
                    [&, name = name] { return std::string(part) + name + " must be finite and not negative"; });
  checker.require(options.encoder_dim == 0 || options.query_key_norm == QueryKeyNorm::none,
                  [&] { return std::string(part) + "query_key_norm is for self-attention: encoder_dim must be 0"; });
  if (heads > 0 && kv_heads > 0)
    checker.require(heads % kv_heads == 0, [&] {
      return std::string(part) + "kv_heads " + std::to_string(kv_heads) + " must divide heads " + std::to_string(heads);
    });
  if (options.position == AttentionPositions::relative)
    check_buckets(checker, part, !options.causal, options.buckets, options.max_distance);
  checker.require(options.slopes.empty() || (options.position == AttentionPositions::alibi &&
                                             static_cast<int64_t>(options.slopes.size()) == heads),
                  [&] {
                    return std::string(part) + std::to_string(options.slopes.size()) +
                           " slopes are given, must be one for each of " + std::to_string(heads) + " heads, of alibi";
                  });
  if (heads < 1 || width < 1 || options.head_dim < 0) return;
  const int64_t head_dim = options.head_dim ? options.head_dim : width / heads;
  checker.require(options.head_dim > 0 || width % heads == 0, [&] {
    return std::string(part) + "heads " + std::to_string(heads) + " must divide width " + std::to_string(width) +
           ", or head_dim must be given";
  });
  checker.require(options.head_dim > 0 || head_dim <= kWidestHead, [&] {
    return std::string(part) + "the width of a head is " + std::to_string(head_dim) + ", must be at most " +
           std::to_string(kWidestHead);
  });
  if (options.position == AttentionPositions::rope) check_rope(checker, part, head_dim, options);
}

void check_options(Checker& checker, std::string_view part, int64_t width, const SelfAttentionOptions& options) {
  check_extent(checker, part, "width", width);
  check_in(checker, part, "key_width", options.key_width ? options.key_width : width, 1, kWidestHead);
  check_in(checker, part, "value_width", options.value_width ? options.value_width : width, 1, kWidestHead);
  check_option(checker, part, "output_width", options.output_width);
  check_dropout(checker, part, options.dropout);
}

bool check_made(Checker& checker, bool made) {
  return checker.require(made, "the layer has no parameters: make it with a Scope before it is called");
}

bool check_rows(Checker& checker, const char* name, const Value& x, int64_t width, DType dtype, bool any_rank) {
  const auto wanted = [&] {
    return std::string(any_rank ? "[.., " : "[B, L, ") + std::to_string(width) + "] of " + std::string(name_of(dtype));
  };
  if (!checker.require(bool(x), [&] { return std::string(name) + " is empty, must be " + wanted(); })) return false;
  const size_t rank = x.shape().size();
  return checker.require((any_rank ? rank >= 1 : rank == 3) && x.shape().back() == width && x.dtype() == dtype, [&] {
    return std::string(name) + " is " + shape_of(x) + " of " + std::string(name_of(x.dtype())) + ", must be " +
           wanted();
  });
}

void check_sequences(Checker& checker, const CacheSlot& slot, int64_t B) {
  const std::span<const int64_t> all = slot.sequences;
  checker.require(static_cast<int64_t>(all.size()) == B, [&] {
    return "cache.sequences has " + std::to_string(all.size()) + " entries, must have B = " + std::to_string(B);
  });
  for (const int64_t id : all)
    checker.require(slot.cache->contains(id), [&] { return "the cache has no sequence " + std::to_string(id); });
  const bool rising = std::adjacent_find(all.begin(), all.end(), std::greater_equal<>()) == all.end();
  for (auto id = all.begin(); !rising && id != all.end(); ++id)
    checker.require(std::find(all.begin(), id, *id) == id,
                    [&] { return "cache.sequences names " + std::to_string(*id) + " twice"; });
}

namespace {

void check_cache(Checker& checker, const AttentionShape& layer, int64_t B, const AttentionInputs& inputs) {
  const KVCacheConfig& cache = inputs.cache.cache->config();
  checker.require(cache.kv_heads == layer.kv_heads && cache.head_dim == layer.key_width &&
                      cache.value_dim == layer.value_width && cache.dtype == layer.dtype,
                  [&] {
                    const auto shown = [](int64_t heads, int64_t key, int64_t value, DType dtype) {
                      return std::to_string(heads) + " heads of keys of width " + std::to_string(key) +
                             " and values of width " + std::to_string(value) + " in " + std::string(name_of(dtype));
                    };
                    return "the cache is for " + shown(cache.kv_heads, cache.head_dim, cache.value_dim, cache.dtype) +
                           ", must be for " + shown(layer.kv_heads, layer.key_width, layer.value_width, layer.dtype);
                  });
  const bool packed = !inputs.cu_seqlens.empty();
  check_sequences(checker, inputs.cache, packed ? std::ssize(inputs.cu_seqlens) - 1 : B);
  checker.require(layer.causal, "a cache needs a causal layer, whose earlier rows do not depend on later ones");
  checker.require(cache.streaming.window == 0 || !inputs.trace,
                  "a trace needs a cache that keeps all tokens, not a streaming one");
  checker.require(!packed || !inputs.trace, "a trace of packed sequences does not support a cache");
  checker.require(!layer.recording, "a cache is for inference only, not for a tape that records");
  checker.require(!inputs.encoder_states && inputs.key_length.empty() && !inputs.mask && !inputs.bias,
                  "a cache cannot be combined with encoder states, key_length, mask or bias");
}

/// `name` is [B|1, H|1, Lq|1, Lk|1].
void check_pairs(Checker& checker, const char* name, const Shape<4>& size, const Shape<4>& full) {
  bool fits = true;
  for (size_t axis = 0; axis < 4; ++axis) fits = fits && (size[axis] == full[axis] || size[axis] == 1);
  checker.require(fits, [&] {
    return std::string(name) + " is " + to_string(size) + ", must be " + to_string(full) + kAxesMayBeOne;
  });
}

void check_bias(Checker& checker, const AttentionShape& layer, const Value& bias, const Shape<4>& full) {
  const std::vector<int64_t>& shape = bias.shape();
  checker.require(is_floating(bias.dtype()), [&] {
    return "bias is " + std::string(name_of(bias.dtype())) + ", must be a floating type; a boolean one is a mask";
  });
  const Shape<4> all = {1, full[1], full[2], full[3]};
  if (!checker.require(shape.size() == 4, [&] {
        return "bias is " + shape_of(bias) + ", must be " +
               (layer.relative ? to_string(all) : to_string(full) + kAxesMayBeOne);
      }))
    return;
  const Shape<4> size = {shape[0], shape[1], shape[2], shape[3]};
  if (!layer.relative) return check_pairs(checker, "bias", size, full);
  checker.require(size == all && bias.dtype() == layer.dtype, [&] {
    return "bias is " + shape_of(bias) + " of " + std::string(name_of(bias.dtype())) +
           ", must be what it is added to, the relative positions' " + to_string(all) + " of " +
           std::string(name_of(layer.dtype));
  });
}

/// [B|1, H|Hk] of the parameters' type.
void check_gates(Checker& checker, const AttentionShape& layer, const Value& gates, int64_t B) {
  const std::vector<int64_t>& shape = gates.shape();
  const DType type = layer.dtype == DType::float64 ? DType::float64 : DType::float32;
  const bool fits =
      shape.size() == 2 && (shape[0] == B || shape[0] == 1) && (shape[1] == layer.heads || shape[1] == layer.kv_heads);
  checker.require(fits && gates.dtype() == type, [&] {
    const std::string heads = std::to_string(layer.heads), groups = std::to_string(layer.kv_heads);
    return "gates are " + shape_of(gates) + " of " + std::string(name_of(gates.dtype())) + ", must be [" +
           std::to_string(B) + ", " + heads + (layer.heads == layer.kv_heads ? "" : " or " + groups) +
           "] (the first axis may be 1) of " + std::string(name_of(type));
  });
}

void check_lengths(Checker& checker, std::span<const int64_t> lengths, int64_t B, int64_t keys) {
  checker.require(lengths.empty() || static_cast<int64_t>(lengths.size()) == B, [&] {
    return "key_length has " + std::to_string(lengths.size()) + " entries, must have B = " + std::to_string(B);
  });
  for (size_t b = 0; b < lengths.size(); ++b)
    checker.require(lengths[b] >= 0 && lengths[b] <= keys, [&] {
      return "key_length[" + std::to_string(b) + "] is " + std::to_string(lengths[b]) + ", must be in [0, " +
             std::to_string(keys) + "]";
    });
}

/// Packed sequences: rising from 0 to L, in one row of the batch.
void check_starts(Checker& checker, const AttentionInputs& inputs, int64_t B, int64_t L) {
  const std::span<const int64_t> starts = inputs.cu_seqlens;
  checker.require(B == 1 && starts.size() >= 2 && starts.front() == 0 && starts.back() == L &&
                      std::is_sorted(starts.begin(), starts.end()),
                  [&] { return "starts must rise from 0 to L = " + std::to_string(L) + " beside x [1, L, C]"; });
  checker.require(!inputs.encoder_states && !inputs.key_value && inputs.key_length.empty(),
                  "packed sequences cannot be combined with encoder states or key_length");
}

}  // namespace

void check_inputs(Checker& checker, const AttentionShape& layer, const Value& x, const AttentionInputs& inputs) {
  bool sized = check_rows(checker, "x", x, layer.width, layer.dtype);
  const Value* const memory = inputs.key_value ? inputs.key_value : inputs.encoder_states;
  const int64_t encoder_dim =
      inputs.key_value ? layer.kv_heads * (layer.key_width + layer.value_width) : layer.encoder_dim;
  checker.require(memory || !layer.needs_memory, "cross-attention needs encoder states");
  checker.require(!memory || layer.encoder_dim > 0,
                  "self-attention takes no encoder states: cross-attention is made with encoder_dim");
  if (memory && layer.encoder_dim > 0) {
    sized = check_rows(checker, inputs.key_value ? "key_value" : "encoder_states", *memory, encoder_dim, layer.dtype) &&
            sized;
    sized = sized && checker.require(memory->shape()[0] == x.shape()[0], [&] {
      return "encoder_states is " + shape_of(*memory) + ", must have as many sequences as x " + shape_of(x);
    });
  }
  if (inputs.mask)
    checker.require(inputs.mask.dtype == DType::boolean, [&] {
      return "mask is " + std::string(name_of(inputs.mask.dtype)) + ", must be boolean; a float mask is a bias";
    });
  if (!sized) return;  // the rest is checked against these sizes
  const Value& source = memory && layer.encoder_dim > 0 ? *memory : x;
  const Shape<4> full = {x.shape()[0], layer.heads, x.shape()[1], source.shape()[1]};
  if (inputs.cache.cache) check_cache(checker, layer, full[0], inputs);
  check_lengths(checker, inputs.key_length, full[0], full[3]);
  if (!inputs.cu_seqlens.empty()) check_starts(checker, inputs, full[0], full[2]);
  if (inputs.mask) check_pairs(checker, "mask", inputs.mask.size, full);
  if (inputs.bias) check_bias(checker, layer, inputs.bias, full);
  if (inputs.gates) check_gates(checker, layer, inputs.gates, full[0]);
}

}  // namespace attn::nn
