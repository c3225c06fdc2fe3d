// The settings of a training, and the folder that it writes: training.json beside the model and its checkpoints.
#pragma once

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "job.h"
#include "prepare.h"

namespace cli {

// In a model's directory, beside its checkpoints and its tokenizers.
inline constexpr const char *kConfigFile = "config.json", *kSettingsFile = "training.json", *kLogFile = "log.jsonl";

/// The settings of `attn train`, except the model's configuration.
struct Settings : DataSettings {
  std::string out = "model", precision = "float32", float32_precision = "full", loss_scaling = "auto";
  double epochs = 0;
  attn::train::TrainerOptions options;
  std::string from, tune = "all";
  Parallel parallel;
  bool resume = false, overwrite = false, interactive = false, quiet = false, force = false;
  int64_t sample_every = 0;
  std::string sample_prompt;
};

enum class WhenResumed { stays, may_change };

/// What a resumed training takes over from the one that was stopped. What decides the numbers stays.
template <class S, class Visit>
void each_saved(S& settings, const Visit& visit) {
  auto& options = settings.options;
  constexpr WhenResumed stays = WhenResumed::stays, may_change = WhenResumed::may_change;
  visit("data", settings.data, may_change);
  visit("validation", settings.validation, may_change);
  visit("tokens", settings.tokens, stays);
  visit("tokenizer", settings.tokenizer, may_change);
  visit("source_tokens", settings.source_tokens, stays);
  visit("min_count", settings.min_count, stays);
  visit("precision", settings.precision, stays);
  visit("float32_precision", settings.float32_precision, stays);
  visit("batch", settings.batch, stays);
  visit("validation_batches", settings.validation_batches, may_change);
  visit("word_dropout", settings.word_dropout, stays);
  visit("task", settings.task, stays);
  visit("metric", settings.metric, stays);
  visit("class_weights", settings.class_weights, stays);
  visit("packed", settings.packed, stays);
  visit("masked_share", settings.masked_share, stays);
  visit("from", settings.from, may_change);
  visit("tune", settings.tune, stays);
  visit("max_length", settings.max_length, stays);
  visit("steps", options.steps, may_change);
  visit("accumulation", options.accumulation, stays);
  visit("learning_rate", options.learning_rate, stays);
  visit("min_learning_rate", options.min_learning_rate, stays);
  visit("warmup", options.warmup, stays);
  visit("decay_steps", options.decay_steps, may_change);
  visit("beta1", options.beta1, stays);
  visit("beta2", options.beta2, stays);
  visit("epsilon", options.epsilon, stays);
  visit("weight_decay", options.weight_decay, stays);
  visit("clip", options.clip, stays);
  visit("layer_decay", options.layer_decay, stays);
  visit("patience", options.patience, may_change);
  visit("eval_every", options.eval_every, may_change);
  visit("save_every", options.save_every, may_change);
  visit("keep_every", options.keep_every, may_change);
  visit("recompute", options.recompute, may_change);
  visit("skip_nonfinite", options.skip_nonfinite, may_change);
  visit("loss_scaling", settings.loss_scaling, stays);
  visit("loss_scale", options.scaling.initial, stays);
  visit("scale_growth", options.scaling.growth, stays);
  visit("scale_backoff", options.scaling.backoff, stays);
  visit("scale_interval", options.scaling.interval, stays);
  visit("seed", options.seed, stays);
}

template <class T>
bool is_of_type(const nlohmann::ordered_json& value) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  if constexpr (std::is_same_v<T, bool>) return value.is_boolean();
  else if constexpr (std::is_same_v<T, std::string>) return value.is_string();
  else if constexpr (std::is_same_v<T, double>) return value.is_number();
  else return value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= kMost);
}

/// Calls visit(name, field, what training.json of the directory says, when) for all that is saved. Throws Error for a
/// file that lacks one of them.
template <class Visit>
void each_stored(Settings& settings, const std::string& directory, const Visit& visit) {
  const std::string path = path_in(directory, kSettingsFile), text = attn::io::read_file(path, 1 << 20);
  attn::io::check_json("train", path, text);
  const auto object = nlohmann::ordered_json::parse(text);
  if (!object.is_object()) throw attn::Error("train", {path + " is not a JSON object"});
  each_saved(settings, [&](const std::string& name, auto& field, WhenResumed when) {
    using Field = std::decay_t<decltype(field)>;
    if (!object.contains(name) || !is_of_type<Field>(object[name]))
      throw attn::Error("train", {path + ": '" + name + "' is missing or has the wrong type"});
    visit(name, field, object[name].get<Field>(), when);
  });
}

/// training.json. Files by their absolute names, so that the training can be resumed from another folder.
std::string settings_json(Settings settings);

/// The files of a training beside its checkpoints.
const std::vector<std::string>& own_files();
/// Throws UsageError unless a training may begin in this folder; `advice` is put before what else can be done about a
/// model that is there.
void require_free(const std::string& out, bool overwrite, const std::string& advice = "");
/// Keeps other trainings out of a folder; empty as long as the folder is not there.
using FolderLock = std::optional<attn::io::FolderLock>;
/// From before the files of a folder are read.
void hold_folder(const std::string& out, FolderLock& lock);
/// The directory, which is held from here on, and all that a model needs in it besides its weights.
void begin_directory(const Settings& settings, const attn::models::Config& config, const Prepared& prepared,
                     bool overwrite, FolderLock& lock, const std::string& pretrained = "");

}  // namespace cli
