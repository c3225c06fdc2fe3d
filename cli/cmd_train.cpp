// attn train: a text or labelled sentences in, a directory with a model out.
#include <fmt/format.h>

#include <csignal>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "attn/core_names.h"
#include "attn/generate_text.h"
#include "attn/models_ranks.h"
#include "attn/ops.h"
#include "attn/peaks.h"
#include "attn/train_prune.h"
#include "commands.h"
#include "config_flags.h"
#include "finetune.h"
#include "generation_flags.h"
#include "job.h"
#include "memory.h"
#include "numbers.h"
#include "options.h"
#include "output.h"
#include "prepare.h"
#include "progress.h"
#include "settings.h"
#include "signals.h"
#include "train_flags.h"

namespace cli {
namespace {

using Json = nlohmann::ordered_json;
using attn::train::TrainerOptions;

/// Takes the settings that the command line does not give from training.json. Adds to `reasons` those that it changes
/// and that must stay. The cosine ends where it did, unless --decay-steps is given.
void restore_settings(Settings& settings, const CLI::App& command, std::vector<std::string>& reasons) {
  const std::string path = path_in(settings.out, kSettingsFile);
  const auto is_given = [&](const std::string& name) {
    const std::string flag = name == "data" ? name : flag_of(name);
    const CLI::Option* own = command.get_option_no_throw(flag);  // others are of all subcommands
    return (own ? own : command.get_parent()->get_option(flag))->count() > 0;
  };
  int64_t old_steps = 0, old_decay = 0;
  each_stored(settings, settings.out, [&](const std::string& name, auto& field, const auto& stored, WhenResumed when) {
    if constexpr (std::is_same_v<std::decay_t<decltype(stored)>, int64_t>) {
      if (name == "steps") old_steps = stored;
      if (name == "decay_steps") old_decay = stored;
    }
    if (!is_given(name)) field = stored;
    else if (when == WhenResumed::stays && field != stored)
      reasons.push_back(fmt::format("{} is {} in {}, not {}", name, Json(stored).dump(), path, Json(field).dump()));
  });
  if (!is_given("decay_steps")) settings.options.decay_steps = old_decay ? old_decay : old_steps;
  else if (settings.options.decay_steps == 0) settings.options.decay_steps = settings.options.steps;
}

/// The model in the directory; adds to `reasons` what the command line wants otherwise.
attn::models::Config stored_config(const std::string& directory, const ConfigOptions& asked,
                                   std::vector<std::string>& reasons) {
  attn::models::Config config;
  const std::string path = path_in(directory, kConfigFile);
  attn::models::apply_json(config, attn::io::read_file(path, 1 << 20), path);
  attn::models::Config other = config;
  if (!asked.family.empty()) other.model = attn::models::family(asked.family).model;
  if (!asked.file.empty())
    attn::models::apply_json(other, attn::io::read_input(asked.file, 1 << 20), asked.file, false);
  for (const auto& [name, value] : asked.fields)
    if (!value.empty()) attn::models::set_field(other, name, value);
  const std::vector<attn::models::FieldInfo> ours = attn::models::field_info(config),
                                             theirs = attn::models::field_info(other);
  const auto shown = [](const attn::models::FieldInfo& field) {
    return field.kind == "text" ? "\"" + field.value + "\"" : field.value;
  };
  for (size_t n = 0; n < ours.size(); ++n)
    if (ours[n].value != theirs[n].value)
      reasons.push_back(fmt::format("{} is {} in {}, not {}", ours[n].name, shown(ours[n]), path, shown(theirs[n])));
  return config;
}

Json rounded(double value) { return value - value == 0 ? Json(value) : Json(nullptr); }

void print_sample(const attn::models::Model& model, const Prepared& prepared, const Settings& settings, int64_t step) {
  const attn::text::Tokenizer& tokenizer = *prepared.tokenizer;
  const std::string& text = settings.sample_prompt;
  std::vector<int64_t> prompt = {step % tokenizer.vocab_size()};
  if (prepared.source_tokenizer) prompt = prepared.source_tokenizer->encode_ids(text);
  else if (!text.empty()) prompt = tokenizer.encode_ids(text);
  const attn::generate::TextGenerator generator(model, tokenizer, prepared.source_tokenizer.get());
  const std::vector<int64_t> written =
      generator.write(prompt, {.max_new_tokens = 100, .top_k = 40, .seed = settings.options.seed}).generated.tokens;
  fmt::print("--- sample at step {}\n{}{}{}\n---\n", step, for_output(text), prepared.source_tokenizer ? "\n" : "",
             for_output(tokenizer.decode(written)));
  std::fflush(stdout);
}

/// What a fine-tuning begins with, trains and adds.
void describe_tuning(const attn::models::Model& model, const std::vector<std::string>& added,
                     const Settings& settings) {
  const attn::nn::Parameters& all = model.parameters();
  const attn::models::Config& config = model.config();
  const std::string what = config.lora_rank && (settings.tune == "all" || settings.tune == "lora")
                               ? fmt::format("adapters of rank {} on {}{}", config.lora_rank, config.lora_targets,
                                             config.classes ? ", and the head" : "")
                               : settings.tune;
  say("from {}: {} of {} parameters are trained ({})\n", settings.from, grouped(all.trained_count()),
      grouped(all.count()), what);
  std::vector<std::string> heads;
  for (const std::string& name : added)
    if (attn::models::is_in_head(name)) heads.push_back(name);
  if (!heads.empty()) say("new, from random numbers: {}\n", fmt::join(heads, ", "));
}

/// How many rows of the data are longer than a sequence, and what takes longer ones.
void describe_truncated(const attn::models::Config& config, const Prepared& prepared, const Settings& settings) {
  if (!prepared.truncated) return;
  const bool at_most = settings.max_length && settings.max_length < config.context;
  const bool is_new = settings.from.empty() && !settings.resume;
  say("{} of {} rows were cut to {} tokens{}\n", grouped(prepared.truncated), grouped(prepared.rows),
      at_most ? settings.max_length : config.context,
      at_most  ? "; a larger --max-length takes more"
      : is_new ? "; a larger --context takes more"
               : "");
}

TrainingShape shape_of(const Settings& settings, const attn::models::Config& config, const Prepared& prepared,
                       const Job& job) {
  return {.config = config,
          .precision = precision_named(settings.precision),
          .batch = settings.batch,
          .length = prepared.longest,
          .recompute = settings.options.recompute,
          .trains = trained_by(settings.tune, config),
          .ranks = job.grid().shape(),
          .schedule = settings.parallel.schedule,
          .on_machine = job.on_machine()};
}

/// "ranks: 2 x 2, which share the batches of an update (1 of 2 each), the heads and features of each layer"
void describe_ranks(const attn::cluster::RankGrid& grid, int64_t batches) {
  const attn::cluster::GridShape& shape = grid.shape();
  std::vector<std::string> extents, shared;
  const auto add = [&](int ranks, const std::string& what) {
    if (ranks == 1) return;
    extents.push_back(std::to_string(ranks));
    shared.push_back(what);
  };
  add(shape.data, fmt::format("the batches of an update ({} of {} each)", batches / shape.data, batches));
  add(shape.sequence, fmt::format("the tokens of each sequence (schedule: {})", grid.schedule().name()));
  add(shape.tensor, "the heads and features of each layer");
  if (shared.empty()) return say("ranks: 1\n");
  say("ranks: {}, which share {}\n", joined(extents, " x "), joined(shared, ", "));
}

/// What is trained on what, how, and with how much memory.
void describe(const attn::models::Model& model, const std::vector<std::string>& added, const Prepared& prepared,
              const Settings& settings, const Job& job) {
  const attn::models::Config& config = model.config();
  const TrainerOptions& options = settings.options;
  say("{}: {} parameters, {} layers of {} heads, width {}, context {}, {} tokens ({}), {}\n", config.model,
      grouped(attn::models::count_parameters(config).total()), config.layers, config.heads, config.embed_dim,
      config.context, grouped(prepared.tokenizer->vocab_size()), prepared.tokenizer->kind(), settings.precision);
  if (!config.kept_heads.empty()) say("pruning has left {} heads in all\n", attn::train::count_heads(config));
  if (!settings.from.empty()) describe_tuning(model, added, settings);
  say("task: {}\ndata: {}{}\n", attn::name_of(prepared.task), settings.data.empty() ? "the built-in primer: " : "",
      prepared.data->describe());
  describe_truncated(config, prepared, settings);
  if (job.is_shared()) describe_ranks(job.grid(), options.accumulation);
  const int64_t tokens = settings.batch * prepared.longest * options.accumulation;
  say("{} tokens an update{} ({} sequences x {} x {} accumulated), {} updates\n", grouped(tokens),
      prepared.task == Task::causal_lm || prepared.task == Task::masked_lm ? "" : " at most", settings.batch,
      prepared.longest, options.accumulation, grouped(options.steps));
  const int64_t end = options.decay_steps ? options.decay_steps : options.steps;
  say("learning rate: {} after {} updates of warm-up, falls as a cosine to {} at update {}{}\n", options.learning_rate,
      grouped(options.warmup), options.min_learning_rate, grouped(end), end < options.steps ? " and stays there" : "");
  say("memory: about {}\n", cli::describe(memory_of(shape_of(settings, config, prepared, job))));
}

/// What ranks cannot share, and how many batches they do unless --accumulation says.
void complete_shared(Settings& settings, const CLI::App& command, const Job& job) {
  if (!job.is_shared()) return;
  if (settings.data == "-") throw UsageError("data: ranks cannot share standard input");
  if (settings.interactive) throw UsageError("--interactive is for one process");
  if (job.tensor_ranks() && settings.sample_every > 0)
    throw UsageError("--sample-every is for ranks that have the whole model each");
  if (command.count("--accumulation") == 0 && settings.parallel.data > 0)
    settings.options.accumulation = settings.parallel.data;
  settings.options.ranks = &job.grid();
  job.share_threads(command);
}

/// What can be said before anything is read.
void check_directory(const Settings& settings) {
  const attn::models::Checkpoints directory(settings.out);
  if (settings.out.empty()) throw UsageError("--out must name a directory");
  if (settings.resume) {
    if (settings.overwrite)
      throw UsageError("--resume continues what --overwrite would replace: give only one of them");
    if (!directory.last_step()) throw UsageError("--resume: " + settings.out + " holds no checkpoint");
    return;
  }
  require_free(settings.out, settings.overwrite, "--resume continues it, ");
}

/// Computes the number of steps from --epochs, fits the schedule to it unless the training is resumed, and turns loss
/// scaling on or off as --loss-scaling says.
void complete_options(Settings& settings, const attn::train::Dataset& data) {
  TrainerOptions& options = settings.options;
  if (settings.loss_scaling != "auto") options.scaling.on = settings.loss_scaling == "on";
  if (settings.epochs > 0) {
    const double batches = settings.epochs * static_cast<double>(data.batches_per_epoch());
    options.steps = std::max<int64_t>(1, static_cast<int64_t>(batches) / options.accumulation);
  }
  if (options.eval_every < 0)
    options.eval_every = std::max<int64_t>(1, data.batches_per_epoch() / options.accumulation);
  if (settings.resume) return;
  if (options.min_learning_rate > options.learning_rate) options.min_learning_rate = options.learning_rate / 10;
  options.warmup = std::min(options.warmup, options.steps / 10);
}

void resume(attn::train::Trainer& trainer, const Settings& settings) {
  std::vector<std::string> notes;
  trainer.resume(&notes);
  for (const std::string& note : notes) say("attn: {}\n", note);
  say("resuming after step {}\n", trainer.steps_done());
  if (trainer.steps_done() >= settings.options.steps)
    say("all {} updates are done: a larger --steps goes on\n", grouped(settings.options.steps));
}

void continue_directory(const Settings& settings) {
  attn::models::Checkpoints(settings.out).claim(own_files());
  attn::io::write_file(path_in(settings.out, kSettingsFile), settings_json(settings));
}

/// What happens beside the training: progress, the log, samples, signals. Borrows all it is given.
attn::train::Trainer::Events events_of(const Settings& settings, const attn::models::Model& model,
                                       const Prepared& prepared, TrainingProgress& progress) {
  const auto log = [&settings, &progress, fails = std::make_shared<bool>(false)](const Json& row) {
    try {
      attn::io::append_line(path_in(settings.out, kLogFile), row.dump());
      *fails = false;
    } catch (const attn::Error& error) {  // a full disk: no reason to lose the training, and said once
      if (!std::exchange(*fails, true)) progress.note(std::string(error.what()) + "; the training goes on");
    }
  };
  const bool shows_accuracy = prepared.task == Task::classification || prepared.task == Task::token_classification ||
                              prepared.task == Task::masked_lm || prepared.task == Task::contrastive;
  attn::train::Trainer::Events events;
  events.step = [=, &settings, &model, &prepared, &progress](const attn::train::StepReport& report) {
    progress.step(report);
    log({{"step", report.step},
         {"loss", rounded(report.loss)},
         {"gradient_norm", rounded(report.gradient_norm)},
         {"learning_rate", report.learning_rate},
         {"loss_scale", report.loss_scale},
         {"skipped", report.skipped},
         {"seconds", report.seconds},
         {"tokens", report.tokens}});
    if (settings.sample_every > 0 && report.step % settings.sample_every == 0) {
      progress.end();
      print_sample(model, prepared, settings, report.step);
    }
  };
  events.validation = [=, &progress](int64_t step, const attn::train::Validation& result, bool best) {
    progress.validation(result, best, shows_accuracy);
    log({{"step", step},
         {"validation_loss", rounded(result.loss)},
         {"validation_accuracy", result.accuracy},
         {"metric", attn::name_of(result.metric)},
         {"validation_score", rounded(result.score)}});
  };
  events.note = [&progress](const std::string& text) { progress.note(text); };
  events.stop = [] { return signal_seen() != 0; };
  return events;
}

/// What would otherwise be found out only when the training is over, or in its middle.
void check_afterwards(const Settings& settings, const Prepared& prepared) {
  const bool writes_text = prepared.task == Task::causal_lm || prepared.task == Task::seq2seq;
  if (!writes_text && settings.interactive)
    throw UsageError("--interactive is for models that generate text; attn classify takes sentences");
  if (!writes_text && settings.sample_every > 0) throw UsageError("--sample-every is for models that generate text");
  if (prepared.task == Task::seq2seq && settings.sample_every > 0 && settings.sample_prompt.empty())
    throw UsageError("--sample-every needs a --sample-prompt to answer");
  (prepared.source_tokenizer ? prepared.source_tokenizer : prepared.tokenizer)->encode_ids(settings.sample_prompt);
}

/// What an update computes, in forwards: the forward, the gradients of inputs and those of weights. Below the lowest
/// block that is trained, there are no gradients of inputs; frozen weights have none of their own.
double passes_of(const attn::models::Model& model, const Settings& settings) {
  const auto trained = static_cast<double>(model.parameters().trained_count());
  const double share = trained / static_cast<double>(model.parameters().count());
  const bool reaches_down = settings.tune == "all" || settings.tune == "lora" || settings.tune == "layers";
  return 1 + (reaches_down ? 1 : share) + share;
}

/// The family of a new model, where none is named.
std::string family_for(const Settings& settings) {
  if (settings.task == attn::name_of(Task::seq2seq)) return "seq2seq";
  if (settings.task == attn::name_of(Task::masked_lm)) return "bert";
  const bool writes = settings.task.empty() || settings.task == attn::name_of(Task::causal_lm);
  return writes && !attn::train::is_labelled(settings.data) ? "gpt" : "encoder";
}

/// What the task decides about a new model.
void apply_task(const Settings& settings, attn::models::Config& config) {
  const auto task = attn::from_name<Task>(settings.task);
  if (task == Task::similarity || task == Task::contrastive)
    throw UsageError("--task " + settings.task + " begins with a sentence encoder: --from names its folder");
  if (task == Task::masked_lm && settings.tokenizer.empty())
    throw UsageError("--task masked-lm needs --from FOLDER, or --tokenizer FILE with a token [MASK] or <mask>");
  if (task == Task::regression) config.problem_type = attn::models::ProblemType::regression;
  if (task == Task::token_classification) config.pooling = attn::models::ClassifierPooling::each;
}

/// A metric that the task's predictions do not have would otherwise be an error after the first epoch.
void check_metric(const Settings& settings, const Prepared& prepared) {
  using attn::train::Metric;
  const auto metric = attn::from_name<Metric>(settings.metric);
  if (!metric) return;
  std::vector<Metric> allowed = {Metric::loss};
  const Task task = prepared.task;
  const bool of_classes = task == Task::classification || task == Task::token_classification;
  if (task != Task::regression) allowed.push_back(Metric::accuracy);
  if (of_classes) allowed.insert(allowed.end(), {Metric::macro_f1, Metric::matthews});
  if (of_classes && prepared.labels.size() == 2) allowed.push_back(Metric::f1);
  if (task == Task::token_classification) allowed.push_back(Metric::span_f1);
  if (task == Task::regression || task == Task::similarity)
    allowed.insert(allowed.end(), {Metric::pearson, Metric::spearman});
  std::vector<std::string> names;
  for (const Metric each : allowed) names.emplace_back(attn::name_of(each));
  if (std::find(allowed.begin(), allowed.end(), *metric) == allowed.end())
    throw UsageError(fmt::format("--metric {} does not fit --task {} with these labels, must be one of {}",
                                 settings.metric, attn::name_of(task), joined(names, ", ")));
  if (metric == Metric::span_f1) metric_value(*metric, {.expected = {0}, .predicted = {0}}, prepared.labels);
}

/// Borrows all it is given.
std::unique_ptr<attn::train::Trainer> trainer_of(attn::models::Model& model, const Prepared& prepared,
                                                 const Settings& settings) {
  using attn::train::Trainer;
  const auto metric = attn::from_name<attn::train::Metric>(settings.metric);
  const auto* pairs = dynamic_cast<const attn::train::SentencePairs*>(prepared.data.get());
  if (!pairs)
    return std::make_unique<Trainer>(model, *prepared.data, settings.options, settings.out,
                                     attn::train::ValidationOptions{.metric = metric, .labels = prepared.labels});
  const bool first = model.config().pooling == attn::models::ClassifierPooling::first;
  const attn::train::SimilarityOptions how = {
      .loss = prepared.task == Task::contrastive ? attn::train::SimilarityLoss::contrastive
                                                 : attn::train::SimilarityLoss::cosine,
      .pooling = first ? attn::models::Pooling::first : attn::models::Pooling::mean,
      .recompute = settings.options.recompute,
      .metric = metric};
  return std::make_unique<Trainer>(model.parameters(), similarity_loss(model, *pairs, how), settings.options,
                                   settings.out,
                                   [&model, pairs, how] { return validate_similarity(model, *pairs, how); });
}

/// The model that a training is about, before its data are read. With --resume and --from it completes the settings.
attn::models::Config config_of(Settings& settings, const ConfigOptions& given, const CLI::App& command,
                               std::optional<FineTuning>& tuning) {
  if (settings.resume) {
    std::vector<std::string> reasons;
    restore_settings(settings, command, reasons);
    set_float32_precision(settings.float32_precision);
    attn::models::Config config = stored_config(settings.out, given, reasons);
    if (!reasons.empty())
      throw UsageError(fmt::format("--resume continues what there is: {}", fmt::join(reasons, "; ")));
    return config;
  }
  if (!settings.from.empty()) return tuning.emplace(settings, given, command).config();
  attn::models::Config config = given.build(family_for(settings));
  apply_task(settings, config);
  return config;
}

/// Random weights.
attn::models::Loaded new_model(const Settings& settings, const attn::models::Config& config, const Job& job) {
  attn::models::Loaded loaded;
  loaded.model = std::make_unique<attn::models::Model>(
      config,
      attn::nn::Parameters::Options{.precision = precision_named(settings.precision),
                                    .seed = settings.options.seed,
                                    .trains = trained_by(settings.tune, config),
                                    .tensor_ranks = job.tensor_ranks()},
      attn::nn::random_parameter);
  return loaded;
}

void report_end(const attn::train::Trainer& trainer, bool finished, const Prepared& prepared,
                const Settings& settings) {
  if (!finished)
    return say("stopped after step {}; attn train --resume --out {} continues\n", trainer.steps_done(), settings.out);
  if (trainer.stopped_early())
    say("stopped after update {}: {} validations without a better one\n", trainer.steps_done(),
        settings.options.patience);
  if (!settings.quiet)
    say("saved in {}: best validation {} {:.4f}{}\n", settings.out, attn::name_of(trainer.best_metric()),
        trainer.best_score(),
        prepared.task == Task::classification
            ? ", of the checkpoint that is the best; attn eval says which --temperature fits it"
            : "");
}

/// What each rank prepares by itself. Only rank 0 writes to the folder, and holds it.
struct Training {
  Training(Settings of, const ConfigOptions& given, const CLI::App& command, const Job& job);
  /// The folder of a new training, or that of the one which goes on.
  void open_folder();
  void run(const Job& job);

  Settings settings;
  FolderLock lock;
  std::optional<FineTuning> tuning;
  Prepared prepared;
  attn::models::Loaded begun;
  std::unique_ptr<attn::train::Trainer> trainer;
};

Training::Training(Settings of, const ConfigOptions& given, const CLI::App& command, const Job& job)
    : settings(std::move(of)) {
  check_directory(settings);
  if (job.is_first()) hold_folder(settings.out, lock);
  attn::models::Config config = config_of(settings, given, command, tuning);
  prepared = prepare(settings, config, settings.options.seed, settings.resume ? settings.out : "",
                     tuning ? tuning->origin() : Origin());
  check_afterwards(settings, prepared);
  check_metric(settings, prepared);
  complete_options(settings, *prepared.data);
  attn::models::check(config);
  require_memory(shape_of(settings, config, prepared, job), settings.force);
  begun = tuning ? tuning->open(settings, config, prepared, job) : new_model(settings, config, job);
  trainer = trainer_of(*begun.model, prepared, settings);
}

void Training::open_folder() {
  if (settings.resume) continue_directory(settings);
  else
    begin_directory(settings, begun.model->config(), prepared, settings.overwrite, lock,
                    tuning ? tuning->pretrained() : "");
}

void Training::run(const Job& job) {
  const attn::models::Model& model = *begun.model;
  const double peak = 1e9 * attn::peaks::measure_products(model.parameters().dtype(), attn::ops::matmul_precision()) *
                      job.ranks().size();
  if (!settings.quiet) {
    describe(model, begun.new_parameters, prepared, settings, job);
    say("peak: {}FLOP/s of products on {} threads\n", short_number(peak), attn::thread_count() * job.ranks().size());
  }
  const double flops = passes_of(model, settings) * attn::models::forward_flops(model.config(), prepared.longest) /
                       static_cast<double>(prepared.longest);
  TrainingProgress progress(settings.options.steps, flops, peak, settings.quiet);
  catch_signals();
  attn::train::Trainer::Events events = {.stop = [] { return signal_seen() != 0; }};
  if (job.is_first()) events = events_of(settings, model, prepared, progress);
  const bool finished = trainer->run(events);
  progress.end();
  report_end(*trainer, finished, prepared, settings);
  lock.reset();
  if (finished && settings.interactive)
    GenerationOptions().converse(attn::generate::TextGenerator(
        attn::models::load_model(settings.out, "best", precision_named(settings.precision))));
}

void train(Settings settings, const ConfigOptions& given, const CLI::App& command) {
  Job job("train", settings.parallel);
  job.run([&] {
    std::optional<Training> training;
    attn::cluster::on_all_ranks(job.ranks(), "preparation", [&] {
      complete_shared(settings, command, job);
      training.emplace(std::move(settings), given, command, job);
    });
    const attn::models::Model& model = *training->begun.model;
    attn::cluster::on_all_ranks(job.grid(), "schedule", [&] {
      job.set_schedule(training->settings.parallel, [&] {
        return attn::models::choose_schedule(model.config(), training->prepared.longest, model.parameters().dtype(),
                                             job.grid(), true);
      });
    });
    std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is then a write that fails
    if (training->settings.resume) resume(*training->trainer, training->settings);
    attn::cluster::on_all_ranks(job.ranks(), "folder", [&] {
      if (job.is_first()) training->open_folder();
    });
    training->run(job);
  });
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("train", "train a model on a text, on labelled sentences or on pairs of texts");
  command->footer(
      "Examples:\n  attn train text.txt --layers 6 --embed-dim 256 --steps 5000 --out model\n"
      "  attn train reviews.csv --model encoder --tokens words --out reviews\n"
      "  attn train words.tsv --model seq2seq --tokens words --out answers\n"
      "  attn train reviews.tsv --from all-MiniLM-L6-v2 --epochs 3 --out reviews");
  auto settings = std::make_shared<Settings>();
  auto config = std::make_shared<ConfigOptions>();
  add_train_options(*command, *settings);
  add_finetune_options(*command, *settings);
  config->add(*command);
  command->callback([=] {
    const TrainerOptions& options = settings->options;
    settings->float32_precision = float32_precision();
    if (command->count("data") > 0 && settings->data.empty()) throw UsageError("data: the name of the file is empty");
    if (command->count("--min-learning-rate") > 0 && options.min_learning_rate > options.learning_rate &&
        !settings->resume)
      throw UsageError(fmt::format("--min-learning-rate {} must not exceed --learning-rate {}",
                                   options.min_learning_rate, options.learning_rate));
    train(*settings, *config, *command);
  });
}

}  // namespace cli
