// nn: attention layers and blocks. A layer names its parameters, makes them through a Scope, and is then a function of
// a tape and a value: the same call trains and infers.
//
// Shapes: x [B, L, C]; where layers do not look across rows, [.., C]. Weights of products are [out, in], as PyTorch
// keeps them. x is of the type that the parameters compute in. Constructors and calls throw Error, before anything is
// made or computed, with every reason; its operation() is the layer's name in the model, as "blocks.3.attention".
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "attn/autograd_statistics.h"
#include "attn/nn_layers.h"

#pragma GCC visibility push(default)
namespace attn::nn {

// --------------------------------------------------------------------------------------------------------- attention

/// What one attention layer did on one input: enough to compute any part of its weights.
struct AttentionTrace {
  autograd::Heads q, k;
  Array lse;                 ///< [B, H, Lq]
  AttentionOptions options;  ///< without dropout and sink; borrows what the layer's inputs borrowed, and `bias`
  Value bias;                ///< the memory of options.bias, if there is one
  Value sink;                ///< [H], if the layer has sinks
  int64_t first = 0;         ///< tokens that a cache had of the batch's first text: q and k are of those behind them
  /// [B, H, Lq, Lk], before dropout. Throws Error if no layer has filled the trace, and where a cache has earlier keys.
  Array weights() const;
  /// [B, H, Lq, C] on the tape of the call, with gradients of the layer's parameters where that recorded: a loss may
  /// have them. A layer that recompute() runs records nothing then. Throws Error as weights() does.
  Value statistics(Tape& tape, const autograd::StatisticsColumns& wanted) const;

 private:
  void check() const;
};

/// The cache of one attention layer for the sequences of a batch.
struct CacheSlot {
  KvCache* cache = nullptr;
  std::span<const int64_t> sequences = {};  ///< [B]
  /// [B L]: of tokens [B, L] behind what is cached.
  std::vector<int64_t> positions(int64_t B, int64_t L) const;
};

/// What an attention layer is given besides x. Everything is borrowed until the backward has run.
struct AttentionInputs {
  const Value* memory = nullptr;     ///< [B, Lk, C_memory]: keys and values come from it (cross-attention)
  const Value* key_value = nullptr;  ///< what key_value(tape, memory) gave, in place of the memory, if it serves again
  std::span<const int64_t> key_length = {};     ///< [B]: padding at the end
  std::span<const int64_t> memory_length = {};  ///< [B]: of the memory, for a Block; it takes key_length's place there
  std::span<const int64_t> starts = {};  ///< [n + 1], from 0 to L: x [1, L, C] is n sequences, one after the other
  ConstView<4> mask = {};                ///< boolean [B|1, H|1, Lq|1, Lk|1], true = attend
  Value bias = {};                       ///< [B|1, H|1, Lq|1, Lk|1], added to the scores; gets its gradient
  Value gates = {};                      ///< [B|1, H], or [B|1, Hk]: factors on each head's output before W_O
  Value cross_gates = {};                ///< the same, of a Block's cross-attention
  CacheSlot cache = {};  ///< x continues what is cached: inference of causal self-attention, with nothing else here
  AttentionTrace* trace = nullptr;        ///< filled if given; with a cache, of what x adds to it
  AttentionTrace* cross_trace = nullptr;  ///< the same, of a Block's cross-attention
};

/// One head as textbooks write it: softmax(Q K^T / sqrt(d_k)) V, with Q = x W_Q, K = x W_K, V = x W_V; and, where an
/// output_width is given, times W_O [d_v, d_o].
struct SelfAttentionOptions {
  int64_t key_width = 0;     ///< d_k; 0 = C; up to 1024
  int64_t value_width = 0;   ///< d_v; 0 = C; up to 1024
  int64_t output_width = 0;  ///< d_o; 0 = there is no W_O
  bool bias = false;         ///< of all projections
  bool causal = false;
  double dropout = 0;
};
struct SelfAttention : Layer {
  SelfAttention() : Layer("SelfAttention") {}
  SelfAttention(const Scope& scope, int64_t width, const SelfAttentionOptions& options = {});
  /// x [B, L, C] -> [B, L, d_o], or [B, L, d_v] without W_O. A memory is [B, Lk, C].
  Value operator()(Tape& tape, const Value& x, const AttentionInputs& inputs = {}) const;
  Linear query, key, value, output;
  SelfAttentionOptions options;
};

/// What stretches the angles of rope to longer texts than it was trained on.
enum class RopeScaling {
  none,
  linear,   ///< all angles divided by `factor`
  dynamic,  ///< beyond `context` tokens a larger theta, as NTK-aware scaling has it
  llama3,   ///< slow angles divided by `factor`, fast ones kept, between them a blend (LLaMA 3.1)
  yarn,     ///< the same by the number of turns, and larger vectors (Peng et al. 2023, arXiv:2309.00071)
  longrope  ///< a factor for each angle, another beyond `context` (Ding et al. 2024, arXiv:2402.13753)
};
struct RopeScalingOptions {
  RopeScaling kind = RopeScaling::none;
  double factor = 1;
  int64_t context = 0;         ///< tokens of the first training
  double low = 1, high = 4;    ///< llama3: turns within `context` of the slowest and the fastest that are blended
  double fast = 32, slow = 1;  ///< yarn: the same, the other way round
  double magnitude = 0;        ///< yarn, longrope: factor on queries and keys; 0 = that of rope_magnitude()
  bool whole = true;           ///< yarn: the blend begins and ends at whole pairs
  /// longrope: what the angle of each pair is divided by where the longest text is within `context`, and where not.
  std::vector<double> within = {}, beyond = {};
};
/// The angle of one step for each of width / 2 pairs, where texts have up to `length` tokens.
std::vector<double> rope_frequencies(double theta, int64_t width, const RopeScalingOptions& scaling, int64_t length);
/// What queries and keys are multiplied by: yarn's 0.1 ln(factor) + 1, longrope's sqrt(1 + ln(factor) / ln(context)).
double rope_magnitude(const RopeScalingOptions& scaling);

/// What is normalised by its root mean square, with a learned gain, between the projections and rope.
enum class QueryKeyNorm {
  none,
  heads,  ///< each head of queries and keys, as Qwen 3
  rows    ///< all heads of a token's queries, or keys, together, as OLMo 2
};

/// How an attention layer knows where tokens stand.
enum class Position {
  none,
  rope,      ///< queries and keys are rotated by their positions
  relative,  ///< T5's buckets of distances, a learned bias a head (Raffel et al. 2019, arXiv:1910.10683)
  alibi      ///< a penalty on distance, alibi_slopes() (Press et al. 2021, arXiv:2108.12409)
};

/// 2^(-8 (h + 1) / H) for h = 0 .. H - 1.
std::vector<float> alibi_slopes(int64_t heads);

struct QueryKeyValue {
  autograd::Heads q, k, v;
};

struct MultiHeadAttentionOptions {
  int64_t heads = 1;
  int64_t kv_heads = 0;      ///< 0 = heads; fewer: grouped-query attention; 1: multi-query attention
  int64_t head_width = 0;    ///< D, up to 1024; 0 = C / heads, which must be whole
  int64_t memory_width = 0;  ///< width of the second sequence; 0 = self-attention, which takes no memory
  bool bias = true;          ///< of the projections
  bool output_bias = true;
  bool causal = false;
  int64_t window = 0;  ///< a token sees so many tokens, itself included; 0 = all
  double dropout = 0;  ///< of attention weights
  double scale = 0;    ///< factor on <q, k>; 0 = 1 / sqrt(D)
  double softcap = 0;  ///< c > 0: scores become c tanh(s / c)
  bool sink = false;   ///< a learned logit a head, in the denominator only
  QueryKeyNorm query_key_norm = QueryKeyNorm::none;
  double norm_epsilon = 1e-6;  ///< of query_key_norm
  Position position = Position::none;
  std::vector<float> slopes = {};  ///< of Position::alibi, one a head; empty = alibi_slopes(heads)
  ops::RopeOptions rope = {};
  RopeScalingOptions rope_scaling = {};
  int64_t buckets = 32;           ///< of Position::relative
  int64_t max_distance = 128;     ///< of Position::relative: all beyond share the last bucket
  bool shares_distances = false;  ///< Position::relative by another layer's table: share_distances() gives it
};
class MultiHeadAttention : public Layer {
 public:
  MultiHeadAttention() : Layer("MultiHeadAttention") {}
  MultiHeadAttention(const Scope& scope, int64_t width, const MultiHeadAttentionOptions& options);
  /// x [B, L, C] -> [B, L, C]
  Value operator()(Tape& tape, const Value& x, const AttentionInputs& inputs = {}) const;
  /// Q, K and V of self-attention in one product, [(H + 2 Hk) D, C]; of cross-attention query alone is from x. The
  /// output is [C, H D], whatever D is.
  Linear qkv, query, key_value, output;
  /// Takes the table of relative positions from another layer. Throws Error unless this one is without its own.
  void share_distances(const MultiHeadAttention& other);

 private:
  QueryKeyValue project(Tape& tape, const Value& x, const AttentionInputs& inputs) const;
  Value placed(Tape& tape, Value qkv_rows, const AttentionInputs& inputs) const;
  std::vector<double> frequencies_for(int64_t length) const;
  void check_call(const Tape& tape, const Value& x, const AttentionInputs& inputs) const;
  std::vector<int64_t> buckets_from(int64_t first, int64_t count) const;
  Value distance_bias(Tape& tape, int64_t first, int64_t count) const;
  Value pair_bias(Tape& tape, int64_t queries, int64_t keys) const;
  MultiHeadAttentionOptions options_;
  Value distance_bias_;  // [buckets, H]
  Value query_norm_, key_norm_, sink_;
  std::vector<float> slopes_;
  std::vector<double> frequencies_;  // of rope; empty where they depend on the length
};

/// The bucket of key - query, as T5 computes it; for causal attention only the past has buckets. Throws Error unless
/// buckets is at least 2 (4, and even, both ways) and max_distance lies beyond the buckets of one distance each.
int64_t relative_bucket(int64_t key_minus_query, bool bidirectional, int64_t buckets, int64_t max_distance);

/// Where the norms of a block stand, around each branch f.
enum class NormPlace {
  before,     ///< x + f(norm(x)), as GPT-2 and LLaMA
  after,      ///< norm(x + f(x)), as BERT
  on_branch,  ///< x + norm(f(x)), as OLMo 2
  around      ///< x + norm(f(norm(x))), as Gemma 2
};

struct BlockOptions {
  MultiHeadAttentionOptions attention = {};
  MultiHeadAttentionOptions cross = {};  ///< of a decoder: with a memory_width there is a branch of cross-attention
  FeedForwardOptions feed_forward = {};
  NormOptions norm = {};
  NormPlace norm_place = NormPlace::before;
  bool parallel = false;          ///< attention and feed-forward both read the block's x, as GPT-NeoX; norms before
  bool norm_of_attention = true;  ///< false: none before attention, as ModernBERT's first block
  double dropout = 0;             ///< of each branch before it is added
};
/// Attention, perhaps cross-attention, then feed-forward, each around a residual: the block of BERT, GPT-2, LLaMA and
/// T5 by its options.
struct Block : Layer {
  Block() : Layer("Block") {}
  Block(const Scope& scope, int64_t width, const BlockOptions& options);
  /// A memory is for the cross-attention, as its length.
  Value operator()(Tape& tape, const Value& x, const AttentionInputs& inputs = {}) const;
  BlockOptions options;
  /// Made where the options have them; after_* where norms stand around.
  Norm norm_attention, norm_cross, norm_feed_forward, after_attention, after_cross, after_feed_forward;
  MultiHeadAttention attention, cross;
  FeedForward feed_forward;

 private:
  Value branch(Tape& tape, const Value& x, const Norm& norm, const Norm& after,
               const std::function<Value(const Value&)>& f) const;
};

/// Row p, feature 2 i: sin((first + p) / 10000^(2 i / C)), feature 2 i + 1: its cosine (Vaswani et al. 2017).
/// [positions, C]
Array sinusoids(int64_t positions, int64_t width, DType dtype, int64_t first = 0);

}  // namespace attn::nn
#pragma GCC visibility pop
