// train: the learning rate schedule, validation, checkpoints and the training loop. Datasets are in attn/train_data.h.
//
// ```cpp
// #include "attn/train.h"
// using namespace attn;
// int main() {
//   models::Config config = models::family("gpt");
//   config.vocab_size = 50, config.context = 16, config.layers = 1, config.embed_dim = 32;
//   models::Model model(config, nn::Precision::float32, 1);
//   std::vector<int64_t> tokens(2000);
//   for (size_t n = 0; n < tokens.size(); ++n) tokens[n] = static_cast<int64_t>(n % 50);
//   const train::TextDataset data(tokens, 16, 8, 1);
//   train::Trainer trainer(model, data, {.steps = 20, .warmup = 5}, "");  // "": saves no checkpoints
//   trainer.run({.step = [](const train::StepReport& report) { (void)report.loss; }});
// }
// ```
//
// Everything random depends on (seed, step) only: crops of the text, order of the sentences, dropout. A training that
// stops anywhere and resumes from its checkpoint computes the same bits as one that was not interrupted.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "attn/cluster_grid.h"
#include "attn/models.h"
#include "attn/nn_adamw.h"
#include "attn/train_data.h"
#include "attn/train_metrics.h"

#pragma GCC visibility push(default)
namespace attn::train {

// ------------------------------------------------------------------------------------------------------------ options

/// Dynamic loss scaling (Micikevicius et al. 2018, arXiv:1710.03740) as in torch.amp.GradScaler: the backward computes
/// the gradients of scale x loss, so that small ones do not vanish in 16 bits; they are divided by the scale before
/// they are measured, clipped and applied.
struct LossScaling {
  std::optional<bool> on = {};  ///< absent: for float16 only
  double initial = 65536;       ///< the first scale, from 1 to the largest float32
  double growth = 2;            ///< factor on the scale after `interval` updates in a row, > 1
  double backoff = 0.5;         ///< factor on the scale after gradients that are not finite, in (0, 1)
  int64_t interval = 2000;
};

/// The current scale, and the number of updates in a row with finite gradients.
class LossScaler {
 public:
  /// Throws Error with every option that is out of range.
  explicit LossScaler(const LossScaling& options = {});
  double scale() const { return scale_; }  // a float32, as the gradient of the loss is
  int64_t streak() const { return streak_; }
  /// True if a smaller scale is possible; the smallest is 1.
  bool can_back_off() const { return scale() * options_.backoff >= 1; }
  /// Call it after each backward; `finite` is true if all gradients were finite. The scale stays between 1 and the
  /// largest float32.
  void update(bool finite);
  /// Restores the state of a scaler with these options. Throws Error for values that no such scaler has.
  void restore(double scale, int64_t streak);

 private:
  LossScaling options_;
  float scale_;
  int64_t streak_ = 0;
};

struct TrainerOptions {
  int64_t steps = 2000;      ///< updates
  int64_t accumulation = 1;  ///< batches per update, of all ranks together
  double learning_rate = 1e-3;
  double min_learning_rate = 1e-4;  ///< at the end of the cosine
  int64_t warmup = 100;             ///< steps of linear warm-up before the cosine
  int64_t decay_steps = 0;          ///< end of the cosine; 0 = steps
  double beta1 = 0.9;
  double beta2 = 0.99;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  ///< of matrices and embeddings, not of biases and norms
  double clip = 1;            ///< maximal norm of all gradients together; 0 = no clipping
  /// The learning rate of block n of N is multiplied with layer_decay^(N - 1 - n), that of embeddings with
  /// layer_decay^N: layer-wise decay of fine-tuning, in (0, 1].
  double layer_decay = 1;
  int64_t patience = 0;         ///< stop after so many validations without a new best; 0 = never
  int64_t eval_every = 250;     ///< steps between validations; 0 = only at the end
  int64_t save_every = 0;       ///< steps between checkpoints; 0 = with each validation
  int64_t keep_every = 0;       ///< checkpoints at multiples of it are kept; 0 = none
  bool recompute = false;       ///< activation checkpointing: less memory, a third more work
  bool skip_nonfinite = false;  ///< skip updates with gradients that are not finite, instead of stopping
  LossScaling scaling = {};
  uint64_t seed = 1337;
  /// Training over ranks. All ranks call the same functions, with the same model, data and options. The axes of the
  /// grid say what they share:
  ///   data      the batches of each update; `accumulation` is a multiple of its extent. Results have the same bits for
  ///             any extent, 1 included.
  ///   sequence  the tokens of every sequence, for language models on texts whose sequences are too long for one
  ///             machine, see models::ForwardOptions::sequence. Results differ by rounding for another extent, and
  ///             dropout outside of attention draws other numbers.
  ///   tensor    the layers of the model, whose parameters must be made for grid.tensor(), see
  ///             nn::Parameters::Options::tensor_ranks. Results differ by rounding for another extent.
  /// Ranks with the same part of the model each update a part of its parameters, and keep the moments of that part
  /// alone (ZeRO-1). Borrowed; null: this process alone, where gradients of several batches are added within products,
  /// and results differ by rounding.
  const cluster::RankGrid* ranks = nullptr;
  /// With `ranks`: send gradients that are complete while the backward computes others. The bits are the same.
  bool overlap = true;
};

/// The learning rate of a step, from 0: linear warm-up, cosine, constant. Throws Error for invalid options.
double learning_rate(const TrainerOptions& options, int64_t step);

struct StepReport {
  int64_t step = 0;  ///< updates done
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  double seconds = 0;
  int64_t tokens = 0;     ///< in the batches of the step
  bool skipped = false;   ///< the gradients were not finite
  double loss_scale = 1;  ///< of the backward
  int slowest_rank = 0;   ///< whose batches took longest,
  double slowness = 1;    ///< and how many times as long as those of the other ranks on average
};

/// What a validation found.
struct Validation {
  double loss = 0;
  double accuracy = 0;           ///< share of targets with the largest logit
  Metric metric = Metric::loss;  ///< decides which checkpoint is the best
  double score = 0;              ///< its value
};
struct ValidationOptions {
  /// Absent: accuracy for classifiers, loss for other models and for Batch::values.
  std::optional<Metric> metric = {};
  std::vector<std::string> labels = {};  ///< the names of the classes, for Metric::span_f1
  models::ForwardOptions forward = {};
  const cluster::RankGrid* ranks = nullptr;  ///< as in TrainerOptions; all get the result
};
/// Adds what the model says of a batch with targets or values, and its loss times their weight, to `predictions`;
/// returns that weight. `memory` is that of an earlier tape, to be reused. Throws Error as Model::loss().
double add_predictions(const models::Model& model, const models::Batch& batch, Predictions& predictions,
                       const models::ForwardOptions& options = {},
                       std::shared_ptr<autograd::Recycler> memory = nullptr);
/// The mean loss, accuracy and metric on all validation batches. Throws Error if there is no target, and as
/// metric_value().
Validation validate(const models::Model& model, const Dataset& data, const ValidationOptions& options = {});

// --------------------------------------------------------------------------------------------------------------- loop

/// The result of a LossFunction. A Value converts to it.
struct BatchLoss {
  BatchLoss(autograd::Value loss_, int64_t tokens_ = 0) : loss(std::move(loss_)), tokens(tokens_) {}
  /// One element, float32 or float64: the mean over the batch; of ranks that share sequences, parts whose sum that is.
  autograd::Value loss;
  int64_t tokens = 0;  ///< for StepReport::tokens
};
/// The loss of batch `number` on a tape that records and trains. The same number must give the same loss: a resumed
/// training calls it again, and so does the search for the first result that is not finite. Arrays that the loss
/// borrows must live until the next call.
using LossFunction = std::function<BatchLoss(autograd::Tape& tape, uint64_t number)>;

class Optimizer;

/// Trains a model on a dataset, or parameters with a loss of your own: schedule, clipping, loss scaling, validation,
/// checkpoints. With options.ranks, all ranks call resume(), step(), validate(), save() and run() alike; an error of
/// one is an Error on all.
class Trainer {
 public:
  /// Borrows model and data; they must outlive the trainer. The directory must exist before run(); with "" the trainer
  /// saves nothing. Throws Error for invalid options and for a path that is not a directory.
  Trainer(models::Model& model, const Dataset& data, const TrainerOptions& options, std::string directory,
          const ValidationOptions& validation = {});
  /// The same for layers and a loss of your own; options.recompute has no effect. Borrows the parameters. Without
  /// `validation` there is none, and no checkpoint is the best one. Each rank calls `validation`; what rank 0 finds
  /// counts.
  Trainer(nn::Parameters& parameters, LossFunction loss, const TrainerOptions& options = {}, std::string directory = "",
          std::function<Validation()> validation = {});
  ~Trainer();

  /// Continues from the last undamaged checkpoint; `notes` receives a line per damaged one. Throws Error if the
  /// checkpoint belongs to another model or to options that lead to other numbers. `steps` may differ if decay_steps is
  /// given.
  void resume(std::vector<std::string>* notes);

  /// Runs one step. If the loss or a gradient is not finite, it throws Error before the update, with the step and the
  /// first operation or parameter that is not finite. With loss scaling it skips the update and reduces the scale
  /// instead, as long as the scale is above its minimum. A skipped step counts in the schedule and in the order of
  /// data, but not in AdamW's bias correction.
  StepReport step();
  /// Validates and updates best_score(). Throws Error without a validation.
  Validation validate();
  /// Writes a checkpoint, as the best one if the last validation was the best. Rank 0 writes it. It holds all
  /// moments of its part of the model while it does, and one whole tensor. The file does not depend on the ranks.
  void save();

  int64_t steps_done() const { return step_; }
  /// The best Validation::score so far: the smallest loss, or the largest value of another metric.
  double best_score() const { return best_score_; }
  Metric best_metric() const { return metric_; }  ///< of best_score()

  /// Callbacks of run(). All are optional.
  struct Events {
    std::function<void(const StepReport&)> step = {};
    std::function<void(int64_t step, const Validation&, bool best)> validation = {};
    std::function<void(const std::string& text)> note = {};  ///< as: a checkpoint could not be written
    std::function<bool()> stop = {};  ///< return true, on one rank or more, to save and return after this step
  };
  /// True if options.patience has ended the training.
  bool stopped_early() const { return options_.patience > 0 && since_best_ >= options_.patience; }
  /// Runs until all steps are done or patience ends (returns true) or stop() returns true (returns false). If a
  /// checkpoint cannot be written, note() is called and the training continues; the last checkpoint must succeed.
  bool run(const Events& events);
  bool run() { return run({}); }

 private:
  [[noreturn]] void explain_nonfinite(const std::string& what, uint64_t number);
  void require_agreement();
  void load_checkpoint(std::vector<std::string>* notes);
  double run_batch(uint64_t number, double loss_scale, double& tokens, double& seconds);
  const cluster::RankGrid& ranks() const;
  void write_checkpoint(const std::string& state);
  double run_forward(autograd::Tape& tape, uint64_t number, std::optional<BatchLoss>& batch, double& seconds);
  void run_backward(autograd::Tape& tape, const BatchLoss& batch, double loss_scale, double& seconds);
  double accumulate_gradients(StepReport& report);
  void update_parameters(double gradient_factor, double learning_rate);
  bool stops(const Events& events);
  nn::Parameters& parameters_;
  std::string data_;  // what the ranks have in common of it
  LossFunction loss_;
  std::function<Validation()> validation_;
  TrainerOptions options_;
  std::string directory_;
  std::shared_ptr<autograd::Recycler> memory_;
  std::unique_ptr<Optimizer> optimizer_;
  bool agreed_ = false;               // the ranks, on what they train
  std::optional<LossScaler> scaler_;  // absent: the scale is 1
  int64_t step_ = 0;
  double best_score_;  // NaN before the first validation
  Metric metric_ = Metric::loss;
  bool is_best_ = false;
  int64_t saved_step_ = -1;
  int64_t since_best_ = 0;  // validations
};

}  // namespace attn::train
#pragma GCC visibility pop
