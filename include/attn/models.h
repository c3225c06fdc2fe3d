// models: one forward for every family, and what belongs to a model on the disk.
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
#include "attn/models_config.h"
#include "attn/models_generation.h"
#include "attn/nn.h"
#include "attn/text.h"
#include "attn/view_recorder.h"

#pragma GCC visibility push(default)
namespace attn::models {

using autograd::Tape;
using autograd::Value;

// ---------------------------------------------------------------------------------------------------------- the model

/// A batch of sequences of one length, the shorter ones padded at the end.
struct Batch {
  std::vector<int64_t> tokens;   ///< [B, L]; packed, one sequence behind the other
  std::vector<int64_t> types;    ///< as tokens, the kind of each, in [0, token_types); empty = 0
  std::vector<int64_t> targets;  ///< [B, L] next tokens, or [B] classes; ops::kIgnored takes no part
  std::vector<int64_t> lengths;  ///< [B] in 1 .. L; empty = all L, as it must be where a cache is continued
  int64_t sequences = 0;         ///< B
  int64_t length = 0;            ///< L; packed, the number of tokens of all sequences
  /// Packed: where each sequence begins in tokens, then their number [B + 1]. Nothing is padded; lengths stay empty.
  std::vector<int64_t> starts = {};
  /// What the encoder of a model with one reads, [B, source_length]; empty where a cache has read it already.
  std::vector<int64_t> source = {};
  std::vector<int64_t> source_lengths = {};  ///< [B]; empty = all source_length
  int64_t source_length = 0;
  /// What a model that reads rows is given in place of tokens, or of the source: embeddings [B, L, C] of a picture's
  /// class token and patches, or [B, source_length, C] of sound, without their positions. They get no gradient.
  nn::Array rows = {};
};

/// The keys and values that a model has seen, for a batch of sequences.
class Cache {
 public:
  Cache() = default;
  int64_t length() const { return sequences_.empty() ? 0 : layers_.front().length(sequences_.front()); }
  int64_t bytes() const;
  /// Forgets the tokens from `length` on.
  void truncate(int64_t length);
  /// Its sequences are from now on those that are named, each by its number, perhaps several times: they share what is
  /// there and go on by themselves.
  void select(std::span<const int64_t> sequences);

 private:
  friend class Model;
  std::vector<KvCache> layers_;
  std::vector<int64_t> sequences_;
  std::vector<Value> memories_;  // what the cross-attention of each layer makes of the encoder's rows
  std::vector<int64_t> memory_lengths_;
  std::vector<int64_t> sources_;  // what each sequence's memory is of: equal numbers, equal rows
};

struct ForwardOptions {
  Cache* cache = nullptr;                                   ///< the tokens continue what is cached; inference only
  bool last_only = false;                                   ///< logits of each sequence's last token alone
  bool recompute = false;                                   ///< keep only the inputs of blocks, compute the rest again
  view::Recorder* recorder = nullptr;                       ///< keeps one text's attention, also behind a cache
  std::vector<nn::AttentionTrace>* traces = nullptr;        ///< one a layer, filled
  std::vector<nn::AttentionTrace>* cross_traces = nullptr;  ///< of the layers' looks at an encoder's rows
  std::vector<nn::AttentionTrace>* encoder_traces = nullptr;  ///< one a layer of the encoder
  const std::vector<Value>* gates = nullptr;  ///< one for each of attention_layers(), as nn::AttentionInputs has them
};

class Model {
 public:
  /// Throws Error as check() does. `precision` and `seed` are of the parameters.
  Model(const Config& config, nn::Precision precision, uint64_t seed = 0);
  /// Parameters from `source`, which must not be null.
  Model(const Config& config, nn::Precision precision, nn::Source source, nn::Purpose purpose = nn::Purpose::inference);

  const Config& config() const { return config_; }
  /// Throws Error, as all that needs parameters, where the model has been moved away.
  const nn::Parameters& parameters() const { return owned(); }

  /// Logits [B, L, V]; [B, 1, V] with last_only; [B, classes] of a classifier, [B, L, classes] where each token has
  /// one; [1, R, ..] of R packed tokens. float32, or float64; without a head the rows of hidden(), with a pooler its
  /// rows [B, C]. Throws Error that lists all that is wrong with the batch, and with the cache and the traces for it; a
  /// batch may be longer than the context, but with learned positions.
  Value forward(Tape& tape, const Batch& batch, const ForwardOptions& options = {}) const;
  /// The last layer's rows [B, L, C], behind the last norm.
  Value hidden(Tape& tape, const Batch& batch, const ForwardOptions& options = {}) const;
  /// Of a model with one, what its pooler makes of first rows [R, C]: forward() does so where nothing is packed.
  Value pooler(Tape& tape, const Value& first) const;
  /// The mean cross entropy over the targets.
  Value loss(Tape& tape, const Batch& batch, const ForwardOptions& options = {}) const;

  /// For so many texts, at least one, of any causal model. Only learned positions bound what it can hold.
  Cache new_cache(int64_t sequences = 1) const;

  /// Copies the parameters in; throws Error that lists all that is missing or of another shape.
  void load(const io::Safetensors& file, const std::string& prefix = "");
  /// The parameters, for io::format_safetensors().
  std::vector<io::NamedTensor> tensors(const std::string& prefix = "") const;

 private:
  friend std::vector<ParameterShape> parameter_shapes(const Config& config);
  Model(const Config& config, nn::Parameters::Options options, nn::Source source);
  using Layers = std::vector<std::variant<nn::Block, nn::SelfAttention>>;
  void make_layers(const nn::Scope& scope, Layers& layers, int64_t count, bool encoder);
  void make_head(const nn::Scope& root, int64_t width);
  Value block(Tape& tape, const Layers& layers, size_t layer, const Value& x, const nn::AttentionInputs& inputs) const;
  Value embed(Tape& tape, const Batch& batch, int64_t first, bool encoder) const;
  Value rows(Tape& tape, const Batch& batch, const ForwardOptions& options) const;
  Value encode(Tape& tape, const Batch& batch, const ForwardOptions& options) const;
  Value pooled(Tape& tape, const Value& x, const Batch& batch) const;
  Value logits(Tape& tape, Value x) const;
  nn::Parameters& owned() const;
  KvCache::Config cache_config(int64_t layer) const;
  void check_call(const Tape& tape, const Batch& batch, const ForwardOptions& options, bool with_targets) const;
  Config config_;
  std::unique_ptr<nn::Parameters> parameters_;
  nn::Embedding tokens_, positions_, types_, encoder_tokens_, encoder_positions_;
  nn::Norm embedding_norm_, encoder_embedding_norm_, encoder_norm_, norm_, head_norm_;
  nn::Linear embedding_projection_, head_dense_, head_, pooler_;
  Layers encoder_, layers_;
};

// ------------------------------------------------------------------------------------------------------- on the disk

/// What was saved at one step.
struct Checkpoint {
  std::string path;
  int64_t step = 0;
  io::Safetensors file;
  std::string state;  ///< JSON of the trainer
};

/// The directory of a training: checkpoints step-<n>.safetensors, each with a CRC-32, and checkpoints.json, which names
/// the last, the one before it, the best, and all files that the training wrote: no other is ever replaced or removed.
/// A file is complete before it is the last and is removed only after it is no longer named, so a crash at any moment
/// leaves a checkpoint that loads.
class Checkpoints {
 public:
  /// Throws Error for a directory without a name.
  explicit Checkpoints(std::string directory);

  /// Why no training that writes files of these `names` may begin here; empty if one may: there is no such directory,
  /// it is empty, or it is that of a training which has no checkpoint yet or which `replace` gives up.
  std::string obstacle(std::span<const std::string> names, bool replace) const;
  /// Makes the directory, gives up the training that it held, and writes `files`, name -> content. `others` are names
  /// that the caller will write. Throws Error if there is an obstacle.
  void begin(const std::map<std::string, std::string>& files, std::span<const std::string> others, bool replace);
  /// Of the training that is continued: counts these names among what it wrote.
  void claim(std::span<const std::string> names);

  /// `keep` protects this one from removal for good.
  void save(int64_t step, std::span<const io::NamedTensor> tensors, const std::string& state, bool best, bool keep);
  /// `which` is "last" or "best", and nothing else. A damaged file is passed over for the one before it; every such
  /// event adds a line to `notes`. Throws Error if nothing loads.
  Checkpoint load(std::string_view which, std::vector<std::string>* notes) const;
  std::optional<int64_t> last_step() const;  ///< of the newest file, whole or not; nothing if there is none

 private:
  std::string directory_;
};

/// The tokenizer of what an encoder reads, where it has a vocabulary of its own, is this file of its directory.
inline constexpr const char* kSourceTokenizerFile = "source_tokenizer.json";
/// The names of a classifier's classes are a list in this file of its directory.
inline constexpr const char* kLabelsFile = "labels.json";
/// True for 1 to 256 bytes of UTF-8 without control characters.
bool is_label(std::string_view name);
/// The file's content. Throws Error for what is_label() refuses and for a name that occurs twice.
std::string labels_to_json(std::span<const std::string> labels);
/// The names of `classes` classes; "0", "1", ... where there is no such file. Throws Error that names the file.
std::vector<std::string> load_labels(const std::string& directory, int64_t classes);

/// What the logits of a classifier say: which one of its classes it is, which of them it is, each by itself, or
/// numbers.
enum class Answers { one, any, numbers };

/// A model with what belongs to it, from a directory that `attn train` wrote.
struct Loaded {
  std::unique_ptr<Model> model;
  std::unique_ptr<text::Tokenizer> tokenizer;         ///< null for a folder of the hub without one
  std::unique_ptr<text::Tokenizer> source_tokenizer;  ///< of what an encoder reads; null where it is the same
  std::vector<std::string> labels;                    ///< of a classifier: the names of its classes
  Answers answers = Answers::one;                     ///< likewise
  std::vector<int64_t> ends;                          ///< tokens that end a text
  /// With an encoder: the tokens that every answer begins with. Where attn train made the model this is its last
  /// token, which no text has, and which ends the answer too.
  std::vector<int64_t> start;
  GenerationDefaults generation;  ///< of a folder of the hub
  int64_t step = 0;
  std::vector<std::string> notes;  ///< of damage that was met
};
/// Weights alone, without masters, unless the purpose is training.
Loaded load_model(const std::string& directory, std::string_view which = "best",
                  nn::Precision precision = nn::Precision::float32, nn::Purpose purpose = nn::Purpose::inference);

struct OpenOptions {
  nn::Precision precision = nn::Precision::float32;
  nn::Purpose purpose = nn::Purpose::inference;
  std::string task = {};            ///< of transformers' folders: the end of a class's name, as "Model" for no head;
                                    ///< empty = the class that config.json names
  std::string_view which = "best";  ///< of a training's checkpoints
  /// Products of many rows are quicker, and the weights take as much memory again: see nn::Parameters::pack(). For
  /// inference; absent: for an Embedder alone.
  std::optional<bool> packed = {};
  /// Of transformers' folders: hears of the numbers in the parameters that are there by now, and ends the work by
  /// false, with an Error.
  std::function<bool(int64_t done, int64_t total)> on_progress = {};
};
/// The configuration that a folder of either kind has in its config.json.
Config read_config(const std::string& folder, const std::string& task = "");
/// A model from either kind of folder: one that `attn train` wrote, or one of the Hugging Face hub, with config.json
/// (of a family of hub_families()) and model.safetensors, which may be in several files. Those are mapped: parameters
/// that lie there as layers want them take no memory of their own, and the files must stay as they are. Throws Error
/// with all that is missing, of another shape or not served.
Loaded open(const std::string& folder, const OpenOptions& options = {});

}  // namespace attn::models
#pragma GCC visibility pop
