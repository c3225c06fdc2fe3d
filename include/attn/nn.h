// nn: attention layers and blocks. A layer makes its named parameters through a Scope and is then a function of a tape
// and a value. The same call trains and infers.
//
// ```cpp
// #include "attn/autograd_operations.h"
// #include "attn/nn.h"
// using namespace attn;
// int main() {
//   nn::Parameters parameters({.seed = 1});
//   const nn::MultiHeadAttention layer(nn::Scope(parameters) / "attention", 64, {.heads = 8, .kv_heads = 2});
//   autograd::Tape tape({.record = true});
//   const nn::Value x(Array(DType::float32, {2, 10, 64}));
//   tape.backward(autograd::sum(tape, layer(tape, x)));  // every parameter now has its gradient
// }
// ```
//
// Shapes: x [B, L, C]; layers that work on each token alone take [.., C]. Weight matrices are [out, in], as in PyTorch.
// x has the type that the parameters compute in. Constructors and calls check everything first and throw Error with
// every reason; Error::operation() is the layer's name in the model, as "blocks.3.attention".
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "attn/autograd_statistics.h"
#include "attn/nn_layers.h"
#include "attn/nn_mixers.h"
#include "attn/record.h"

#pragma GCC visibility push(default)
namespace attn::nn {

// --------------------------------------------------------------------------------------------------------- attention

/// The recorded attention of one layer on one input, with the memory that it borrows from and its place on the tape.
struct AttentionTrace {
  autograd::Heads q, k;
  Array lse;                 ///< [B, H, Lq]
  AttentionOptions options;  ///< without dropout and sink; borrows from the layer's inputs and from `bias`
  Value bias;                ///< owns options.bias, if the layer has one
  Value sink;                ///< [H], if the layer has sinks
  int64_t first = 0;         ///< tokens of the first sequence that the cache already had; q and k are of later tokens
  /// Borrows from this trace and from the layer's inputs. Throws Error if no layer has filled the trace.
  RecordedAttention recorded(std::string name) const;
  /// The attention weights [B, H, Lq, Lk], before dropout. Throws Error if no layer has filled the trace, and where a
  /// cache has earlier keys.
  Array weights() const;
  /// The statistics [B, H, Lq, C] as a value on the tape of the call. If that tape recorded, gradients reach the
  /// layer's parameters; a layer inside recompute() does not record. Throws Error as weights() does.
  Value statistics(Tape& tape, const autograd::StatisticsSelection& wanted) const;

 private:
  RecordedAttention with_all_keys() const;
};

/// The KV cache of one attention layer and the ids of the batch's sequences in it. In a streaming cache, rotary, ALiBi
/// and relative positions, and the layer's window, count cache positions; a trace is refused.
struct CacheSlot {
  KVCache* cache = nullptr;
  std::span<const int64_t> sequences = {};  ///< [B]
  /// Ranks that share the cache of one sequence: each has some of its tokens. The first new token is then at position
  /// `first`, and one rank keeps the new tokens. With AttentionInputs::sequence each keeps its own.
  cluster::Communicator* ranks = nullptr;
  int64_t first = 0;
  bool keeps = true;
  /// The positions of new tokens, which follow the cached ones: those of sequence b are cu_seqlens[b] to
  /// cu_seqlens[b + 1] - 1. cu_seqlens [B + 1]. Throws Error.
  std::vector<int64_t> positions(std::span<const int64_t> cu_seqlens) const;
};

/// Inputs of an attention layer in addition to x. Everything is borrowed until the backward has run.
struct AttentionInputs {
  const Value* encoder_states = nullptr;  ///< [B, Lk, encoder_dim]: cross-attention takes keys and values from it
  const Value* key_value = nullptr;  ///< key_value(tape, encoder_states), computed once, in place of encoder_states
  std::span<const int64_t> key_length = {};      ///< [B]: tokens before the padding at the end
  std::span<const int64_t> encoder_length = {};  ///< [B]: of the encoder states, for a Block's cross-attention
  /// [n + 1], from 0 to L: x [1, L, C] is n packed sequences; with a cache, each follows one of cache.sequences.
  std::span<const int64_t> cu_seqlens = {};
  ConstView<4> mask = {};                 ///< boolean [B|1, H|1, Lq|1, Lk|1], true = attend
  Value bias = {};                        ///< [B|1, H|1, Lq|1, Lk|1], added to the scores; gets a gradient
  Value gates = {};                       ///< [B|1, H], or [B|1, Hk]: factors on each head's output before W_O
  Value cross_gates = {};                 ///< the same for a Block's cross-attention
  Value residual = {};                    ///< the result's shape, added to it in the last projection's pass
  MixerState* state = nullptr;            ///< of a Block's mixer: x follows the tokens of this state
  CacheSlot cache = {};                   ///< x follows the cached tokens: causal self-attention in inference
  AttentionTrace* trace = nullptr;        ///< filled if given; with a cache, for the tokens of x
  AttentionTrace* cross_trace = nullptr;  ///< the same for a Block's cross-attention
  /// x has the tokens of this rank (attn/autograd_ranks.h): self-attention without padding, packing, mask, bias and
  /// trace, and with no cache or one that is empty and that the ranks share.
  const autograd::SharedSequence* sequence = nullptr;
};

/// Options of one head as in textbooks: softmax(Q K^T / sqrt(d_k)) V W_O, with Q = x W_Q, K = x W_K, V = x W_V. W_O
/// [d_v, d_o] exists only if output_width is given.
struct SelfAttentionOptions {
  int64_t key_width = 0;     ///< d_k; 0 = C; up to 1024
  int64_t value_width = 0;   ///< d_v; 0 = C; up to 1024
  int64_t output_width = 0;  ///< d_o; 0 = there is no W_O
  bool bias = false;         ///< in all projections
  bool causal = false;
  double dropout = 0;
};
struct SelfAttention : Layer {
  SelfAttention() : Layer("SelfAttention") {}
  SelfAttention(const Scope& scope, int64_t width, const SelfAttentionOptions& options = {});
  /// x [B, L, C] -> [B, L, d_o], or [B, L, d_v] without W_O. Encoder states are [B, Lk, C].
  Value operator()(Tape& tape, const Value& x, const AttentionInputs& inputs = {}) const;
  Linear query, key, value, output;
  SelfAttentionOptions options;
};

/// How rotary positions are stretched to longer texts than the model was trained on.
enum class RopeScaling {
  none,
  linear,   ///< all angles divided by `factor`
  dynamic,  ///< NTK-aware: a larger theta beyond `context` tokens
  llama3,   ///< divides slow angles by `factor`, keeps fast ones, blends between them (LLaMA 3.1)
  yarn,     ///< the same by the number of turns, with a factor on vectors (Peng et al. 2023, arXiv:2309.00071)
  longrope  ///< a factor for each angle, another set beyond `context` (Ding et al. 2024, arXiv:2402.13753)
};
constexpr auto enum_names(RopeScaling) {
  return std::to_array<std::string_view>({"none", "linear", "dynamic", "llama3", "yarn", "longrope"});
}
struct RopeScalingOptions {
  RopeScaling kind = RopeScaling::none;
  double factor = 1;
  int64_t context = 0;         ///< tokens that the model was first trained on
  double low = 1, high = 4;    ///< llama3: the range of turns within `context` that is blended
  double fast = 32, slow = 1;  ///< yarn: the same range, from its upper end
  double magnitude = 0;        ///< yarn, longrope: factor on queries and keys; 0 = rope_magnitude()
  bool whole = true;           ///< yarn: the range is rounded to whole pairs
  /// longrope: divisors of each pair's angle, for texts within `context` and beyond.
  std::vector<double> within = {}, beyond = {};
};
/// The angle per position of each of width / 2 pairs, for texts of up to `length` tokens.
std::vector<double> rope_frequencies(double theta, int64_t width, const RopeScalingOptions& scaling, int64_t length);
/// The factor on queries and keys: 0.1 ln(factor) + 1 for yarn, sqrt(1 + ln(factor) / ln(context)) for longrope.
double rope_magnitude(const RopeScalingOptions& scaling);

/// RMS norms with a learned scale on queries and keys, between the projections and rope.
enum class QueryKeyNorm {
  none,
  heads,  ///< of each head, as in Qwen 3
  rows    ///< of all heads of a token together, as in OLMo 2
};
constexpr auto enum_names(QueryKeyNorm) { return std::to_array<std::string_view>({"none", "heads", "rows"}); }

/// How an attention layer uses the positions of tokens.
enum class AttentionPositions {
  none,
  rope,      ///< rotates queries and keys by their positions
  relative,  ///< T5's learned bias per head and distance bucket (Raffel et al. 2019, arXiv:1910.10683)
  alibi      ///< a linear penalty on distance, alibi_slopes() (Press et al. 2021, arXiv:2108.12409)
};

/// 2^(-8 (h + 1) / H) for h = 0 .. H - 1.
std::vector<float> alibi_slopes(int64_t heads);

struct QueryKeyValue {
  autograd::Heads q = {}, k = {}, v = {};
  autograd::Heads sink_q = {};  ///< q rotated by cache positions, where a streaming cache evicts tokens; else empty
};

struct MultiHeadAttentionOptions {
  int64_t heads = 1;
  int64_t kv_heads = 0;     ///< 0 = heads; fewer is grouped-query, 1 multi-query attention
  int64_t head_dim = 0;     ///< D, at most 1024; 0 = C / heads, which must be whole
  int64_t encoder_dim = 0;  ///< width of the encoder states; 0 = self-attention
  bool bias = true;         ///< of the projections
  bool output_bias = true;
  bool causal = false;
  int64_t window = 0;          ///< tokens that a query attends to, itself included; 0 = all
  double dropout = 0;          ///< of attention weights
  double attention_scale = 0;  ///< factor on <q, k>; 0 = 1 / sqrt(D)
  double softcap = 0;          ///< c > 0: scores become c tanh(s / c)
  bool sinks = false;          ///< a learned logit per head, in the denominator only
  bool gate = false;           ///< the heads' output times sigmoid(W x) before the output projection, as in Qwen3-Next
  QueryKeyNorm query_key_norm = QueryKeyNorm::none;
  double norm_epsilon = 1e-6;  ///< of query_key_norm
  AttentionPositions position = AttentionPositions::none;
  std::vector<float> slopes = {};  ///< of alibi, one per head; empty = alibi_slopes(heads)
  ops::RopeOptions rope = {};
  RopeScalingOptions rope_scaling = {};
  int64_t buckets = 32;           ///< of AttentionPositions::relative
  int64_t max_distance = 128;     ///< of relative: larger distances share the last bucket
  bool shares_distances = false;  ///< AttentionPositions::relative by another layer's table: share_distances() gives it
};
class MultiHeadAttention : public Layer {
 public:
  MultiHeadAttention() : Layer("MultiHeadAttention") {}
  MultiHeadAttention(const Scope& scope, int64_t width, const MultiHeadAttentionOptions& options);
  /// x [B, L, C] -> [B, L, C]
  Value operator()(Tape& tape, const Value& x, const AttentionInputs& inputs = {}) const;
  /// Self-attention projects q, k and v in one product, qkv [(H + 2 Hk) D, C]. Cross-attention has query [H D, C] and
  /// key_value [2 Hk D, encoder_dim]. The output projection is [C, H D], the gate [H D, C].
  Linear qkv, query, key_value, output, gate;
  /// Uses the relative bias of another layer. Throws Error if this layer has its own.
  void share_distances(const MultiHeadAttention& other);

 private:
  HeadShare make_projections(const Scope& scope, int64_t width);
  void make_vectors(const Scope& scope, const HeadShare& own);
  QueryKeyValue project(Tape& tape, const Value& x, const AttentionInputs& inputs) const;
  Value normalised(Tape& tape, const Value& qkv_rows) const;
  QueryKeyValue placed(Tape& tape, Value qkv_rows, const AttentionInputs& inputs) const;
  std::vector<double> frequencies_for(int64_t length) const;
  void check_call(const Tape& tape, const Value& x, const AttentionInputs& inputs) const;
  std::vector<int64_t> buckets_from(int64_t first, int64_t count) const;
  Value distance_bias(Tape& tape, int64_t first, int64_t count) const;
  Value pair_bias(Tape& tape, int64_t queries, int64_t keys) const;
  MultiHeadAttentionOptions options_;       // heads and kv_heads are those of this rank
  cluster::Communicator* ranks_ = nullptr;  // that have the other heads
  int64_t first_head_ = 0;
  int64_t query_width_ = 0, key_width_ = 0;  // of all ranks together, for norms of rows
  bool counts_keys_ = true;                  // no rank before this one has the same keys
  Value distance_bias_;                      // [buckets, H]
  Value query_norm_, key_norm_, sink_;
  std::vector<float> slopes_;
  std::vector<double> frequencies_;  // of rope; empty where they depend on the length
};

/// T5's bucket of the distance key - query; causal attention has buckets for the past only. Throws Error unless buckets
/// is at least 2 (bidirectional: at least 4 and even) and max_distance exceeds the number of exact buckets.
int64_t relative_bucket(int64_t key_minus_query, bool bidirectional, int64_t buckets, int64_t max_distance);

/// Where a block normalises each branch f (attention, cross-attention, feed-forward).
enum class NormPlacement {
  pre,              ///< x + f(norm(x)), as GPT-2 and LLaMA
  post,             ///< norm(x + f(x)), as BERT
  branch,           ///< x + norm(f(x)), as OLMo 2
  sandwich,         ///< x + norm(f(norm(x))), as Gemma 2
  pre_except_first  ///< pre, but the attention of a model's first block has no norm, as ModernBERT; a Block is that one
};
constexpr auto enum_names(NormPlacement) {
  return std::to_array<std::string_view>({"pre", "post", "branch", "sandwich", "pre_except_first"});
}

struct BlockOptions {
  MultiHeadAttentionOptions attention = {};
  MixerMaker mixer = {};                 ///< makes what mixes the tokens in place of self-attention
  MultiHeadAttentionOptions cross = {};  ///< a block with cross.encoder_dim > 0 has cross-attention
  FeedForwardOptions feed_forward = {};
  bool has_feed_forward = true;  ///< false: the block ends after its mixer, as in Mamba
  NormOptions norm = {};
  NormPlacement norm_placement = NormPlacement::pre;
  bool parallel = false;  ///< attention and feed-forward both read the block's x, as in GPT-NeoX; pre-norm only
  double dropout = 0;     ///< of each branch before it is added
};
/// Self-attention or a mixer, optional cross-attention and feed-forward, each with a residual connection: the block of
/// BERT, GPT-2, LLaMA, T5 and hybrids of attention and recurrences, depending on the options.
struct Block : Layer {
  Block() : Layer("Block") {}
  Block(const Scope& scope, int64_t width, const BlockOptions& options);
  /// x [B, L, C] -> [B, L, C]. Encoder states and their lengths go to the cross-attention.
  Value operator()(Tape& tape, const Value& x, const AttentionInputs& inputs = {}) const;
  BlockOptions options;
  /// Those that the options require; after_* only with NormPlacement::sandwich. norm_attention is also the mixer's.
  Norm norm_attention, norm_cross, norm_feed_forward, after_attention, after_cross, after_feed_forward;
  MultiHeadAttention attention, cross;
  std::shared_ptr<const Mixer> mixer;  ///< null where the block has attention
  FeedForward feed_forward;

 private:
  Value mixed(Tape& tape, const Value& x, const AttentionInputs& inputs) const;
  Value branch(Tape& tape, const Value& x, const Norm& norm, const Norm& after,
               const std::function<Value(const Value& x, const Value& residual)>& f) const;
  int64_t width_ = 0;
};

/// Sinusoidal positions [positions, C] (Vaswani et al. 2017): feature 2 i of row p is sin((first + p) / 10000^(2 i /
/// C)), feature 2 i + 1 the cosine.
Array sinusoids(int64_t positions, int64_t width, DType dtype, int64_t first = 0);

}  // namespace attn::nn
#pragma GCC visibility pop
