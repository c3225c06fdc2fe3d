#include "timed_mixers.h"

#include <algorithm>
#include <memory>

#include "attn/attention_layouts.h"
#include "attn/autograd_operations.h"
#include "attn/nn_low_rank.h"
#include "attn/nn_memory.h"

namespace bench {
namespace {

using attn::AttentionOptions;
using attn::BlockLists;
using attn::autograd::Tape;
using attn::autograd::Value;
using attn::nn::Scope;

constexpr int64_t kHeadDim = 64, kWindow = 512, kBlock = 64, kMemory = 512, kRows = 256;

/// Self-attention with the projections of a layer.
Value attend(Tape& tape, const attn::nn::Linear& qkv, const attn::nn::Linear& output, const Value& x,
             const AttentionOptions& options) {
  const int64_t heads = x.data().width() / kHeadDim;
  const Value rows = qkv(tape, x);
  const auto part = [&](int64_t n) { return attn::autograd::Heads{rows, n * heads * kHeadDim, heads, kHeadDim}; };
  return output(tape, attn::autograd::attention(tape, part(0), part(1), part(2), options));
}

/// The same with a boolean mask of n x n.
Value attend_masked(Tape& tape, const attn::nn::Linear& qkv, const attn::nn::Linear& output, const Value& x,
                    const std::function<bool(int64_t i, int64_t j)>& allowed) {
  const int64_t n = x.shape()[1];
  attn::Tensor<bool, 4> mask({1, 1, n, n});
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) mask(0, 0, i, j) = allowed(i, j);
  return attend(tape, qkv, output, x, {.mask = mask});
}

/// f of the two halves of a text, one after the other.
Value in_halves(Tape& tape, const Value& x, const TapeFunction& f) {
  const int64_t n = x.shape()[1];
  const Value first = f(tape, slice(tape, x, 1, 0, n / 2));
  return concat(tape, {first, f(tape, slice(tape, x, 1, n / 2, n))}, 1);
}

double bytes_of_rows(int64_t rows, int64_t width) { return 4.0 * static_cast<double>(rows * width); }

/// Causal attention over all earlier tokens, or over a window of them.
TimedMixer attention(const Scope& scope, int64_t width, int64_t n, int64_t window) {
  const auto layer = std::make_shared<const attn::nn::MultiHeadAttention>(
      scope, width, attn::nn::MultiHeadAttentionOptions{.heads = width / kHeadDim, .causal = true, .window = window});
  return {[=](Tape& tape, const Value& x) { return (*layer)(tape, x); },
          [=](Tape& tape, const Value& x) {
            const auto allowed = [=](int64_t i, int64_t j) { return j <= i && (window == 0 || i - j < window); };
            return attend_masked(tape, layer->qkv, layer->output, x, allowed);
          },
          bytes_of_rows(2 * (window ? std::min(window, n) : n), width)};
}

/// The projections of MultiHeadAttention, which takes no layout, around attention with lists of key blocks, causal.
TimedMixer listed_attention(const Scope& scope, int64_t width, BlockLists made) {
  const auto qkv = std::make_shared<const attn::nn::Linear>(scope / "qkv", width, 3 * width);
  const auto output = std::make_shared<const attn::nn::Linear>(scope / "output", width, width);
  const auto lists = std::make_shared<const BlockLists>(std::move(made));
  return {
      [=](Tape& tape, const Value& x) { return attend(tape, *qkv, *output, x, {.causal = true, .blocks = *lists}); },
      [=](Tape& tape, const Value& x) {
        const auto allowed = [&](int64_t i, int64_t j) {
          const int64_t *begin = lists->indices.data() + lists->offsets[i / kBlock],
                        *end = lists->indices.data() + lists->offsets[i / kBlock + 1];
          return j <= i && std::binary_search(begin, end, j / kBlock);
        };
        return attend_masked(tape, *qkv, *output, x, allowed);
      }};
}

/// A mixer with a state; by other means: in two calls with the state between them.
TimedMixer with_state(const std::shared_ptr<const attn::nn::Mixer>& layer) {
  return {[=](Tape& tape, const Value& x) { return (*layer)(tape, x); },
          [=](Tape& tape, const Value& x) {
            attn::nn::MixerState state = layer->new_state(1);
            return in_halves(tape, x, [&](Tape& t, const Value& half) { return (*layer)(t, half, {.state = &state}); });
          },
          static_cast<double>(layer->new_state(1).bytes())};
}

TimedMixer transformer_xl(const Scope& scope, int64_t width, int64_t n) {
  const auto layer = std::make_shared<const attn::nn::TransformerXLAttention>(
      scope, width,
      attn::nn::TransformerXLOptions{.heads = width / kHeadDim, .memory = kMemory, .position_dim = kHeadDim});
  const auto state = std::make_shared<attn::nn::TransformerXLState>(layer->new_state(1));
  return {[=](Tape& tape, const Value& x) { return (*layer)(tape, x, state.get()); },
          [=](Tape& tape, const Value& x) {
            attn::nn::TransformerXLState own = layer->new_state(1);
            return in_halves(tape, x, [&](Tape& t, const Value& half) { return (*layer)(t, half, &own); });
          },
          bytes_of_rows(std::min(n, kMemory), width), kMemory, [=] { *state = layer->new_state(1); }};
}

/// softmax(Q (E K)^T / sqrt(D)) (F V) by dense products, head by head.
Value linformer_by_products(const attn::nn::LinformerAttention& layer, Tape& tape, const Value& x) {
  const int64_t n = x.shape()[1], width = x.shape()[2];
  const Value qkv = reshape(tape, layer.qkv(tape, x), {n, 3 * width});
  std::vector<Value> heads;
  for (int64_t first = 0; first < width; first += kHeadDim) {
    const auto columns = [&](int64_t part) {
      return slice(tape, qkv, 1, part * width + first, part * width + first + kHeadDim);
    };
    const Value keys = linear(tape, transpose(tape, columns(1), 0, 1), layer.key_projection);  // (E K)^T [D, k]
    const Value values = linear(tape, transpose(tape, columns(2), 0, 1), layer.value_projection);
    const Value scores = linear(tape, columns(0), transpose(tape, keys, 0, 1));
    heads.push_back(linear(tape, softmax(tape, scale(tape, scores, 1 / std::sqrt(double{kHeadDim}))), values));
  }
  return layer.output(tape, reshape(tape, concat(tape, heads, 1), {1, n, width}));
}

TimedMixer linformer(const Scope& scope, int64_t width, int64_t n) {
  const auto layer = std::make_shared<const attn::nn::LinformerAttention>(
      scope, width, attn::nn::LinformerOptions{.heads = width / kHeadDim, .max_length = n, .rows = kRows});
  return {[=](Tape& tape, const Value& x) { return (*layer)(tape, x); },
          [=](Tape& tape, const Value& x) { return linformer_by_products(*layer, tape, x); }};
}

NamedMixer linear_mixer(const char* name,
                        const std::function<attn::nn::LinearMixerOptions(int64_t heads, int64_t head_dim)>& options) {
  return {
      name, [=](const Scope& scope, int64_t width, int64_t) {
        return with_state(std::make_shared<attn::nn::LinearMixer>(scope, width, options(width / kHeadDim, kHeadDim)));
      }};
}

}  // namespace

std::vector<NamedMixer> timed_mixers() {
  using namespace attn::nn;
  return {
      {"full", [](const Scope& s, int64_t width, int64_t n) { return attention(s, width, n, 0); }},
      {"window:512", [](const Scope& s, int64_t width, int64_t n) { return attention(s, width, n, kWindow); }},
      {"Longformer",
       [](const Scope& s, int64_t width, int64_t n) {
         const int64_t first[] = {0};
         return listed_attention(s, width, attn::layouts::longformer(n, kBlock, kWindow / kBlock, first));
       }},
      {"BigBird",
       [](const Scope& s, int64_t width, int64_t n) {
         return listed_attention(s, width, attn::layouts::bigbird(n, kBlock, {.side = 1, .global = 2, .random = 3}));
       }},
      {"Transformer-XL", transformer_xl},
      {"Linformer", linformer},
      linear_mixer("retention", [](int64_t heads, int64_t head_dim) { return retention(heads, head_dim); }),
      linear_mixer("gla",
                   [](int64_t heads, int64_t) {
                     return LinearMixerOptions{
                         .heads = heads, .decay = MixerDecay::row, .norm = MixerNorm::heads, .gate = MixerGate::silu};
                   }),
      linear_mixer("gated_delta", [](int64_t heads, int64_t head_dim) { return gated_delta_net(heads, head_dim); }),
      linear_mixer("kimi_delta",
                   [](int64_t heads, int64_t head_dim) {
                     LinearMixerOptions options = gated_delta_net(heads, head_dim);
                     options.decay = MixerDecay::row;
                     options.gate = MixerGate::sigmoid;
                     return options;
                   }),
      linear_mixer("mamba2", [](int64_t heads, int64_t head_dim) { return mamba2(heads, 2 * head_dim, 64); }),
      linear_mixer("elu",
                   [](int64_t heads, int64_t) {
                     return LinearMixerOptions{.heads = heads, .features = MixerFeatures::elu, .normalize = true};
                   }),
      {"convolution:3", [](const Scope& s, int64_t width, int64_t) {
         return with_state(std::make_shared<ShortConvolution>(s, width));
       }}};
}

}  // namespace bench
