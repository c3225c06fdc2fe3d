#include "finetune.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

#include "commands.h"
#include "options.h"
#include "output.h"
#include "progress.h"

namespace cli {
namespace {

using attn::models::Config;
using attn::models::is_adapter;
using attn::models::is_in_head;

/// The fields of a model that a fine-tuning may change.
bool may_change(const std::string& field) {
  return field == "dropout" || field == "attention_dropout" || field.starts_with("lora_");
}
/// Those that the task decides.
bool is_of_task(const std::string& field) {
  return field == "classes" || field == "problem_type" || field == "pooling";
}

/// The end of the name of transformers' class that learns a task; "" for the class that config.json names.
std::string head_of(Task task) {
  switch (task) {
    case Task::classification:
    case Task::regression: return "ForSequenceClassification";
    case Task::token_classification: return "ForTokenClassification";
    case Task::masked_lm: return "ForMaskedLM";
    case Task::similarity:
    case Task::contrastive: return "Model";
    case Task::causal_lm:
    case Task::seq2seq: break;
  }
  return "";
}

/// The task that --task names, or that the folder's model and the file suggest.
Task task_with(const Settings& settings, const std::string& folder) {
  if (!settings.task.empty()) return task_of(settings, {});
  Config config = attn::models::read_config(folder);
  if (config.classes == 0 && config.encoder_layers == 0 && attn::train::is_labelled(settings.data)) config.classes = 1;
  return task_of(settings, config);
}

bool is_embedding(std::string_view name) {
  return name.starts_with("tokens.") || name.starts_with("positions.") || name.starts_with("types.") ||
         name.starts_with("embedding_") || name.starts_with("encoder_tokens.") ||
         name.starts_with("encoder_positions.");
}

/// The n of "last:N"; 0 for another text.
int64_t last_blocks(const std::string& tune) {
  int64_t count = 0;
  constexpr std::string_view kLast = "last:";
  if (!tune.starts_with(kLast)) return 0;
  const char *begin = tune.data() + kLast.size(), *end = tune.data() + tune.size();
  const auto [stop, error] = std::from_chars(begin, end, count);
  return error == std::errc() && stop == end && count > 0 ? count : 0;
}

std::string tune_error(const std::string& tune) {
  if (tune == "all" || tune == "layers" || tune == "head" || tune == "lora" || last_blocks(tune)) return "";
  return "must be all, layers, head, lora or last:N, not " + tune;
}

/// What a training from the start would choose is too coarse for weights that are good already.
void choose_defaults(Settings& settings, const CLI::App& command, bool adapters) {
  const auto is_given = [&](const char* flag) { return command.get_option(flag)->count() > 0; };
  attn::train::TrainerOptions& options = settings.options;
  if (!is_given("--learning-rate")) options.learning_rate = adapters ? 5e-4 : 5e-5;
  if (!is_given("--min-learning-rate")) options.min_learning_rate = 0;
  if (!is_given("--beta2")) options.beta2 = 0.999;
  if (!is_given("--weight-decay")) options.weight_decay = 0.01;
  if (!is_given("--batch")) settings.batch = 32;
  if (!is_given("--steps") && !is_given("--epochs")) settings.epochs = 3;
  if (!is_given("--eval-every")) settings.options.eval_every = -1;  // once an epoch, which the data decide
}

}  // namespace

namespace {

/// As --tune says it; null where all are trained.
std::function<bool(std::string_view)> chosen_by(const std::string& tune, const Config& config) {
  const bool adapters = config.lora_rank > 0, classifies = config.classes > 0;
  if (tune == "lora" || (tune == "all" && adapters))
    return [=](std::string_view name) { return is_adapter(name) || (classifies && is_in_head(name)); };
  if (tune == "all") return {};
  if (tune == "layers") return [](std::string_view name) { return !is_embedding(name); };
  if (tune == "head") return is_in_head;
  const int64_t first = std::max<int64_t>(0, config.layers - last_blocks(tune));
  std::vector<std::string> trained;
  for (int64_t n = first; n < config.layers; ++n) trained.push_back("blocks." + std::to_string(n) + ".");
  if (config.norm_placement != attn::models::NormPlacement::post) trained.emplace_back("norm.");
  return [=](std::string_view name) {
    return is_in_head(name) || std::any_of(trained.begin(), trained.end(),
                                           [&](const std::string& prefix) { return name.starts_with(prefix); });
  };
}

}  // namespace

std::function<bool(std::string_view)> trained_by(const std::string& tune, const Config& config) {
  const auto chosen = chosen_by(tune, config);
  if (!config.encoder_layers || !config.head_bias) return chosen;
  // BART's bias of logits is constant in transformers, which has no place for another one.
  return [chosen](std::string_view name) { return name != "head.bias" && (!chosen || chosen(name)); };
}

void add_finetune_options(CLI::App& command, Settings& settings) {
  constexpr const char* kGroup = "Fine-tuning";
  command.add_option("--from", settings.from, "begin with the model of this folder, of attn train or of the hub")
      ->group(kGroup)
      ->type_name("FOLDER");
  command
      .add_option("--tune", settings.tune,
                  "what is trained: all (with --lora-rank: adapters and a classifier's head), layers (all but "
                  "embeddings), head, lora, last:N (blocks and head)")
      ->group(kGroup)
      ->check(CLI::Validator(tune_error, "{all,layers,head,lora,last:N}"));
  command
      .add_option("--max-length", settings.max_length, "tokens of a sequence in training; 0 = the context, at most 512")
      ->group(kGroup)
      ->check(whole(0, 1 << 24));
  command
      .add_option("--layer-decay", settings.options.layer_decay,
                  "factor on the learning rate from a block to the one below it")
      ->group(kGroup)
      ->check(number(0, 1, "(]"));
}

void FineTuning::check_flags(const Settings& settings, const ConfigOptions& given, const CLI::App& command) const {
  if (!given.family.empty() || !given.file.empty() || !given.mixer.empty())
    throw UsageError("--from takes the model from " + folder_ + ": --model, --config and --mixer must not be given");
  for (const auto& [name, value] : given.fields)
    if (!value.empty() && !may_change(name))
      throw UsageError(fmt::format("--from takes the model from {}: {} must not be given", folder_, flag_of(name)));
  for (const char* flag : {"--tokens", "--tokenizer", "--source-tokens", "--min-count", "--word-dropout"})
    if (command.get_option(flag)->count() > 0)
      throw UsageError(fmt::format("--from takes the tokenizer from {}: {} must not be given", folder_, flag));
  if (settings.data.empty()) throw UsageError("--from needs a file to learn from");
}

FineTuning::FineTuning(Settings& settings, const ConfigOptions& given, const CLI::App& command)
    : folder_(settings.from) {
  check_flags(settings, given, command);
  const Task task = task_with(settings, folder_);
  settings.task = attn::name_of(task);
  head_ = head_of(task);
  config_ = attn::models::read_config(folder_, head_);
  if (config_.takes_embeddings) throw UsageError(folder_ + ": a model of images or sound cannot be fine-tuned");
  if (task == Task::causal_lm && !config_.causal)
    throw UsageError(folder_ +
                     " does not continue texts: --task masked-lm learns from a text, other tasks from .tsv, "
                     ".csv or .jsonl");
  for (const auto& [name, value] : given.fields)
    if (!value.empty()) attn::models::set_field(config_, name, value);
  if (settings.tune == "lora" && !config_.lora_rank) throw UsageError("--tune lora needs --lora-rank");
  const bool of_texts = task == Task::classification || task == Task::regression;
  if (of_texts || task == Task::token_classification) {
    labels_ = attn::models::read_labels(folder_);
    had_problem_ = config_.problem_type;
    if (config_.classes == 0) config_.classes = 1;  // the data say how many
    config_.problem_type =
        task == Task::regression ? attn::models::ProblemType::regression : attn::models::ProblemType::single_label;
    if (task == Task::token_classification) config_.pooling = attn::models::ClassifierPooling::each;
  }
  if (task == Task::similarity || task == Task::contrastive)
    config_.pooling = attn::models::sentence_pooling(folder_) == attn::models::Pooling::first
                          ? attn::models::ClassifierPooling::first
                          : attn::models::ClassifierPooling::mean;
  constexpr int64_t kMost = 512;
  if (settings.max_length > config_.context)
    throw UsageError(
        fmt::format("--max-length is {}, but the model's context is {}", settings.max_length, config_.context));
  if (settings.max_length == 0) settings.max_length = std::min(config_.context, kMost);
  choose_defaults(settings, command, config_.lora_rank > 0);
}

Origin FineTuning::origin() const {
  Origin origin{attn::models::read_tokenizer(folder_), labels_};
  if (config_.encoder_layers) origin.decoder_tokens = attn::models::read_decoder_tokens(folder_);
  return origin;
}

attn::models::Loaded FineTuning::open(const Settings& settings, const Config& prepared, const Prepared& data,
                                      const Job& job) const {
  const bool new_head = prepared.classes && (data.labels != labels_ || prepared.problem_type != had_problem_);
  const auto adapt = [&](Config& config) {
    for (const auto& field : attn::models::field_info(prepared))
      if (may_change(field.name) || is_of_task(field.name)) attn::models::set_field(config, field.name, field.value);
  };
  Loading loading;
  return attn::models::open(folder_, {.precision = precision_named(settings.precision),
                                      .tensor_ranks = job.tensor_ranks(),
                                      .purpose = attn::nn::Purpose::training,
                                      .task = head_,
                                      .adapt = adapt,
                                      .new_head = new_head,
                                      .seed = settings.options.seed,
                                      .trains = trained_by(settings.tune, prepared),
                                      .on_progress = loading.listener()});
}

}  // namespace cli
