// nn: layers. A layer names its parameters, makes them through a Scope, and is then a function of a tape and a value:
// the same call trains and infers.
//
// Shapes: x [B, L, C]; where layers do not look across rows, [.., C]. Weights of products are [out, in], as PyTorch
// keeps them. x is of the type that the parameters compute in. Constructors and calls throw Error, before anything is
// made or computed, with every reason; its operation() is the layer's name in the model, as "blocks.3.attention".
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "attn/autograd.h"
#include "attn/nn_parameters.h"

#pragma GCC visibility push(default)
namespace attn::nn {

using autograd::Tape;

/// What every layer has: its name, for errors, and the type it computes in.
class Layer {
 public:
  /// "blocks.3.attention"; at the root of the names, and of what has not been made, the kind of layer: "Linear".
  const std::string& name() const { return name_; }
  /// Of x and of the result.
  DType dtype() const { return dtype_; }

 protected:
  explicit Layer(std::string_view kind) : name_(kind) {}
  Layer(std::string_view kind, const Scope& scope)
      : name_(scope.name().empty() ? kind : scope.name()), dtype_(scope.dtype()) {}

 private:
  std::string name_;
  DType dtype_ = DType::float32;
};

// ------------------------------------------------------------------------------------------------------ small layers

struct LinearOptions {
  bool bias = true;
  bool residual = false;  ///< projects into the residual stream
};
struct Linear : Layer {
  Linear() : Layer("Linear") {}
  Linear(const Scope& scope, int64_t in, int64_t out, const LinearOptions& options = {});
  /// x [.., in] -> [.., out]
  Value operator()(Tape& tape, const Value& x) const;
  Value weight, bias;
};

struct EmbeddingOptions {
  double scale = 1;  ///< factor on the rows that are looked up
};
struct Embedding : Layer {
  Embedding() : Layer("Embedding") {}
  Embedding(const Scope& scope, int64_t tokens, int64_t width, const EmbeddingOptions& options = {});
  /// ids [R] in [0, V), R the product of `shape` -> [shape .., C]
  Value operator()(Tape& tape, std::vector<int64_t> ids, std::vector<int64_t> shape) const;
  EmbeddingOptions options;
  Value table;
};

struct NormOptions {
  bool rms = false;  ///< RmsNorm instead of LayerNorm
  bool bias = true;  ///< LayerNorm only
  double epsilon = 1e-5;
};
struct Norm : Layer {
  Norm() : Layer("Norm") {}
  Norm(const Scope& scope, int64_t width, const NormOptions& options = {});
  Value operator()(Tape& tape, const Value& x) const;
  NormOptions options;
  Value weight, bias;
};

struct FeedForwardOptions {
  int64_t hidden = 0;  ///< 0 = 4 C
  ops::Activation activation = ops::Activation::gelu_tanh;
  bool gated = false;  ///< f(gate x) (up x), as in SwiGLU, instead of f(W x)
  bool bias = true;
};
/// down(f(up(x))).
struct FeedForward : Layer {
  FeedForward() : Layer("FeedForward") {}
  FeedForward(const Scope& scope, int64_t width, const FeedForwardOptions& options = {});
  Value operator()(Tape& tape, const Value& x) const;
  FeedForwardOptions options;
  Linear up, down;
};

// --------------------------------------------------------------------------------------------------------- attention

/// What one attention layer did on one input: enough to compute any part of its weights.
struct AttentionTrace {
  autograd::Heads q, k;
  Array lse;                 ///< [B, H, Lq]
  AttentionOptions options;  ///< without dropout; borrows what the layer's inputs borrowed, and `bias`
  Array bias;                ///< the memory of options.bias, if there is one
  /// [B, H, Lq, Lk], before dropout. Throws Error if no layer has filled the trace.
  Array weights() const;
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
  const Value* memory = nullptr;             ///< [B, Lk, C_memory]: keys and values come from it (cross-attention)
  std::span<const int64_t> key_length = {};  ///< [B]: padding at the end
  ConstView<4> mask = {};                    ///< boolean [B|1, H|1, Lq|1, Lk|1], true = attend
  Value bias = {};                           ///< [B|1, H|1, Lq|1, Lk|1], added to the scores; gets its gradient
  CacheSlot cache = {};  ///< x continues what is cached: inference of causal self-attention, with nothing else here
  AttentionTrace* trace = nullptr;  ///< filled if given
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

/// How an attention layer knows where tokens stand.
enum class Position {
  none,
  rope,      ///< queries and keys are rotated by their positions
  relative,  ///< T5's buckets of distances, a learned bias a head (Raffel et al. 2019, arXiv:1910.10683)
  alibi      ///< a penalty on distance, 2^(-8 (h + 1) / H) for head h (Press et al. 2021, arXiv:2108.12409)
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
  Position position = Position::none;
  ops::RopeOptions rope = {};
  int64_t buckets = 32;        ///< of Position::relative
  int64_t max_distance = 128;  ///< of Position::relative: all beyond share the last bucket
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

 private:
  void check_call(const Tape& tape, const Value& x, const AttentionInputs& inputs) const;
  std::vector<int64_t> buckets_from(int64_t first, int64_t count) const;
  Value distance_bias(Tape& tape, int64_t first, int64_t count) const;
  Value pair_bias(Tape& tape, int64_t queries, int64_t keys) const;
  MultiHeadAttentionOptions options_;
  Value distance_bias_;  // [buckets, H]
  std::vector<float> slopes_;
};

/// The bucket of key - query, as T5 computes it; for causal attention only the past has buckets. Throws Error unless
/// buckets is at least 2 (4, and even, both ways) and max_distance lies beyond the buckets of one distance each.
int64_t relative_bucket(int64_t key_minus_query, bool bidirectional, int64_t buckets, int64_t max_distance);

struct BlockOptions {
  MultiHeadAttentionOptions attention = {};
  FeedForwardOptions feed_forward = {};
  NormOptions norm = {};
  bool norm_first = true;  ///< x + f(norm(x)), as GPT-2 and LLaMA; otherwise norm(x + f(x)), as BERT
  double dropout = 0;      ///< of each branch before it is added
};
/// Attention, then feed-forward, each around a residual: the block of BERT, GPT-2 and LLaMA, by its options.
struct Block : Layer {
  Block() : Layer("Block") {}
  Block(const Scope& scope, int64_t width, const BlockOptions& options);
  Value operator()(Tape& tape, const Value& x, const AttentionInputs& inputs = {}) const;
  BlockOptions options;
  Norm norm_attention, norm_feed_forward;
  MultiHeadAttention attention;
  FeedForward feed_forward;
};

/// Row p, feature 2 i: sin((first + p) / 10000^(2 i / C)), feature 2 i + 1: its cosine (Vaswani et al. 2017).
/// [positions, C]
Array sinusoids(int64_t positions, int64_t width, DType dtype, int64_t first = 0);

}  // namespace attn::nn
#pragma GCC visibility pop
