// models: one forward for every family. A family (selfhead, encoder, gpt, llama) is a set of defaults for one
// configuration; the configuration says how embeddings, blocks and head are put together.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/io.h"
#include "attn/nn.h"
#include "attn/text.h"

namespace attn::models {

using autograd::Tape;
using autograd::Value;

/// All that decides the shape of a model. Text fields hold one of the names listed.
struct Config {
  std::string model = "gpt";          ///< selfhead, encoder, gpt, llama
  int64_t vocab_size = 0;             ///< V, from the tokenizer
  int64_t context = 64;               ///< the longest sequence
  int64_t embed_dim = 128;            ///< C
  int64_t layers = 4;                 ///< N
  int64_t heads = 4;                  ///< H
  int64_t kv_heads = 0;               ///< Hk; 0 = heads
  int64_t key_dim = 0;                ///< d_k of selfhead; 0 = embed_dim
  int64_t value_dim = 0;              ///< d_v of selfhead; 0 = embed_dim
  int64_t hidden_dim = 0;             ///< of the feed-forward; 0 = 4 C, or 8/3 C rounded up to 32 where it is gated
  int64_t classes = 0;                ///< > 0: classifies instead of predicting tokens
  std::string pooling = "mean";       ///< of classifiers: mean, first
  std::string positions = "learned";  ///< none, learned, sinusoidal, relative, alibi, rope
  std::string norm = "layer";         ///< layer, rms
  bool norm_first = true;
  double norm_epsilon = 1e-5;
  std::string activation = "gelu_tanh";  ///< relu, gelu, gelu_tanh, silu, tanh
  bool gated = false;
  bool bias = true;  ///< of products and layer norms
  bool causal = true;
  int64_t window = 0;          ///< a token sees so many tokens, itself included; 0 = all
  bool tie_embeddings = true;  ///< the head is the embedding's table
  double rope_theta = 10000;
  bool rope_interleaved = false;
  double dropout = 0;
  std::string init = "gpt2";  ///< gpt2, xavier
};

/// The defaults of a family; throws Error that lists the families.
Config family(std::string_view name);
std::vector<std::string> families();

/// Sets fields from JSON text: an object; `source` is the name that errors use. Unknown fields, wrong types and values
/// out of range are all listed in one Error.
void apply_json(Config& config, std::string_view json, const std::string& source);
/// The names of all fields.
std::vector<std::string> fields();
/// Sets one field from text, as "layers=6" on a command line does.
void set_field(Config& config, std::string_view field, std::string_view value);
std::string to_json(const Config& config);
/// Throws Error that lists everything that cannot be built.
void check(const Config& config);

/// A batch of sequences of one length, the shorter ones padded at the end.
struct Batch {
  std::vector<int64_t> tokens;   ///< [B, L]
  std::vector<int64_t> targets;  ///< [B, L] next tokens, or [B] classes; ops::kIgnored takes no part
  std::vector<int64_t> lengths;  ///< [B]; empty = all L
  int64_t sequences = 0;         ///< B
  int64_t length = 0;            ///< L
};

/// The keys and values that a model has seen, for a batch of sequences.
class Cache {
 public:
  Cache() = default;
  int64_t length() const { return layers_.empty() ? 0 : layers_.front().length(sequences_.front()); }
  int64_t bytes() const;
  /// Forgets the tokens from `length` on.
  void truncate(int64_t length);

 private:
  friend class Model;
  std::vector<KvCache> layers_;
  std::vector<int64_t> sequences_;
};

struct ForwardOptions {
  Cache* cache = nullptr;                             ///< the tokens continue what is cached; inference only
  bool last_only = false;                             ///< logits of each sequence's last token alone
  bool recompute = false;                             ///< keep only the inputs of blocks, compute the rest again
  std::vector<nn::AttentionTrace>* traces = nullptr;  ///< one a layer, filled
};

class Model {
 public:
  /// Throws Error as check() does. `precision` and `seed` are of the parameters.
  Model(const Config& config, nn::Precision precision, uint64_t seed = 0);

  const Config& config() const { return config_; }
  /// Throws Error, as all that needs parameters, where the model has been moved away.
  const nn::Parameters& parameters() const { return owned(); }

  /// Logits [B, L, V]; [B, 1, V] with last_only; [B, classes] of a classifier. float32, or float64. Throws Error that
  /// lists all that is wrong with the batch, and with the cache and the traces for it.
  Value forward(Tape& tape, const Batch& batch, const ForwardOptions& options = {}) const;
  /// The mean cross entropy over the targets.
  Value loss(Tape& tape, const Batch& batch, const ForwardOptions& options = {}) const;

  /// For so many texts, at least one.
  Cache new_cache(int64_t sequences = 1) const;

  /// Multiply-adds, counted as two, of a forward over `length` tokens of one sequence; a training step takes three.
  double forward_flops(int64_t length) const;
  /// Bytes of keys and values a token.
  int64_t cache_bytes_per_token() const;

  /// Copies the parameters in; throws Error that lists all that is missing or of another shape.
  void load(const io::Safetensors& file, const std::string& prefix = "");
  /// The parameters, for io::format_safetensors().
  std::vector<io::NamedTensor> tensors(const std::string& prefix = "") const;

 private:
  Value block(Tape& tape, size_t layer, const Value& x, const nn::AttentionInputs& inputs) const;
  Value hidden(Tape& tape, const Batch& batch, const ForwardOptions& options) const;
  nn::Parameters& owned() const;
  KvCache::Config cache_config() const;
  int64_t layer_count() const;
  void check_call(const Tape& tape, const Batch& batch, const ForwardOptions& options, bool with_targets) const;
  Config config_;
  std::unique_ptr<nn::Parameters> parameters_;
  nn::Embedding tokens_, positions_;
  autograd::Array sinusoids_;
  std::vector<nn::Block> blocks_;
  std::vector<nn::SelfAttention> single_heads_;
  nn::Norm norm_;
  nn::Linear head_;
};

// ------------------------------------------------------------------------------------------------------- on the disk

/// What was saved at one step.
struct Checkpoint {
  std::string path;
  int64_t step = 0;
  io::Safetensors file;
  std::string state;  ///< JSON of the trainer
};

/// Checkpoints of a directory: step-<n>.safetensors, and checkpoints.json that names the last, the one before it and
/// the best, each with its CRC-32. A file is complete before it is named and is removed only after it is no longer
/// named, so a crash at any moment leaves a checkpoint that loads.
class Checkpoints {
 public:
  /// Throws Error for a directory without a name.
  explicit Checkpoints(std::string directory);

  /// `keep` protects this one from removal for good.
  void save(int64_t step, std::span<const io::NamedTensor> tensors, const std::string& state, bool best, bool keep);
  /// `which` is "last" or "best", and nothing else. A damaged file is passed over for the one before it; every such
  /// event adds a line to `notes`. Throws Error if nothing loads.
  Checkpoint load(std::string_view which, std::vector<std::string>* notes) const;
  bool empty() const;

 private:
  std::string directory_;
};

/// A model with what belongs to it, from a directory that `attn train` wrote.
struct Loaded {
  std::unique_ptr<Model> model;
  std::unique_ptr<text::Tokenizer> tokenizer;
  int64_t step = 0;
  std::vector<std::string> notes;  ///< of damage that was met
};
Loaded load_model(const std::string& directory, std::string_view which = "best",
                  nn::Precision precision = nn::Precision::float32);

}  // namespace attn::models
