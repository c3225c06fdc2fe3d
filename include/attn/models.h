// models: one forward for every model family; checkpoints and folders.
//
// ```cpp
// #include "attn/models.h"
// using namespace attn;
// int main() {
//   models::Config config = models::family("gpt");
//   config.vocab_size = 100;
//   const models::Model model(config, nn::Precision::float32, 1);  // random weights
//   autograd::Tape tape;
//   const nn::Value logits = model.forward(tape, {.tokens = {5, 7, 9}, .sequences = 1, .length = 3});  // [1, 3, 100]
// }
// ```
//
// models::open("FOLDER").model is the model of a folder of the Hugging Face hub or of `attn train`.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "attn/io.h"
#include "attn/models_cache.h"
#include "attn/models_config.h"
#include "attn/models_generation.h"
#include "attn/nn.h"
#include "attn/record.h"
#include "attn/text.h"

#pragma GCC visibility push(default)
namespace attn::models {

using autograd::Tape;
using autograd::Value;

// ---------------------------------------------------------------------------------------------------------- the model

/// A batch of sequences: padded to one length at the end, or packed.
struct Batch {
  std::vector<int64_t> tokens = {};          ///< [B, L]; packed: all sequences one after the other
  std::vector<int64_t> token_type_ids = {};  ///< shaped as tokens, in [0, type_vocab_size); empty = 0
  std::vector<int64_t> targets = {};         ///< [B, L] tokens, or [B] classes; ops::kIgnoreIndex is ignored
  std::vector<double> target_weights = {};   ///< shaped as targets, >= 0: weights of their losses; empty = 1
  std::vector<double> values = {};           ///< [B, classes] in place of targets: the numbers of a regression
  std::vector<int64_t> lengths = {};         ///< [B] in 1 .. L; empty = all L; must be empty with a cache
  int64_t sequences = 0;                     ///< B
  int64_t length = 0;                        ///< L; packed: the number of all tokens
  /// Packed: where each sequence begins in tokens, then their number [B + 1]. There is no padding; lengths stay empty.
  std::vector<int64_t> cu_seqlens = {};
  /// The encoder's tokens [B, source_length], for models with an encoder; empty where the cache has its states already.
  std::vector<int64_t> source = {};
  std::vector<int64_t> source_lengths = {};  ///< [B]; empty = all source_length
  int64_t source_length = 0;
  /// Embeddings in place of tokens, or of the source, for models with takes_embeddings: [B, L, C] of an image's class
  /// token and patches, or [B, source_length, C] of sound, without positions. They get no gradient.
  Array inputs_embeds = {};
};

struct ForwardOptions {
  ModelCache* cache = nullptr;  ///< the tokens follow the cached ones; inference only
  /// Of a packed batch with a cache: the sequences of the cache that it continues, by index [B]; empty = all.
  std::span<const int64_t> cache_sequences = {};
  bool last_only = false;  ///< logits of each sequence's last token only
  /// Activation checkpointing: keep only the inputs of blocks.
  bool recompute = false;
  Recorder* recorder = nullptr;                               ///< records the attention of one text, also with a cache
  std::vector<nn::AttentionTrace>* traces = nullptr;          ///< filled, one per layer
  std::vector<nn::AttentionTrace>* cross_traces = nullptr;    ///< filled, of the cross-attention of each layer
  std::vector<nn::AttentionTrace>* encoder_traces = nullptr;  ///< filled, one per encoder layer
  const std::vector<Value>* gates = nullptr;  ///< nn::AttentionInputs::gates of each of attention_layers()
  /// Ranks share the sequences, and the batch has this rank's tokens of each, as shard_of() of attn/models_ranks.h
  /// takes them. Of models that predict tokens with attention alone, without an encoder and relative positions. loss()
  /// is then this rank's part of the mean over the targets of all: their sum is the loss, and the sums of gradients its
  /// gradients.
  const autograd::SharedSequence* sequence = nullptr;
};

/// What Model::target_logits() returns.
struct TargetLogits {
  Value logits = {};
  std::vector<int64_t> targets = {};  ///< [n]
  std::vector<double> weights = {};   ///< [n]; empty = 1
};

class Model {
 public:
  /// Random weights of this precision and seed. Throws Error as check() does.
  Model(const Config& config, nn::Precision precision, uint64_t seed = 0);
  /// Weights from `source`, which must not be null.
  Model(const Config& config, nn::Precision precision, nn::ParameterSource source,
        nn::Purpose purpose = nn::Purpose::inference);
  /// The same with `trains` and the other options of parameters, but for those that the configuration has:
  /// initialization, residual_factor and lora. With tensor_ranks all call each function alike, and get the same
  /// results; mixers, adapters, recorders, traces and gates are refused.
  Model(const Config& config, nn::Parameters::Options options, nn::ParameterSource source);

  const Config& config() const { return config_; }
  /// Every method of a moved-from model that needs parameters throws Error.
  const nn::Parameters& parameters() const { return owned(); }
  nn::Parameters& parameters() { return owned(); }

  /// Logits, in float32 or float64: [B, L, V]; [B, 1, V] with last_only; [B, classes] of a classifier, [B, L, classes]
  /// of a token classifier. R packed tokens give [1, R, ..], with last_only [1, B, V], and a classifier [B, classes]. A
  /// model without a head returns hidden(), or [B, C] with a pooler. A batch may be longer than the context unless
  /// positions are learned. Throws Error that lists everything wrong with the batch, the cache and the traces.
  Value forward(Tape& tape, const Batch& batch, const ForwardOptions& options = {}) const;
  /// The last hidden states [B, L, C], after the last norm.
  Value hidden(Tape& tape, const Batch& batch, const ForwardOptions& options = {}) const;
  /// The pooler's output of first rows [R, C], which forward() applies.
  Value pooler(Tape& tape, const Value& first) const;
  /// The logits of the rows that have a target, [.., n, V], with those targets and weights. Throws Error as loss().
  TargetLogits target_logits(Tape& tape, const Batch& batch, const ForwardOptions& options = {}) const;
  /// The mean cross entropy over the targets, whose rows alone have logits; with Batch::values the mean squared error.
  Value loss(Tape& tape, const Batch& batch, const ForwardOptions& options = {}) const;

  /// An empty cache for `sequences` >= 1 texts of a causal model. Only learned positions limit its length, and not that
  /// of a streaming cache; docs/models.md has the exact meaning. Recorders and traces of self-attention support neither
  /// that nor 8 bits. Throws Error, also for int8 without a layer that has keys and values.
  ModelCache new_cache(int64_t sequences = 1, const Streaming& streaming = {},
                       KVStorage storage = KVStorage::exact) const;

  /// The same for one text of which each rank keeps the keys and values of some tokens. All call forward() alike, and
  /// get the same logits. The first call, which must be last_only, divides a long text over the ranks. For models as in
  /// ForwardOptions::sequence, without windows and ALiBi. Borrows the ranks.
  ModelCache new_shared_cache(cluster::Communicator& ranks, KVStorage storage = KVStorage::exact) const;

  /// Copies the parameters from a file. Throws Error that lists every tensor that is missing or has another shape.
  void load(const io::Safetensors& file, const std::string& prefix = "");
  /// The parameters, for io::format_safetensors(). Borrows their memory.
  std::vector<io::NamedTensor> tensors(const std::string& prefix = "") const;

 private:
  friend std::vector<ParameterShape> parameter_shapes(const Config& config);
  friend int64_t state_bytes(const Config& config, nn::Precision precision);
  using Layers = std::vector<std::variant<nn::Block, nn::SelfAttention>>;
  void make_layers(const nn::Scope& scope, Layers& layers, int64_t count, bool encoder);
  void make_head(const nn::Scope& root, int64_t width);
  Value block(Tape& tape, const Layers& layers, size_t layer, const Value& x, const nn::AttentionInputs& inputs) const;
  Value embed(Tape& tape, const Batch& batch, std::span<const int64_t> first, const Streaming& streaming, bool encoder,
              const autograd::SharedSequence* sequence = nullptr) const;
  Value rows(Tape& tape, const Batch& batch, const ForwardOptions& options) const;
  Value encode(Tape& tape, const Batch& batch, const ForwardOptions& options) const;
  Value pooled(Tape& tape, const Value& x, const Batch& batch) const;
  Value logits(Tape& tape, Value x, bool whole) const;
  TargetLogits logits_of_targets(Tape& tape, const Batch& batch, const ForwardOptions& options, bool whole) const;
  Value score(Tape& tape, const Batch& batch, const ForwardOptions& options, bool whole) const;
  cluster::Communicator* vocabulary_ranks() const;
  Value last_of_divided(Tape& tape, const Batch& batch, const ForwardOptions& options) const;
  nn::Parameters& owned() const;
  KVCacheConfig cache_config(int64_t place) const;
  std::vector<nn::MixerState> new_states(int64_t sequences) const;
  void check_cache(Checker& checker, const Tape& tape, const Batch& batch, const ForwardOptions& options,
                   bool whole) const;
  void check_call(const Tape& tape, const Batch& batch, const ForwardOptions& options, bool with_targets) const;
  Config config_;
  std::unique_ptr<nn::Parameters> parameters_;
  nn::Embedding tokens_, positions_, types_, encoder_tokens_, encoder_positions_;
  nn::Norm embedding_norm_, encoder_embedding_norm_, encoder_norm_, norm_, head_norm_;
  nn::Linear embedding_projection_, head_dense_, head_, pooler_;
  Layers encoder_, layers_;
};

// ------------------------------------------------------------------------------------------------------- on the disk

/// A checkpoint: everything saved at one step.
struct Checkpoint {
  std::string path = {};
  int64_t step = 0;
  io::Safetensors file = {};
  std::string state = {};  ///< JSON of the trainer
};

/// The directory of a training. It has the checkpoints step-<n>.safetensors, each with a CRC-32, and checkpoints.json,
/// which names the last, the one before it, the best, and all files that the training wrote; no other file is ever
/// replaced or removed. A checkpoint is complete before checkpoints.json names it and removed only after it is no
/// longer named, so that a checkpoint loads after a crash at any moment.
class Checkpoints {
 public:
  /// Throws Error for an empty path.
  explicit Checkpoints(std::string directory);

  /// The reason why a training that writes files of these `names` may not start here; empty if it may. It may if the
  /// directory does not exist, is empty, or holds a training that has no checkpoint yet or that `replace` discards.
  std::string obstacle(std::span<const std::string> names, bool replace) const;
  /// Creates the directory, removes the training that it held, and writes `files`, name -> content. `others` are names
  /// that the caller will write later. Throws Error if there is an obstacle().
  void begin(const std::map<std::string, std::string>& files, std::span<const std::string> others, bool replace);
  /// Adds names to the files of the training that is resumed.
  void claim(std::span<const std::string> names);

  /// Saves a checkpoint. `keep` protects it from removal.
  void save(int64_t step, std::span<const io::NamedTensor> tensors, const std::string& state, bool best, bool keep);
  /// Loads the checkpoint `which`, "last" or "best". A damaged file is replaced by the one before it, and a line is
  /// added to `notes`. Throws Error if none loads.
  Checkpoint load(std::string_view which, std::vector<std::string>* notes) const;
  std::optional<int64_t> last_step() const;  ///< of the newest file, complete or not

 private:
  std::string directory_;
};

/// The file of the encoder's tokenizer in a model's directory, where the encoder has its own vocabulary.
inline constexpr const char* kSourceTokenizerFile = "source_tokenizer.json";
/// The file of a classifier's class names in its directory, a JSON list.
inline constexpr const char* kLabelsFile = "labels.json";
/// True for 1 to 256 bytes of UTF-8 without control characters.
bool is_label(std::string_view name);
/// The content of that file. Throws Error for names that is_label() refuses and for a name that occurs twice.
std::string labels_to_json(std::span<const std::string> labels);
/// The names of `classes` classes from that file; "0", "1", ... if it does not exist. Throws Error that names the file.
std::vector<std::string> load_labels(const std::string& directory, int64_t classes);

/// A model with its tokenizer and the other files of its folder.
struct Loaded {
  std::unique_ptr<Model> model = {};
  std::unique_ptr<text::Tokenizer> tokenizer = {};         ///< null for a folder without one
  std::unique_ptr<text::Tokenizer> source_tokenizer = {};  ///< of the encoder; null where both share one
  std::vector<std::string> labels = {};                    ///< the names of a classifier's classes
  std::vector<int64_t> eos_token_ids = {};                 ///< tokens that end a text
  /// Of a model with an encoder: the tokens that every output begins with. For models of `attn train` this is the last
  /// token of the vocabulary, which no text contains and which ends the output too.
  std::vector<int64_t> decoder_start_token_ids = {};
  GenerationConfig generation_config = {};       ///< of a folder of the hub
  std::string chat_template = {};                ///< Jinja, see generate::ChatTemplate; "" if the folder has none
  std::vector<std::string> new_parameters = {};  ///< names of those that OpenOptions::adapt has added
  int64_t step = 0;
  std::vector<std::string> notes = {};  ///< one line per damaged file
};
/// Loads what `attn train` wrote; masters only for Purpose::training. Throws Error.
Loaded load_model(const std::string& directory, std::string_view which = "best",
                  nn::Precision precision = nn::Precision::float32, nn::Purpose purpose = nn::Purpose::inference);

struct OpenOptions {
  nn::Precision precision = nn::Precision::float32;
  std::optional<Quantization> quantization = {};  ///< of weights, for inference
  cluster::Communicator* tensor_ranks = nullptr;  ///< share the model's layers, see Model; each reads its part
  /// Weights that the model's files have in few bits become numbers of `precision`, as they do for training.
  bool dequantize = false;
  nn::Purpose purpose = nn::Purpose::inference;
  std::string task = {};            ///< end of transformers' class name, as "ForMaskedLM", or "Model" for no head;
                                    ///< empty = the class that config.json names
  std::string_view which = "best";  ///< checkpoint of a training
  /// Pack the weights, see nn::Parameters::pack(). Absent: open_with_tokenizer() and Embedder pack weights for
  /// inference, open() does not.
  std::optional<bool> packed = {};
  /// Changes the configuration before the model is built, for fine-tuning: other classes, adapters, dropout. A head
  /// that the folder lacks or has in another shape, and adapters, are then new: random numbers by `seed`, and B of
  /// adapters zero.
  std::function<void(Config&)> adapt = {};
  /// A LoRA folder of PEFT for this folder of the hub: its adapters, and its head, if it has one, are added.
  std::string adapter = {};
  /// With `adapt`: the head is new even where the folder has one of this shape.
  bool new_head = false;
  uint64_t seed = 0;
  /// As nn::Parameters::Options::trains.
  std::function<bool(std::string_view name)> trains = {};
  /// Called with the numbers loaded so far and in all, for folders of the hub. Return false to stop with an Error.
  std::function<bool(int64_t done, int64_t total)> on_progress = {};
};
/// The configuration in a folder's config.json, of `attn train` or of the hub. Throws Error.
Config read_config(const std::string& folder, const std::string& task = "");
/// Opens a folder that `attn train` wrote or one of the Hugging Face hub, with config.json of a family of
/// hub_families() and model.safetensors, possibly in several files. Files of the hub are mapped: parameters that are
/// stored as layers need them take no memory of their own, and the files must not change while the model exists. Throws
/// Error with everything that is missing, has another shape or is not supported.
Loaded open(const std::string& folder, const OpenOptions& options = {});
/// The same for work on texts, with packed weights unless `options` say otherwise. Throws Error also where the folder
/// has no tokenizer.
Loaded open_with_tokenizer(const std::string& folder, const OpenOptions& options = {});

}  // namespace attn::models
#pragma GCC visibility pop
