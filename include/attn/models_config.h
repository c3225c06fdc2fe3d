// models: configurations, and what they cost. A family (selfhead, encoder, gpt, llama, seq2seq) is a set of defaults of
// one configuration; the configuration says how embeddings, blocks and head are put together.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "attn/nn.h"

#pragma GCC visibility push(default)
namespace attn::models {

/// How a model knows where a token stands; learned_relative is both, as MPNet has it.
enum class Positions { none, learned, sinusoidal, relative, alibi, rope, learned_relative };
enum class NormKind { layer, rms };
/// What a classifier looks at: the mean of all tokens, the first, or each token, which then has a class of its own.
enum class Pooling { mean, first, each };
using nn::NormPlace;
using nn::QueryKeyNorm;
using nn::RopeScaling;
using nn::Scheme;
using ops::Activation;

/// All that decides the shape of a model: embeddings, layers (attention, feed-forward and their norms), head.
struct Config {
  std::string model = "gpt";      ///< the family, one of families()
  int64_t vocab_size = 0;         ///< V, from the tokenizer
  int64_t context = 64;           ///< the longest sequence of training; of learned positions, the longest at all
  int64_t embed_dim = 128;        ///< C
  int64_t layers = 4;             ///< N
  int64_t encoder_layers = 0;     ///< > 0: an encoder that the layers look at through cross-attention
  int64_t source_vocab_size = 0;  ///< tokens of the encoder's own vocabulary; 0 = it shares the layers' embeddings
  int64_t source_context = 0;     ///< of the encoder's learned positions; 0 = context
  bool reads_rows = false;        ///< Batch::rows in place of tokens: of the encoder's, where there is one

  // Embeddings: scale * token + position + type, then perhaps a norm, then perhaps a projection to C.
  int64_t token_width = 0;  ///< 0 = embed_dim; other embeddings are projected
  int64_t token_types = 0;  ///< learned embeddings of the kinds of tokens, as a pair's first and second text
  Positions positions = Positions::learned;
  int64_t position_offset = 0;  ///< rows of the learned positions before the first
  double embedding_scale = 0;   ///< factor on the rows of tokens; 0 = sqrt(C) if sinusoidal, otherwise 1
  bool embedding_norm = false;  ///< also where blocks do not end in a norm; where they do there is always one

  // Attention.
  int64_t heads = 4;               ///< H
  int64_t kv_heads = 0;            ///< Hk; 0 = heads
  int64_t head_dim = 0;            ///< D, of all but selfhead; 0 = embed_dim / heads
  int64_t key_dim = 0;             ///< d_k of selfhead; 0 = embed_dim
  int64_t value_dim = 0;           ///< d_v of selfhead; 0 = embed_dim
  bool output_projection = false;  ///< selfhead has W_O [d_v, embed_dim]; the others always have theirs
  bool causal = true;
  double attention_scale = 0;  ///< factor on <q, k>; 0 = 1 / sqrt(D)
  double softcap = 0;          ///< c > 0: scores become c tanh(s / c)
  bool sinks = false;          ///< a learned logit a head, in the denominator only
  QueryKeyNorm query_key_norm = QueryKeyNorm::none;
  int64_t window = 0;               ///< a token sees so many tokens, itself included; 0 = all
  std::string window_layers = "w";  ///< repeated over the layers: w has the window, f sees all
  double rope_theta = 10000;
  double window_theta = 0;  ///< of layers with a window; 0 = rope_theta
  int64_t rope_width = 0;   ///< columns of a head that rope rotates; 0 = all
  bool rope_interleaved = false;
  RopeScaling rope_scaling = RopeScaling::none;
  double rope_factor = 1;                ///< this and the next as nn::RopeScalingOptions has them
  int64_t rope_context = 0;              ///< 0 = context
  double rope_low = 1, rope_high = 4;    ///< of llama3
  double rope_fast = 32, rope_slow = 1;  ///< of yarn
  double rope_magnitude = 0;             ///< of yarn and longrope; 0 = that of nn::rope_magnitude()
  bool rope_whole = true;                ///< of yarn
  std::vector<double> rope_within = {};  ///< of longrope, a factor for each pair of columns
  std::vector<double> rope_beyond = {};  ///< the same, where texts are longer than rope_context
  int64_t buckets = 32;                  ///< of relative positions
  int64_t max_distance = 128;            ///< of relative positions
  bool shared_distances = false;         ///< one table of relative positions for all layers, as T5
  /// What pruning has left: of each of attention_layers() the key/value heads, of 0 .. Hk, each with the heads that
  /// share it; empty = all. `heads` and `kv_heads` stay those of the whole model.
  std::vector<std::vector<int64_t>> kept_heads = {};

  // Feed-forward and norms.
  int64_t hidden_dim = 0;  ///< of the feed-forward; 0 = 4 C, or 8/3 C rounded up to 32 where it is gated
  Activation activation = Activation::gelu_tanh;
  bool gated = false;
  bool bias = true;       ///< of products and layer norms
  bool qkv_bias = false;  ///< of queries, keys and values where the others have none
  NormKind norm = NormKind::layer;
  bool norm_first = true;    ///< x + f(norm(x)); otherwise norm(x + f(x))
  bool norm_branch = false;  ///< f ends in a norm: x + norm(f(norm(x))), or, not norm_first, x + norm(f(x))
  bool first_norm = true;    ///< false: the first layer's attention has no norm before it
  bool parallel = false;     ///< attention and feed-forward both read what enters the layer
  double norm_epsilon = 1e-5;

  // Head: perhaps a product, activation and norm, then logits.
  bool head = true;     ///< false: the model ends in the last layer's rows
  bool pooler = false;  ///< without a head: it ends in tanh of a product of each text's first row, as BERT's pooler
  int64_t classes = 0;  ///< > 0: classifies instead of predicting tokens
  Pooling pooling = Pooling::mean;
  bool head_dense = false;
  bool head_dense_bias = true;
  Activation head_activation = Activation::tanh;
  bool head_norm = false;
  bool head_bias = false;      ///< of logits of tokens; those of classes always have one
  bool tie_embeddings = true;  ///< the head is the embedding's table
  double logit_scale = 1;      ///< factor on what the head reads
  double logit_softcap = 0;    ///< c > 0: logits become c tanh(l / c)

  double dropout = 0;
  Scheme init = Scheme::gpt2;  ///< how weights are drawn
};
/// Where the norms of a layer stand.
NormPlace norm_place(const Config& config);
/// True where each position has a learned embedding.
bool learns_positions(const Config& config);
/// True where each distance has a learned bias.
bool learns_distances(const Config& config);
/// The window of a layer; 0 = none.
int64_t window_of(const Config& config, int64_t layer);

/// An attention layer of a model: its name, and the heads that it has.
struct AttentionLayer {
  std::string name;           ///< "blocks.0.attention", of its parameters
  int64_t heads, kv_heads;    ///< H and Hk
  std::vector<int64_t> kept;  ///< the numbers of its key/value heads in the model before any were removed
};
/// First the layers' own, then, of a model with an encoder, their cross-attention, then the encoder's.
std::vector<AttentionLayer> attention_layers(const Config& config);

/// The defaults of a family; throws Error that lists the families.
Config family(std::string_view name);
std::vector<std::string> families();
/// The families that are read from folders of the Hugging Face hub: their model_type, as "bert", "qwen3".
std::vector<std::string> hub_families();

/// Sets fields from JSON text: an object; `source` is the name that errors use. "model" sets all fields to the defaults
/// of that family first, wherever it stands, and the others change them: {"model": "llama", "bias": true}. Unknown
/// fields, wrong types and values out of range are all listed in one Error.
void apply_json(Config& config, std::string_view json, const std::string& source);
/// A field as help texts and forms show it.
struct FieldInfo {
  std::string name, description;
  std::string kind;                  ///< "whole number", "number", "text", "true or false", "list of numbers" ...
  std::vector<std::string> choices;  ///< of text, and true and false
  double lowest = 0, highest = 0;    ///< of numbers
  std::string value;                 ///< as set_field() takes it
};
/// All fields with the values that they have in `config`.
std::vector<FieldInfo> field_info(const Config& config = {});
/// Sets one field from text, as "layers=6" on a command line does; "model" sets all to the defaults of that family.
void set_field(Config& config, std::string_view field, std::string_view value);
std::string to_json(const Config& config);
/// Throws Error that lists everything that cannot be built.
void check(const Config& config);

// ------------------------------------------------------------------------------------------ what a configuration costs

/// A parameter that is not made.
struct ParameterShape {
  std::string name;
  std::vector<int64_t> shape;
  bool decay = false;     ///< a product or a table
  int64_t count() const;  ///< of its numbers
};
/// Those of a Model, in its order; whatever their size, at once and without their memory.
std::vector<ParameterShape> parameter_shapes(const Config& config);

/// Numbers in the parameters of each part; a tied head is the embedding.
struct ParameterCounts {
  int64_t embedding = 0, attention = 0, feed_forward = 0, norms = 0, head = 0;
  int64_t total() const { return embedding + attention + feed_forward + norms + head; }
};
ParameterCounts count_parameters(const Config& config);

/// Multiply-adds, counted as two, of a forward over `tokens` tokens of one sequence behind `cached` ones, as
/// ForwardOptions{.cache, .last_only} says; a training step takes three. An encoder reads as many tokens.
double forward_flops(const Config& config, int64_t tokens, int64_t cached = 0, bool last_only = false);
/// Bytes of keys and values a token.
int64_t cache_bytes_per_token(const Config& config, DType dtype);

/// Bytes that a training takes at its peak.
struct TrainingMemory {
  double weights = 0;      ///< what layers compute with, and the masters
  double gradients = 0;    ///< of all parameters
  double moments = 0;      ///< AdamW's two
  double activations = 0;  ///< what the tape keeps for the backward, the logits and their gradient among it
  double between = 0;      ///< a validation or the bytes of a checkpoint, whichever is more
  double total() const { return weights + gradients + moments + activations + between; }
};
/// Of batches [sequences, length]. Counted from what each operation of the tape keeps, not measured: a test holds it
/// against measurements. With `recompute` blocks keep their inputs alone.
TrainingMemory training_memory(const Config& config, nn::Precision precision, int64_t sequences, int64_t length,
                               bool recompute = false);
/// Bytes that this process may still take: what the system says is available, or less where its control groups say so.
/// `root` stands before /proc and /sys. Infinite where nothing is known.
double available_memory(const std::string& root = "");

}  // namespace attn::models
#pragma GCC visibility pop
