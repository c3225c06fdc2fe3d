// train: data, the optimiser's schedule, checkpoints and the loop.
//
// Everything random is a function of (seed, step): crops of the text, order of the sentences, dropout. So a training
// that stops anywhere and resumes from its checkpoint computes, bit for bit, what the unbroken one computes.
#pragma once

#include <functional>
#include <optional>

#include "attn/models.h"
#include "attn/nn_optimiser.h"

#pragma GCC visibility push(default)
namespace attn::train {

// ------------------------------------------------------------------------------------------------------------- data

/// Where batches come from. Every method is const: the same number gives the same batch. Those here throw Error for a
/// validation batch that there is not.
class Data {
 public:
  virtual ~Data() = default;
  virtual models::Batch training(uint64_t number) const = 0;
  virtual models::Batch validation(int64_t number) const = 0;
  virtual int64_t validation_batches() const = 0;
  /// Batches that show all training data once.
  virtual int64_t batches_per_epoch() const = 0;
  /// One line: what there is.
  virtual std::string describe() const = 0;
};

/// Crops of a text: `batch` sequences of `context` tokens at places drawn from (seed, number), and the tokens after
/// each. The last `validation_tokens` of them, 0 = a tenth, are for validation, in crops spread evenly, at most
/// `validation_batches`.
class TextData : public Data {
 public:
  /// Throws Error for a text that is too short for one crop in each part, and for a negative token.
  TextData(std::vector<int64_t> tokens, int64_t context, int64_t batch, uint64_t seed, int64_t validation_batches = 20,
           int64_t validation_tokens = 0);
  models::Batch training(uint64_t number) const override;
  models::Batch validation(int64_t number) const override;
  int64_t validation_batches() const override;
  int64_t batches_per_epoch() const override;
  std::string describe() const override;

 private:
  models::Batch crops(std::span<const int64_t> first) const;
  std::vector<int64_t> tokens_;
  int64_t context_, batch_, validation_begin_, validation_batches_;
  uint64_t seed_;
};

struct Labelled {
  std::vector<int64_t> tokens;  ///< at least one
  int64_t label = 0;
};

/// Sentences with classes: shuffled every epoch, those of like length together, padded with token 0 to the longest.
/// With `word_dropout`, that share of the words is token 1, <unk>, in training (Iyyer et al. 2015): other words every
/// epoch, so that no single one decides.
class LabelledData : public Data {
 public:
  /// Throws Error for a sentence without tokens, and for a negative token or label.
  LabelledData(std::vector<Labelled> training, std::vector<Labelled> validation, int64_t context, int64_t batch,
               uint64_t seed, double word_dropout = 0);
  models::Batch training(uint64_t number) const override;
  models::Batch validation(int64_t number) const override;
  int64_t validation_batches() const override;
  int64_t batches_per_epoch() const override;
  std::string describe() const override;

 private:
  models::Batch padded(const std::vector<Labelled>& from, std::span<const int64_t> which) const;
  std::vector<Labelled> training_, validation_;
  int64_t context_, batch_;
  uint64_t seed_;
  double word_dropout_;
};

/// A row of a file of sentences with classes.
struct LabelledText {
  std::string text, label;
  int64_t line = 0;  ///< where the row begins, from 1
};
/// True for the names that end in .tsv, .csv or .jsonl.
bool is_labelled(std::string_view path);
/// .csv as in RFC 4180; .jsonl, an object a line with "text" and "label"; any other name, or "-" for the standard
/// input: lines of text, tab, label. The first row may name the columns: "text" or "sentence", and "label". Throws
/// Error with the file and the line.
std::vector<LabelledText> read_labelled(const std::string& path);

/// The classes that the labels stand for: the different labels, whole numbers by value and others by their bytes. Where
/// all are whole numbers below `least` or below how many there are, every number below that is one, seen or not.
std::vector<std::string> classes_of(std::span<const LabelledText> rows, int64_t least = 0);
/// Rows as tokens with the places of their labels among `classes`. Throws Error that names the first label that is not
/// among them, or text without a token, with its line; `source` is the name that errors use.
std::vector<Labelled> encode_labelled(std::span<const LabelledText> rows, const text::Tokenizer& tokenizer,
                                      std::span<const std::string> classes, const std::string& source);

// ------------------------------------------------------------------------------------------------------------ options

/// Dynamic loss scaling (Micikevicius et al. 2018, arXiv:1710.03740), by the rule of torch.amp.GradScaler: gradients
/// are those of scale times the loss, so that small ones are not lost in 16 bits, and are divided by it before they are
/// measured, clipped and applied.
struct LossScaling {
  std::optional<bool> on = {};  ///< absent: for float16 alone
  double initial = 65536;       ///< the first scale, from 1 to the largest float32
  double growth = 2;            ///< the scale times this after `interval` updates in a row, > 1
  double backoff = 0.5;         ///< the scale times this after gradients that are not finite, in (0, 1)
  int64_t interval = 2000;
};

/// The scale and how many updates in a row went well with it.
class LossScaler {
 public:
  /// Throws Error with every option that is out of range.
  explicit LossScaler(const LossScaling& options = {});
  double scale() const { return scale_; }  // a float32, as the gradient of the loss is
  int64_t streak() const { return streak_; }
  /// A smaller scale would make gradients smaller than they are: 1 is the last.
  bool can_back_off() const { return scale() * options_.backoff >= 1; }
  /// After a backward: `finite` says whether all gradients were. The scale stays between 1 and the largest float32.
  void update(bool finite);
  /// Continues where another stopped. Throws Error for what no scaler of these options gives.
  void restore(double scale, int64_t streak);

 private:
  LossScaling options_;
  float scale_;
  int64_t streak_ = 0;
};

struct Options {
  int64_t steps = 2000;      ///< updates
  int64_t accumulation = 1;  ///< batches an update
  double learning_rate = 1e-3;
  double min_learning_rate = 1e-4;  ///< where the cosine ends
  int64_t warmup = 100;             ///< steps of linear growth before the cosine
  int64_t decay_steps = 0;          ///< where the cosine ends; 0 = steps
  double beta1 = 0.9;
  double beta2 = 0.99;
  double epsilon = 1e-8;
  double weight_decay = 0.1;    ///< of products and embeddings, not of biases and norms
  double clip = 1;              ///< largest norm of all gradients together; 0 = no limit
  int64_t eval_every = 250;     ///< steps between validations; 0 = only at the end
  int64_t save_every = 0;       ///< steps between checkpoints; 0 = with each validation
  int64_t keep_every = 0;       ///< checkpoints at these steps are never removed; 0 = none
  bool recompute = false;       ///< blocks compute their values again in the backward: less memory, a third more work
  bool skip_nonfinite = false;  ///< leave out an update whose gradients are not finite instead of stopping
  LossScaling scaling = {};
  uint64_t seed = 1337;
};

/// Warm-up, cosine, constant; `step` counts from 0. Throws Error for options that no training can have.
double learning_rate(const Options& options, int64_t step);

struct StepReport {
  int64_t step = 0;  ///< updates done
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  double seconds = 0;
  int64_t tokens = 0;     ///< that took part
  bool skipped = false;   ///< not finite, left out
  double loss_scale = 1;  ///< that the gradients were computed with
};

struct Validation {
  double loss = 0;
  double accuracy = 0;  ///< share of targets that have the largest logit
};
/// Throws Error where no target takes part. `options` are of every forward, as gates are.
Validation validate(const models::Model& model, const Data& data, const models::ForwardOptions& options = {});

// --------------------------------------------------------------------------------------------------------------- loop

class Trainer {
 public:
  /// The model and the data must outlive the trainer. The directory is there before run(), or has no name: nothing is
  /// saved then. Throws Error for options that no training can have and for a directory that is something else.
  Trainer(models::Model& model, const Data& data, const Options& options, std::string directory);

  /// Continues from the directory's last whole checkpoint; what was passed over is said in `notes`. Throws Error if the
  /// checkpoint belongs to another model or to other options that decide the numbers. The number of steps may differ if
  /// decay_steps is given.
  void resume(std::vector<std::string>* notes);

  /// One update. Throws Error before the update if the loss or a gradient is not finite, with the step and the first
  /// operation or parameter that is not. With loss scaling, gradients that are not finite are first a reason to leave
  /// the update out and shrink the scale, as long as that can shrink. Steps count batches, so that a step left out has
  /// its place in the schedule and the order of data; the bias correction of AdamW counts updates.
  StepReport step();
  /// Validates, remembers the best score.
  Validation validate();
  /// Writes a checkpoint; `best` if the last validation was the best.
  void save();

  int64_t steps_done() const { return step_; }
  /// The smallest validation loss; of a classifier, the smallest share of wrong answers.
  double best_score() const { return best_score_; }

  struct Events {
    std::function<void(const StepReport&)> step = {};
    std::function<void(int64_t step, const Validation&, bool best)> validation = {};
    std::function<void(const std::string& text)> note = {};  ///< a checkpoint could not be written, ...
    std::function<bool()> stop = {};                         ///< true: finish this step, save and return
  };
  /// Until all steps are done (true) or stop says so (false). A checkpoint that cannot be written is noted and tried
  /// again with the next one; the last one must succeed.
  bool run(const Events& events);

 private:
  [[noreturn]] void explain_nonfinite(const std::string& what, uint64_t number);
  double accumulate_gradients(StepReport& report);
  void update_parameters(double gradient_factor, double learning_rate);
  models::Model& model_;
  const Data& data_;
  Options options_;
  std::string directory_;
  std::shared_ptr<autograd::Recycler> memory_;
  nn::Optimiser optimiser_;
  std::optional<LossScaler> scaler_;  // absent: the scale is 1
  int64_t step_ = 0;
  double best_score_;
  bool is_best_ = false;
  int64_t saved_step_ = -1;
};

}  // namespace attn::train
#pragma GCC visibility pop
