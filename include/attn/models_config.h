// models: configurations, and what they cost. A configuration says how embeddings, blocks and head are put together. A
// family (selfhead, encoder, gpt, llama, seq2seq) is a set of defaults.
//
// ```cpp
// #include <cstdio>
// #include "attn/models_config.h"
// int main() {
//   attn::models::Config config = attn::models::family("llama");
//   attn::models::apply_json(config, R"({"vocab_size": 32000, "layers": 8, "kv_heads": 2})", "my settings");
//   attn::models::check(config);
//   std::printf("%.1f M parameters\n", 1e-6 * static_cast<double>(attn::models::count_parameters(config).total()));
// }
// ```
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "attn/nn.h"
#include "attn/nn_selected.h"

#pragma GCC visibility push(default)
namespace attn::models {

/// How a model encodes positions; learned_relative is learned and relative, as in MPNet.
enum class PositionEncoding { none, learned, sinusoidal, relative, alibi, rope, learned_relative };
constexpr auto enum_names(PositionEncoding) {
  return std::to_array<std::string_view>(
      {"none", "learned", "sinusoidal", "relative", "alibi", "rope", "learned_relative"});
}
enum class NormKind { layer, rms };
constexpr auto enum_names(NormKind) { return std::to_array<std::string_view>({"layer", "rms"}); }
/// What a classifier classifies: the mean of all tokens, the first token, each token, or the last token.
enum class ClassifierPooling { mean, first, each, last };
constexpr auto enum_names(ClassifierPooling) {
  return std::to_array<std::string_view>({"mean", "first", "each", "last"});
}
/// The meaning of a classifier's logits, as transformers' problem_type: softmax over classes, a sigmoid for each class,
/// or numbers.
enum class ProblemType { single_label, multi_label, regression };
/// As config.json has them in problem_type.
constexpr auto enum_names(ProblemType) {
  return std::to_array<std::string_view>({"single_label_classification", "multi_label_classification", "regression"});
}
using nn::Initialization;
using nn::NormPlacement;
using nn::QueryKeyNorm;
using nn::RopeScaling;
using ops::Activation;

/// Everything that decides the shape of a model: embeddings, blocks (attention, feed-forward, norms), head.
struct Config {
  std::string model = "gpt";      ///< the family, one of families()
  int64_t vocab_size = 0;         ///< V, from the tokenizer
  int64_t context = 64;           ///< longest sequence in training; with learned positions, the longest allowed
  int64_t embed_dim = 128;        ///< C
  int64_t layers = 4;             ///< N
  int64_t encoder_layers = 0;     ///< > 0: the model has an encoder, and its layers have cross-attention
  int64_t source_vocab_size = 0;  ///< size of the encoder's own vocabulary; 0 = shared with the layers
  int64_t source_context = 0;     ///< context of the encoder's learned positions; 0 = context
  bool takes_embeddings = false;  ///< Batch::inputs_embeds in place of the (encoder's) tokens

  // Embeddings: scale x token + position + type, then an optional norm, then an optional projection to C.
  int64_t token_dim = 0;        ///< width of token embeddings; 0 = embed_dim, else a projection follows
  int64_t type_vocab_size = 0;  ///< learned embeddings of token type ids; 0 = none
  PositionEncoding positions = PositionEncoding::learned;
  int64_t position_offset = 0;  ///< unused rows before the first learned position
  double embedding_scale = 0;   ///< factor on token embeddings; 0 = sqrt(C) if sinusoidal, else 1
  bool embedding_norm = false;  ///< a norm after the embeddings; always there with NormPlacement::post

  /// What mixes the tokens in each layer, repeated over the layers: w attention with the window, f full attention, l
  /// linear attention, c a gated short convolution, r an LSTM, m MoBA, n native sparse attention, o the program's own
  /// mixer.
  std::string mixers = "w";

  // Attention.
  int64_t heads = 4;               ///< H
  int64_t kv_heads = 0;            ///< Hk; 0 = heads
  int64_t head_dim = 0;            ///< D; 0 = embed_dim / heads. Not for selfhead
  int64_t key_dim = 0;             ///< d_k of selfhead; 0 = embed_dim
  int64_t value_dim = 0;           ///< d_v of selfhead; 0 = embed_dim
  bool output_projection = false;  ///< W_O [d_v, embed_dim] of selfhead; the others always have one
  bool causal = true;
  double attention_scale = 0;   ///< factor on <q, k>; 0 = 1 / sqrt(D)
  double softcap = 0;           ///< c > 0: scores become c tanh(s / c)
  bool sinks = false;           ///< a learned logit per head, in the denominator only
  bool attention_gate = false;  ///< the heads' output times sigmoid(W x), as in Qwen3-Next
  QueryKeyNorm query_key_norm = QueryKeyNorm::none;
  int64_t window = 0;  ///< tokens that a query attends to, itself included; 0 = all
  double rope_theta = 10000;
  double window_theta = 0;  ///< of layers with a window; 0 = rope_theta
  int64_t rotary_dim = 0;   ///< features of a head that rope rotates; 0 = all
  bool rope_interleaved = false;
  RopeScaling rope_scaling = RopeScaling::none;
  double rope_factor = 1;                ///< this and the following as in nn::RopeScalingOptions
  int64_t rope_context = 0;              ///< 0 = context
  double rope_low = 1, rope_high = 4;    ///< of llama3
  double rope_fast = 32, rope_slow = 1;  ///< of yarn
  double rope_magnitude = 0;             ///< of yarn and longrope; 0 = that of nn::rope_magnitude()
  bool rope_whole = true;                ///< of yarn
  std::vector<double> rope_within = {};  ///< of longrope, a divisor for each pair of features
  std::vector<double> rope_beyond = {};  ///< the same for texts longer than rope_context
  int64_t buckets = 32;                  ///< of relative positions
  int64_t max_distance = 128;            ///< of relative positions
  bool shared_relative_bias = false;     ///< one relative bias for all layers, as in T5
  /// The key/value heads that pruning left in each of attention_layers(), with the query heads that share them; empty =
  /// all. `heads` and `kv_heads` remain those of the unpruned model.
  std::vector<std::vector<int64_t>> kept_heads = {};

  // Other mixers.
  nn::LinearMixerOptions linear = nn::gated_delta_net(0, 0);  ///< of layers l; heads 0 = those of attention
  nn::ShortConvolutionOptions short_convolution = {};         ///< of layers c
  nn::LstmOptions lstm = {};                                  ///< of layers r
  /// Of layers m and n: blocks, counts and window. Their heads, kv_heads, head_dim, bias and rope, without scaling, are
  /// those of attention; they have none of its other options.
  nn::MobaOptions moba = {};
  nn::NativeSparseOptions nsa = {};
  nn::MixerMaker own_mixer = {};  ///< of layers o; not saved: the program sets it again

  // Feed-forward and norms.
  bool feed_forward = true;  ///< false: blocks end after their mixer, as in Mamba
  int64_t hidden_dim = 0;    ///< of the feed-forward; 0 = 4 C, or 8/3 C rounded up to 32 where it is gated
  Activation activation = Activation::gelu_tanh;
  bool gated = false;
  bool bias = true;       ///< of linear layers and layer norms
  bool qkv_bias = false;  ///< of queries, keys and values where `bias` is false
  NormKind norm = NormKind::layer;
  NormPlacement norm_placement = NormPlacement::pre;
  bool parallel = false;  ///< attention and feed-forward both read the block's input
  double norm_epsilon = 1e-5;

  // Head: an optional linear layer, activation and norm, then logits.
  bool head = true;     ///< false: the model returns the last hidden states
  bool pooler = false;  ///< without a head: tanh(W x + b) of each text's first row, as BERT's pooler
  int64_t classes = 0;  ///< > 0: the model classifies instead of predicting tokens
  ClassifierPooling pooling = ClassifierPooling::mean;
  ProblemType problem_type = ProblemType::single_label;  ///< the meaning of a classifier's logits
  bool head_dense = false;
  bool head_dense_bias = true;
  Activation head_activation = Activation::tanh;
  bool head_norm = false;
  bool head_bias = false;      ///< of token logits; class logits have one, but for those of the last token
  bool tie_embeddings = true;  ///< the head uses the token embeddings
  double logit_scale = 1;      ///< factor on the input of the head
  double logit_softcap = 0;    ///< c > 0: logits become c tanh(l / c)

  /// Low-rank adapters for fine-tuning, as nn::LoraOptions; rank 0 = none. The targets are separated by commas.
  int64_t lora_rank = 0;
  double lora_alpha = 16;
  bool lora_rank_stabilized = false;
  double lora_dropout = 0;
  std::string lora_targets = "query,value";

  double dropout = 0;             ///< of the embeddings, of what each layer adds to them, and of attention weights
  double attention_dropout = -1;  ///< of attention weights; -1 = dropout
  Initialization init = Initialization::gpt2;  ///< distribution of new weights
};
/// True for a classifier of whole texts, and for one of each token.
bool classifies_texts(const Config& config);
bool classifies_tokens(const Config& config);
/// True if each position has a learned embedding.
bool learns_positions(const Config& config);
/// True if each distance has a learned bias.
bool learns_distances(const Config& config);
/// The letter of a layer in Config::mixers.
char mixer_of(const Config& config, int64_t layer);
/// True if the layer has attention, with a window or without.
bool has_attention(const Config& config, int64_t layer);
/// The window of a layer; 0 = none.
int64_t window_of(const Config& config, int64_t layer);

/// An attention layer of a model.
struct AttentionLayer {
  std::string name = {};            ///< prefix of its parameters, "blocks.0.attention"
  int64_t heads = 0, kv_heads = 0;  ///< H and Hk
  std::vector<int64_t> kept = {};   ///< its key/value heads, numbered as in the unpruned model
};
/// The self-attention of the layers that have it, then, with an encoder, their cross-attention, then the encoder's.
std::vector<AttentionLayer> attention_layers(const Config& config);

/// The defaults of a family. Throws Error that lists the families for an unknown name.
Config family(std::string_view name);
std::vector<std::string> families();
/// The model_type of each family that open() reads from folders of the Hugging Face hub, as "bert", "qwen3".
std::vector<std::string> hub_families();

/// Sets fields from a JSON object; `source` is the name that errors show. "model" first sets all fields to the defaults
/// of that family, wherever it is in the object: {"model": "llama", "bias": true}. Without `family_defaults` it sets
/// the name of the family alone. One Error lists all unknown fields, wrong types and values out of range.
void apply_json(Config& config, std::string_view json, const std::string& source, bool family_defaults = true);
/// A field of a configuration, for help texts and forms.
struct FieldInfo {
  std::string name = {}, description = {};
  std::string kind = {};                  ///< "whole number", "number", "text", "true or false", "list of numbers" ...
  std::vector<std::string> choices = {};  ///< of text, and true and false
  double lowest = 0, highest = 0;         ///< of numbers
  std::string value = {};                 ///< in the form that set_field() takes
};
/// All fields with their values in `config`.
std::vector<FieldInfo> field_info(const Config& config = {});
/// Sets one field from text, as "layers=6" on a command line; "model" sets all fields to the defaults of that family.
/// Throws Error.
void set_field(Config& config, std::string_view field, std::string_view value);
/// Sets Config::mixers, and the fields of the mixers, by name. `mixer` is one of full, window:TOKENS,
/// convolution:TOKENS, lstm, lstm:HIDDEN, moba:BLOCK, nsa:BLOCK, own, linear (as the fields say), gated_delta,
/// kimi_delta, delta, gla, retention, mamba2 or elu; `every`, as "4:full", names the mixer of every fourth layer.
/// embed_dim and heads must be set before. Throws Error.
void set_mixers(Config& config, std::string_view mixer, std::string_view every = "");
std::string to_json(const Config& config);
/// Throws Error that lists every reason why the model cannot be built.
void check(const Config& config);
/// Throws Error unless so many ranks, at least 1, can share the layers of the model,
void check_tensor_ranks(const Config& config, int ranks);
/// or its sequences.
void check_sequence_ranks(const Config& config, int ranks);

// ------------------------------------------------------------------------------------------ what a configuration costs

/// A parameter of a model that is not built.
struct ParameterShape {
  std::string name = {};
  std::vector<int64_t> shape = {};
  bool decay = false;     ///< weight decay applies
  int64_t count() const;  ///< numbers in it
};
/// The parameters of a model, in its order, without allocating them.
std::vector<ParameterShape> parameter_shapes(const Config& config);

/// Numbers in the parameters of each component; a tied head counts as embedding.
struct ParameterCounts {
  int64_t embedding = 0, attention = 0, feed_forward = 0, norms = 0, head = 0;
  int64_t total() const { return embedding + attention + feed_forward + norms + head; }
};
ParameterCounts count_parameters(const Config& config);

/// Flops, a multiply-add counted as two, of a forward over `tokens` tokens of one sequence after `cached` ones;
/// last_only as in ForwardOptions. An encoder reads `tokens` tokens too. A training step takes three times as many.
double forward_flops(const Config& config, int64_t tokens, int64_t cached = 0, bool last_only = false);
/// Bytes of keys and values per token, of the layers with attention and of those with MoBA and NSA, whose states grow;
/// compressed ones are rounded up. `storage` is of the layers with attention.
int64_t cache_bytes_per_token(const Config& config, DType dtype, KVStorage storage = KVStorage::exact);
/// Bytes of the states of one sequence that do not grow with the text, of the layers with other mixers; with NSA the
/// most that its window and its open block take.
int64_t state_bytes(const Config& config, nn::Precision precision);

/// What the weight matrices of a model become as it is opened: 8 or 4 bits a number, and a scale for each group of 32
/// or 128 numbers. docs/shrink.md says which of them do, and what that costs in accuracy.
enum class Quantization { int8, int4 };
constexpr auto enum_names(Quantization) { return std::to_array<std::string_view>({"int8", "int4"}); }

/// The peak memory of a training, in bytes.
struct TrainingMemory {
  double weights = 0;      ///< with the masters
  double gradients = 0;    ///< of all parameters
  double moments = 0;      ///< both moments of AdamW
  double activations = 0;  ///< what the tape keeps for the backward, with logits and their gradient
  double validation = 0;   ///< what a validation takes besides
  double total() const { return weights + gradients + moments + activations + validation; }
};
/// The memory of a training with batches [sequences, length], computed from what each operation of the tape keeps; a
/// test compares it with measurements. With `recompute` blocks keep only their inputs. `trains` as in
/// nn::Parameters::Options: frozen parameters have no gradients and no moments. Of a model that predicts tokens from
/// both sides a fifth of the tokens have targets.
TrainingMemory training_memory(const Config& config, nn::Precision precision, int64_t sequences, int64_t length,
                               bool recompute = false, const std::function<bool(std::string_view)>& trains = {});
/// The bytes that this process can still allocate: the available memory of the system, or less if a control group
/// limits it; infinite if neither is known. `root` is a prefix of /proc and /sys, for tests.
double available_memory(const std::string& root = "");

}  // namespace attn::models
#pragma GCC visibility pop
