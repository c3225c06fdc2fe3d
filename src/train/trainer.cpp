// The loop: options, one update, validation. checkpoint.cpp saves and resumes.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>

#include "attn/models_ranks.h"
#include "attn/train.h"
#include "core/checker.h"
#include "io/json.h"
#include "train/optimizer.h"
#include "train/options.h"

namespace attn::train {
namespace {

using autograd::Tape;
using autograd::Value;

double scalar_of(const Value& loss) {
  const Array& data = loss.data();
  if (data.count() != 1) throw Error("train", {"the loss is " + data.describe() + ", must have one element"});
  return data.number(0);
}

bool is_finite(double x) { return x - x == 0; }

bool is_scale(double x) { return x >= 1 && x <= std::numeric_limits<float>::max(); }

template <class Number>
void require(Checker& checker, bool holds, const char* name, Number value, const char* allowed) {
  checker.require(holds, [&] { return std::string(name) + " is " + std::to_string(value) + ", must be " + allowed; });
}

void check(Checker& checker, const LossScaling& scaling) {
  require(checker, is_scale(scaling.initial), "scaling.initial", scaling.initial, "from 1 to the largest float32");
  require(checker, scaling.growth > 1 && is_finite(scaling.growth), "scaling.growth", scaling.growth,
          "above 1 and finite");
  require(checker, scaling.backoff > 0 && scaling.backoff < 1, "scaling.backoff", scaling.backoff, "in (0, 1)");
  require(checker, scaling.interval > 0, "scaling.interval", scaling.interval, "positive");
}

void check(const TrainerOptions& options) {
  Checker checker("train");
  const auto require = [&](bool holds, const char* name, auto value, const char* allowed) {
    train::require(checker, holds, name, value, allowed);
  };
  require(options.steps > 0, "steps", options.steps, "positive");
  const int ranks = grid_of(options).shape().data;
  require(
      options.accumulation > 0 && options.accumulation % ranks == 0, "accumulation", options.accumulation,
      ranks == 1 ? "positive" : ("a multiple of the ranks that share the batches, " + std::to_string(ranks)).c_str());
  require(options.learning_rate > 0 && std::isfinite(options.learning_rate), "learning_rate", options.learning_rate,
          "positive and finite");
  require(options.min_learning_rate >= 0, "min_learning_rate", options.min_learning_rate, "at least 0");
  require(options.min_learning_rate <= options.learning_rate, "min_learning_rate", options.min_learning_rate,
          "at most learning_rate");
  require(options.warmup >= 0, "warmup", options.warmup, "at least 0");
  require(options.decay_steps >= 0, "decay_steps", options.decay_steps, "at least 0");
  require(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1, "in [0, 1)");
  require(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2, "in [0, 1)");
  require(options.epsilon > 0, "epsilon", options.epsilon, "positive");
  require(options.weight_decay >= 0, "weight_decay", options.weight_decay, "at least 0");
  require(options.clip >= 0, "clip", options.clip, "at least 0");
  require(options.layer_decay > 0 && options.layer_decay <= 1, "layer_decay", options.layer_decay, "in (0, 1]");
  require(options.patience >= 0, "patience", options.patience, "at least 0");
  require(options.eval_every >= 0, "eval_every", options.eval_every, "at least 0");
  require(options.save_every >= 0, "save_every", options.save_every, "at least 0");
  require(options.keep_every >= 0, "keep_every", options.keep_every, "at least 0");
  check(checker, options.scaling);
  checker.done();
}

/// That the directory is none shows before the first step and not with the first checkpoint.
void require_directory(const std::string& path, bool may_be_missing) {
  std::error_code unknown;
  const std::filesystem::file_status status = std::filesystem::status(path, unknown);
  if (path.empty() || is_directory(status) || (may_be_missing && !exists(status))) return;
  throw Error("train", {path + (exists(status) ? " is not a directory" : " must be a directory, but does not exist")});
}

}  // namespace

const cluster::RankGrid& grid_of(const TrainerOptions& options) {
  static const cluster::RankGrid alone;
  return options.ranks ? *options.ranks : alone;
}

bool scales(const TrainerOptions& options, nn::Precision precision) {
  return options.scaling.on.value_or(precision == nn::Precision::float16);
}

OrderedJson decisive(const TrainerOptions& options, nn::Precision precision) {
  const LossScaling& scaling = options.scaling;
  OrderedJson loss_scaling;
  if (scales(options, precision))
    loss_scaling = {{"growth", scaling.growth}, {"backoff", scaling.backoff}, {"interval", scaling.interval}};
  return {{"precision", static_cast<int>(precision)},
          {"accumulation", options.accumulation},
          {"learning_rate", options.learning_rate},
          {"min_learning_rate", options.min_learning_rate},
          {"warmup", options.warmup},
          {"decay_steps", options.decay_steps ? options.decay_steps : options.steps},
          {"beta1", options.beta1},
          {"beta2", options.beta2},
          {"epsilon", options.epsilon},
          {"weight_decay", options.weight_decay},
          {"clip", options.clip},
          {"layer_decay", options.layer_decay},
          {"loss_scaling", loss_scaling},
          {"seed", options.seed}};
}

double learning_rate(const TrainerOptions& options, int64_t step) {
  check(options);
  if (step < 0) throw Error("learning_rate", {"the step is " + std::to_string(step) + ", must not be negative"});
  const int64_t end = options.decay_steps ? options.decay_steps : options.steps;
  if (step < options.warmup)
    return options.learning_rate * static_cast<double>(step + 1) / static_cast<double>(options.warmup + 1);
  if (step >= end) return options.min_learning_rate;
  const double part = static_cast<double>(step - options.warmup) / static_cast<double>(end - options.warmup);
  const double fall = 0.5 * (1 + std::cos(std::numbers::pi * part));
  return options.min_learning_rate + fall * (options.learning_rate - options.min_learning_rate);
}

// -------------------------------------------------------------------------------------------------------- loss scaling

LossScaler::LossScaler(const LossScaling& options) : options_(options), scale_(static_cast<float>(options.initial)) {
  Checker checker("loss scaling");
  check(checker, options);
  checker.done();
}

void LossScaler::update(bool finite) {
  if (!finite) {
    scale_ = std::max(1.0f, static_cast<float>(scale() * options_.backoff));
    streak_ = 0;
  } else if (++streak_ == options_.interval) {
    const double grown = scale() * options_.growth;
    if (is_scale(grown)) scale_ = static_cast<float>(grown);
    streak_ = 0;
  }
}

void LossScaler::restore(double scale, int64_t streak) {
  Checker checker("loss scaling");
  checker.require(is_scale(scale),
                  "the scale to continue with is " + std::to_string(scale) + ", must be from 1 to the largest float32");
  checker.require(streak >= 0 && streak < options_.interval, "the updates in a row are " + std::to_string(streak) +
                                                                 ", must be fewer than the interval, " +
                                                                 std::to_string(options_.interval));
  checker.done();
  scale_ = static_cast<float>(scale);
  streak_ = streak;
}

// ------------------------------------------------------------------------------------------------------- construction

namespace {

/// The number of the block that a parameter belongs to, as 3 of "blocks.3.attention.qkv.weight"; -1 of embeddings.
std::optional<int64_t> block_of(std::string_view name) {
  for (const std::string_view embedding : {"tokens.", "positions.", "types.", "embedding_"})
    if (name.starts_with(embedding)) return -1;
  constexpr std::string_view kBlocks = "blocks.";
  int64_t number = 0;
  if (!name.starts_with(kBlocks)) return {};
  const char* begin = name.data() + kBlocks.size();
  return std::from_chars(begin, name.data() + name.size(), number).ec == std::errc() ? std::optional(number)
                                                                                     : std::nullopt;
}

std::function<double(std::string_view)> layer_factors(const nn::Parameters& parameters, double decay) {
  int64_t last = -1;
  for (const nn::Parameter& parameter : parameters.all()) last = std::max(last, block_of(parameter.name).value_or(-1));
  return [=](std::string_view name) {
    const std::optional<int64_t> block = block_of(name);
    return block ? std::pow(decay, static_cast<double>(last - *block)) : 1;
  };
}

}  // namespace

namespace {

/// A sum of the bytes of a list, which is equal where the lists are.
template <class List>
std::string sum_of(const List& list) {
  const auto* bytes = reinterpret_cast<const char*>(list.data());
  return std::to_string(std::hash<std::string_view>()({bytes, list.size() * sizeof *list.data()}));
}

ValidationOptions shared_by(ValidationOptions validation, const TrainerOptions& options) {
  if (!validation.ranks) validation.ranks = options.ranks;
  return validation;
}

/// Of everything random in a batch.
uint64_t seed_of(const TrainerOptions& options, uint64_t number) {
  return options.seed + 0x9e3779b97f4a7c15u * (number + 1);
}

}  // namespace

Trainer::Trainer(models::Model& model, const Dataset& data, const TrainerOptions& options, std::string directory,
                 const ValidationOptions& validation)
    : Trainer(
          model.parameters(),
          // The batch is borrowed until the backward has run.
          [&, options, batch = models::Batch(), shared = std::optional<autograd::SharedSequence>()](
              Tape& tape, uint64_t number) mutable {
            models::ForwardOptions forward = {.recompute = options.recompute};
            batch = data.training(number);
            if (cluster::Communicator& ranks = grid_of(options).sequence(); ranks.size() > 1) {
              shared.emplace(ranks, models::placement_for(model.config(), batch.length, ranks.size()),
                             seed_of(options, number), grid_of(options).schedule());
              batch = shard_of(batch, *shared);
              forward.sequence = &*shared;
            }
            const int64_t tokens = batch.cu_seqlens.empty() ? batch.sequences * batch.length : batch.length;
            return BatchLoss(model.loss(tape, batch, forward), tokens);
          },
          options, std::move(directory),
          [&, how = shared_by(validation, options)] { return train::validate(model, data, how); }) {
  if (options.ranks) data_ = data.describe() + ", batch 0: " + sum_of(data.training(0).tokens);
}

Trainer::Trainer(nn::Parameters& parameters, LossFunction loss, const TrainerOptions& options, std::string directory,
                 std::function<Validation()> validation)
    : parameters_(parameters),
      loss_(std::move(loss)),
      validation_(std::move(validation)),
      options_(options),
      directory_(std::move(directory)),
      memory_(Tape().memory()),
      best_score_(std::numeric_limits<double>::quiet_NaN()) {
  check(options);
  const LearningRateFactor factor =
      options.layer_decay < 1 ? layer_factors(parameters, options.layer_decay) : LearningRateFactor();
  optimizer_ = options.ranks ? shared_optimizer(*options.ranks, parameters, factor) : own_optimizer(parameters, factor);
  const int made_for = parameters.tensor_ranks() ? parameters.tensor_ranks()->size() : 1;
  if (made_for != ranks().shape().tensor)
    throw Error("train", {"the parameters are made for " + std::to_string(made_for) +
                          " tensor ranks, and the grid has " + std::to_string(ranks().shape().tensor)});
  if (!loss_) throw Error("train", {"there is no loss"});
  if (scales(options, parameters.options().precision)) scaler_.emplace(options.scaling);
  require_directory(directory_, true);
}

Trainer::~Trainer() = default;

const cluster::RankGrid& Trainer::ranks() const { return grid_of(options_); }

/// Before the first step: do all ranks train the same?
void Trainer::require_agreement() {
  cluster::Communicator& all = ranks().all();
  if (std::exchange(agreed_, true) || all.size() == 1) return;
  OrderedJson options = decisive(options_, parameters_.options().precision);
  options.update({{"steps", options_.steps},
                  {"eval_every", options_.eval_every},
                  {"save_every", options_.save_every},
                  {"keep_every", options_.keep_every},
                  {"patience", options_.patience},
                  {"skip_nonfinite", options_.skip_nonfinite},
                  {"matmul_precision", attn::name_of(ops::matmul_precision())},
                  {"sequence_parallel", ranks().shape().sequence},
                  {"tensor_parallel", ranks().shape().tensor},
                  {"saves", !directory_.empty()},
                  {"validates", validation_ != nullptr}});
  std::string names;
  std::vector<double> squares, unsliced;
  for (const nn::Parameter& parameter : parameters_.all()) {
    names += parameter.name + " ";
    if (parameter.value.is_freed()) continue;
    squares.push_back(ops::sum_of_squares(parameter.master.flat()));
    if (parameter.slice.ranges.empty()) unsliced.push_back(squares.back());
  }
  cluster::require_same(all, "version", ATTN_VERSION);
  cluster::require_same(all, "instruction set", active_isa());
  cluster::require_same(all, "the options", options.dump());
  cluster::require_same(all, "the data", data_);
  cluster::require_same(all, "done the steps", std::to_string(step_));
  cluster::on_all_ranks(ranks(), "parameters", [&] {
    cluster::require_same(ranks().replicas(), "parameters with the sum", sum_of(names) + " " + sum_of(squares));
    cluster::require_same(ranks().tensor(), "parameters with the sum", sum_of(names) + " " + sum_of(unsliced));
  });
}

// -------------------------------------------------------------------------------------------------------- one update

namespace {

autograd::TapeOptions tape_options(const TrainerOptions& options, uint64_t number, bool check_finite) {
  return {.record = true,
          .training = true,
          .seed = seed_of(options, number) + (static_cast<uint64_t>(grid_of(options).sequence().rank()) << 48),
          .check_finite = check_finite};
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Of the batches of all ranks: for each rank their tokens, their seconds, and the loss of every one.
void add_batches(const std::vector<std::vector<double>>& ranks, const TrainerOptions& options, StepReport& report) {
  const cluster::GridShape& shape = grid_of(options).shape();
  const int64_t count = std::ssize(ranks), batches = options.accumulation, D = shape.data, T = shape.tensor;
  double seconds = 0;
  for (int64_t batch = 0; batch < batches; ++batch)
    report.loss += ranks[batch % D * (count / D)][2 + batch / D] / static_cast<double>(batches);
  for (int64_t rank = 0; rank < count; ++rank) {
    if (rank % T == 0) report.tokens += static_cast<int64_t>(ranks[rank][0]);
    seconds += ranks[rank][1];
    if (ranks[rank][1] > ranks[report.slowest_rank][1]) report.slowest_rank = static_cast<int>(rank);
  }
  const double slowest = ranks[report.slowest_rank][1], others = seconds - slowest;
  if (count > 1) report.slowness = slowest * static_cast<double>(count - 1) / others;
}

}  // namespace

/// Computes the batch once more, with a look at every result.
void Trainer::explain_nonfinite(const std::string& what, uint64_t number) {
  std::string where = "every result of the forward is finite";
  try {
    Tape tape(tape_options(options_, number, true), memory_);
    loss_(tape, number);
  } catch (const cluster::RanksError&) {
    throw;  // another rank has found the operation
  } catch (const Error& error) {
    where = "first: " + error.reasons().front();
  }
  throw Error("train", {"step " + std::to_string(step_ + 1) + ": " + what + "; " + where +
                        "; nothing was updated since step " + std::to_string(step_)});
}

/// The loss of a batch. What ranks that share sequences compute are its parts.
double Trainer::run_forward(Tape& tape, uint64_t number, std::optional<BatchLoss>& batch, double& seconds) {
  const ProfileSpan span("forward");
  const auto start = std::chrono::steady_clock::now();
  const bool is_whole = ranks().sequence().size() == 1;
  double value = 0;
  const auto check_value = [&] {
    if (!is_finite(value) && !options_.skip_nonfinite) explain_nonfinite("the loss is not finite", number);
  };
  cluster::on_all_ranks(ranks(), "the forward", [&] {
    batch = loss_(tape, number);
    value = scalar_of(batch->loss);
    if (is_whole) check_value();
    seconds += seconds_since(start);
  });
  if (is_whole) return value;
  const std::vector<std::vector<double>> parts = cluster::gather(ranks().sequence(), std::vector{value});
  value = 0;
  for (const std::vector<double>& part : parts) value += part[0];
  cluster::on_all_ranks(ranks(), "the loss", check_value);
  return value;
}

/// The gradients of a batch, times the scale, join those of the update.
void Trainer::run_backward(Tape& tape, const BatchLoss& batch, double loss_scale, double& seconds) {
  const auto backward = [&] {
    const ProfileSpan span("backward");
    const auto start = std::chrono::steady_clock::now();
    tape.backward(batch.loss, loss_scale / static_cast<double>(options_.accumulation));
    parameters_.add_up_gradients();
    seconds += seconds_since(start);
  };
  std::exception_ptr failure;  // ranks with other batches wait for gradients, which this rank sends all the same
  try {
    cluster::on_ranks_of_batch(ranks(), "the backward", backward);
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  cluster::on_all_ranks(ranks().all(), "the gradients", [&] { optimizer_->add_batch(failure); });
}

/// The loss of a batch, whose gradients, times the scale, join those of the update. Adds to tokens and seconds.
double Trainer::run_batch(uint64_t number, double loss_scale, double& tokens, double& seconds) {
  autograd::TapeOptions options = tape_options(options_, number, false);
  if (options_.overlap) options.after_step = [this] { optimizer_->after_step(); };
  optimizer_->begin_batch();
  Tape tape(options, memory_);
  std::optional<BatchLoss> batch;
  const double value = run_forward(tape, number, batch, seconds);
  run_backward(tape, *batch, loss_scale, seconds);
  tokens += static_cast<double>(batch->tokens);
  return value;
}

/// Of all batches of an update, times the loss scale. Returns the sum of their squares, which is not finite if one of
/// them is not.
double Trainer::accumulate_gradients(StepReport& report) {
  const auto first = static_cast<uint64_t>(step_ * options_.accumulation);
  std::vector<double> own = {0, 0};  // the tokens and seconds of this rank's batches, then the loss of each
  optimizer_->begin();
  for (int64_t batch = ranks().data_place(); batch < options_.accumulation; batch += ranks().shape().data) {
    const double loss = run_batch(first + static_cast<uint64_t>(batch), report.loss_scale, own[0], own[1]);
    own.push_back(loss);
  }
  add_batches(cluster::gather(ranks().all(), own), options_, report);

  const bool may_be_skipped = options_.skip_nonfinite || (scaler_ && scaler_->can_back_off());
  double total = 0;
  const ProfileSpan span("gradient norm");
  const std::vector<std::optional<double>> squares = optimizer_->squares();
  cluster::on_all_ranks(ranks(), "the gradient norm", [&] {
    for (size_t n = 0; n < squares.size(); ++n) {
      if (!squares[n]) continue;
      if (!is_finite(*squares[n]) && !may_be_skipped)
        explain_nonfinite("the gradient of " + parameters_.all()[n].name + " is not finite" +
                              (scaler_ ? " at the smallest loss scale" : ""),
                          first);
      total += *squares[n];
    }
  });
  return total;
}

void Trainer::update_parameters(double gradient_factor, double learning_rate) {
  const ProfileSpan span("optimizer");
  optimizer_->step({.learning_rate = learning_rate,
                    .beta1 = options_.beta1,
                    .beta2 = options_.beta2,
                    .epsilon = options_.epsilon,
                    .weight_decay = options_.weight_decay,
                    .gradient_factor = gradient_factor});
}

StepReport Trainer::step() {
  require_agreement();
  const auto start = std::chrono::steady_clock::now();
  StepReport report;
  report.loss_scale = scaler_ ? scaler_->scale() : 1;
  const double squares = accumulate_gradients(report);
  report.gradient_norm = std::sqrt(squares) / report.loss_scale;
  report.learning_rate = learning_rate(options_, step_);
  report.skipped = !is_finite(squares) || !is_finite(report.loss);
  ++step_;
  report.step = step_;
  if (!report.skipped) {
    // As PyTorch clips: the norm that is compared has 1e-6 added.
    const double clipped = options_.clip > 0 ? std::min(1.0, options_.clip / (report.gradient_norm + 1e-6)) : 1;
    update_parameters(clipped / report.loss_scale, report.learning_rate);
  }
  if (scaler_) scaler_->update(!report.skipped);
  report.seconds = seconds_since(start);
  return report;
}

Validation Trainer::validate() {
  if (!validation_) throw Error("train", {"there is no validation"});
  Validation result;
  cluster::on_all_ranks(ranks(), "validation", [&] { result = validation_(); });
  result = cluster::gather(ranks().all(), std::vector{result})[0][0];
  metric_ = result.metric;
  const double score = result.metric == Metric::loss ? result.loss : result.score;
  is_best_ = std::isnan(best_score_) ? !std::isnan(score)
                                     : (result.metric == Metric::loss ? score < best_score_ : score > best_score_);
  if (is_best_) best_score_ = score;
  since_best_ = is_best_ ? 0 : since_best_ + 1;
  return result;
}

// -------------------------------------------------------------------------------------------------------------- loop

bool Trainer::stops(const Events& events) {
  const std::vector<std::string> all = cluster::gather(ranks().all(), events.stop && events.stop() ? "stop" : "");
  return std::any_of(all.begin(), all.end(), [](const std::string& one) { return !one.empty(); });
}

bool Trainer::run(const Events& events) {
  cluster::on_all_ranks(ranks().all(), "run", [&] { require_directory(directory_, false); });
  const int64_t save_every = options_.save_every ? options_.save_every : options_.eval_every;
  const auto due = [&](int64_t every) { return every > 0 && step_ % every == 0; };
  while (step_ < options_.steps && !stopped_early()) {
    const StepReport report = step();
    if (events.step) events.step(report);
    const bool stopping = stops(events);
    bool last = step_ == options_.steps;
    is_best_ = false;
    if (validation_ && (last || due(options_.eval_every))) {
      const Validation result = validate();
      if (events.validation) events.validation(step_, result, is_best_);
    }
    last = last || stopped_early();
    if (last || stopping) {
      save();
    } else if (is_best_ || due(save_every)) {
      try {
        save();
      } catch (const Error& error) {
        if (events.note) events.note(std::string(error.what()) + "; the training goes on");
      }
    }
    if (stopping && !last) return false;
  }
  return true;
}

}  // namespace attn::train
