// The loop: one update, validation, checkpoints, resuming.
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>

#include "attn/train.h"
#include "core/checker.h"
#include "io/json.h"

namespace attn::train {
namespace {

using autograd::Tape;
using autograd::Value;
using OrderedJson = nlohmann::ordered_json;

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
  require(options.accumulation > 0, "accumulation", options.accumulation, "positive");
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

bool scales(const TrainerOptions& options, nn::Precision precision) {
  return options.scaling.on.value_or(precision == nn::Precision::float16);
}

/// The options that decide the numbers: a resumed training must have the same. Null is what is absent.
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

}  // namespace

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

// ---------------------------------------------------------------------------------------------------------- validation

namespace {

/// What the model says of the targets of a batch, added to the predictions; returns the sum of the losses' weights.
double add_classes(Tape& tape, const models::Model& model, const models::Batch& batch,
                   const models::ForwardOptions& options, Predictions& predictions) {
  const models::TargetLogits found = model.target_logits(tape, batch, options);
  const double loss = scalar_of(cross_entropy(tape, found.logits, found.targets, found.weights));
  const View<2> rows = found.logits.data().rows();
  Array wide(DType::float32, {rows.size[0], rows.size[1]}, false);
  ops::convert(rows, wide.rows());
  double weight = 0;
  for (int64_t r = 0; r < rows.size[0]; ++r) {
    const auto n = static_cast<size_t>(r);
    if (found.targets[n] == ops::kIgnoreIndex) continue;
    const float* row = static_cast<const float*>(wide.data()) + r * rows.size[1];
    predictions.expected.push_back(found.targets[n]);
    predictions.predicted.push_back(std::max_element(row, row + rows.size[1]) - row);
    weight += found.weights.empty() ? 1 : found.weights[n];
  }
  predictions.loss += loss * weight;
  return weight;
}

/// Where each text of a batch with a target for each token ends among the predictions.
void add_ends(const models::Batch& batch, int64_t first, Predictions& predictions) {
  const auto per_text = std::ssize(batch.targets) / batch.sequences;
  for (int64_t b = 0; b < batch.sequences; ++b) {
    const auto n = static_cast<size_t>(b);
    const int64_t begin = batch.cu_seqlens.empty() ? b * per_text : batch.cu_seqlens[n];
    const int64_t end = batch.cu_seqlens.empty() ? begin + per_text : batch.cu_seqlens[n + 1];
    const auto targets = batch.targets.begin();
    first += end - begin - std::count(targets + begin, targets + end, ops::kIgnoreIndex);
    predictions.ends.push_back(first);
  }
}

double add_numbers(Tape& tape, const models::Model& model, const models::Batch& batch,
                   const models::ForwardOptions& options, Predictions& predictions) {
  const std::vector<double> said = model.forward(tape, batch, options).data().values();
  for (size_t n = 0; n < said.size(); ++n) {
    predictions.expected_values.push_back(batch.values[n]);
    predictions.predicted_values.push_back(said[n]);
    predictions.loss += (said[n] - batch.values[n]) * (said[n] - batch.values[n]);
  }
  return static_cast<double>(said.size());
}

}  // namespace

double add_predictions(const models::Model& model, const models::Batch& batch, Predictions& predictions,
                       const models::ForwardOptions& options, std::shared_ptr<autograd::Recycler> memory) {
  Tape tape({}, std::move(memory));
  if (!batch.values.empty()) return add_numbers(tape, model, batch, options, predictions);
  const int64_t before = std::ssize(predictions.expected);
  const double weight = add_classes(tape, model, batch, options, predictions);
  if (classifies_tokens(model.config())) add_ends(batch, before, predictions);
  return weight;
}

Validation validate(const models::Model& model, const Dataset& data, const ValidationOptions& options) {
  Predictions predictions;
  double weight = 0;
  const auto memory = Tape().memory();
  const models::Config& config = model.config();
  for (int64_t n = 0; n < data.validation_batches(); ++n)
    weight += add_predictions(model, data.validation(n), predictions, options.forward, memory);
  if (predictions.expected.empty() && predictions.expected_values.empty())
    throw Error("validate", {"there is nothing to validate with: no target takes part"});
  predictions.loss = weight > 0 ? predictions.loss / weight : 0;
  const bool of_classes = !predictions.expected.empty();
  const Metric metric = options.metric.value_or(config.classes && of_classes ? Metric::accuracy : Metric::loss);
  return {.loss = predictions.loss,
          .accuracy = of_classes ? metric_value(Metric::accuracy, predictions) : 0,
          .metric = metric,
          .score = metric_value(metric, predictions, options.labels)};
}

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

Trainer::Trainer(models::Model& model, const Dataset& data, const TrainerOptions& options, std::string directory,
                 const ValidationOptions& validation)
    : Trainer(
          model.parameters(),
          // The batch is borrowed until the backward has run.
          [&, recompute = options.recompute, batch = models::Batch()](Tape& tape, uint64_t number) mutable {
            batch = data.training(number);
            const int64_t tokens = batch.cu_seqlens.empty() ? batch.sequences * batch.length : batch.length;
            return BatchLoss(model.loss(tape, batch, {.recompute = recompute}), tokens);
          },
          options, std::move(directory), [&, validation] { return train::validate(model, data, validation); }) {}

Trainer::Trainer(nn::Parameters& parameters, LossFunction loss, const TrainerOptions& options, std::string directory,
                 std::function<Validation()> validation)
    : parameters_(parameters),
      loss_(std::move(loss)),
      validation_(std::move(validation)),
      options_(options),
      directory_(std::move(directory)),
      memory_(Tape().memory()),
      optimizer_(parameters),
      best_score_(std::numeric_limits<double>::quiet_NaN()) {
  check(options);
  if (options.layer_decay < 1) optimizer_.learning_rate_factor = layer_factors(parameters, options.layer_decay);
  if (!loss_) throw Error("train", {"there is no loss"});
  if (scales(options, parameters.options().precision)) scaler_.emplace(options.scaling);
  require_directory(directory_, true);
}

// -------------------------------------------------------------------------------------------------------- one update

namespace {

autograd::TapeOptions tape_options(const TrainerOptions& options, uint64_t number, bool check_finite) {
  return {.record = true,
          .training = true,
          .seed = options.seed + 0x9e3779b97f4a7c15u * (number + 1),
          .check_finite = check_finite};
}

}  // namespace

/// Computes the batch once more, with a look at every result.
void Trainer::explain_nonfinite(const std::string& what, uint64_t number) {
  std::string where = "every result of the forward is finite";
  try {
    Tape tape(tape_options(options_, number, true), memory_);
    loss_(tape, number);
  } catch (const Error& error) {
    where = "first: " + error.reasons().front();
  }
  throw Error("train", {"step " + std::to_string(step_ + 1) + ": " + what + "; " + where +
                        "; nothing was updated since step " + std::to_string(step_)});
}

/// Of all batches of an update, times the loss scale. Returns the sum of their squares, which is not finite if one of
/// them is not.
double Trainer::accumulate_gradients(StepReport& report) {
  parameters_.clear_gradients();
  for (int64_t micro = 0; micro < options_.accumulation; ++micro) {
    const uint64_t number = static_cast<uint64_t>(step_ * options_.accumulation + micro);
    Tape tape(tape_options(options_, number, false), memory_);
    const auto [loss, tokens] = [&] {
      const ProfileSpan span("forward");
      return loss_(tape, number);
    }();
    const double value = scalar_of(loss);
    if (!is_finite(value) && !options_.skip_nonfinite) explain_nonfinite("the loss is not finite", number);
    {
      const ProfileSpan span("backward");
      tape.backward(loss, report.loss_scale / static_cast<double>(options_.accumulation));
    }
    report.loss += value / static_cast<double>(options_.accumulation);
    report.tokens += tokens;
  }
  const bool may_be_skipped = options_.skip_nonfinite || (scaler_ && scaler_->can_back_off());
  double squares = 0;
  const ProfileSpan span("gradient norm");
  for (const nn::Parameter& parameter : parameters_.all()) {
    if (parameter.value.gradient_is_empty()) continue;
    const double own = ops::sum_of_squares(parameter.value.gradient().flat());
    if (!is_finite(own) && !may_be_skipped)
      explain_nonfinite(
          "the gradient of " + parameter.name + " is not finite" + (scaler_ ? " at the smallest loss scale" : ""),
          static_cast<uint64_t>(step_ * options_.accumulation));
    squares += own;
  }
  return squares;
}

void Trainer::update_parameters(double gradient_factor, double learning_rate) {
  const ProfileSpan span("optimizer");
  ops::AdamWOptions& update = optimizer_.options;
  update.learning_rate = learning_rate;
  update.beta1 = options_.beta1;
  update.beta2 = options_.beta2;
  update.epsilon = options_.epsilon;
  update.weight_decay = options_.weight_decay;
  update.gradient_factor = gradient_factor;
  optimizer_.step();
}

StepReport Trainer::step() {
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
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

Validation Trainer::validate() {
  if (!validation_) throw Error("train", {"there is no validation"});
  const Validation result = validation_();
  metric_ = result.metric;
  const double score = result.metric == Metric::loss ? result.loss : result.score;
  is_best_ = std::isnan(best_score_) ? !std::isnan(score)
                                     : (result.metric == Metric::loss ? score < best_score_ : score > best_score_);
  if (is_best_) best_score_ = score;
  since_best_ = is_best_ ? 0 : since_best_ + 1;
  return result;
}

// ------------------------------------------------------------------------------------------------------- checkpoints

void Trainer::save() {
  if (directory_.empty()) return;
  std::vector<io::NamedTensor> tensors = parameters_.tensors();
  for (io::NamedTensor& tensor : optimizer_.tensors()) tensors.push_back(std::move(tensor));
  OrderedJson state = {{"step", step_},
                       {"updates", optimizer_.options.step - 1},
                       {"options", decisive(options_, parameters_.options().precision)}};
  if (scaler_) state["loss_scaling"] = {{"scale", scaler_->scale()}, {"streak", scaler_->streak()}};
  if (is_finite(best_score_)) {
    state["best_score"] = best_score_;
    state["metric"] = name_of(metric_);
  }
  state["since_best"] = since_best_;
  const bool keep = options_.keep_every > 0 && step_ % options_.keep_every == 0;
  models::Checkpoints(directory_).save(step_, tensors, state.dump(), is_best_, keep);
  saved_step_ = step_;
}

namespace {

std::optional<int64_t> count_in(const io::Json& object, const char* name) {
  return object.is_object() && object.contains(name) ? io::whole_number(object[name]) : std::nullopt;
}

/// What save() writes.
bool is_state(const io::Json& state) {
  if (!count_in(state, "step") || !count_in(state, "updates")) return false;
  if (!state.contains("options") || !state["options"].is_object()) return false;
  if (state["options"].value("loss_scaling", io::Json()).is_null()) return true;
  const io::Json scaling = state.value("loss_scaling", io::Json());
  return count_in(scaling, "streak") && scaling.contains("scale") && scaling["scale"].is_number();
}

}  // namespace

void Trainer::resume(std::vector<std::string>* notes) {
  const models::Checkpoint checkpoint = models::Checkpoints(directory_).load("last", notes);
  const io::Json state = io::parse_json("resume", checkpoint.path + ", the trainer's state", checkpoint.state);
  if (!is_state(state)) throw Error("resume", {checkpoint.path + ": the trainer's state is not what a trainer writes"});
  std::vector<std::string> reasons;
  const io::Json own = decisive(options_, parameters_.options().precision);
  for (const auto& [name, value] : own.items()) {
    if (name == "decay_steps" && options_.decay_steps > 0) continue;  // the cosine may be given another end
    if (name == "layer_decay" && value == 1 && !state["options"].contains(name)) continue;  // an older checkpoint
    if (const io::Json& saved = state["options"].value(name, io::Json()); saved != value)
      reasons.push_back(checkpoint.path + " was trained with " + name + " " + saved.dump() + ", not " + value.dump());
  }
  if (!reasons.empty()) throw Error("resume", std::move(reasons));

  if (scaler_) scaler_->restore(state["loss_scaling"]["scale"], state["loss_scaling"]["streak"]);
  parameters_.load(checkpoint.file);
  optimizer_.load(checkpoint.file, *count_in(state, "updates") + 1);
  step_ = *count_in(state, "step");
  best_score_ = state.contains("best_score") && state["best_score"].is_number()
                    ? state["best_score"].get<double>()
                    : std::numeric_limits<double>::quiet_NaN();
  if (const io::Json metric = state.value("metric", io::Json()); metric.is_string())
    metric_ = from_name<Metric>(metric.get<std::string>()).value_or(Metric::loss);
  since_best_ = count_in(state, "since_best").value_or(0);
  saved_step_ = step_;
}

// -------------------------------------------------------------------------------------------------------------- loop

bool Trainer::run(const Events& events) {
  require_directory(directory_, false);
  const int64_t save_every = options_.save_every ? options_.save_every : options_.eval_every;
  const auto due = [&](int64_t every) { return every > 0 && step_ % every == 0; };
  while (step_ < options_.steps && !stopped_early()) {
    const StepReport report = step();
    if (events.step) events.step(report);
    const bool stopping = events.stop && events.stop();
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
