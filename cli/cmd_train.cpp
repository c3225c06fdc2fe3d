// attn train: a text or labelled sentences in, a directory with a model out.
#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "attn/generate.h"
#include "common.h"
#include "primer.h"

namespace cli {
namespace {

using Json = nlohmann::ordered_json;
using attn::train::Options;

// In a model's directory, beside its checkpoints.
constexpr const char *kConfigFile = "/config.json", *kTokenizerFile = "/tokenizer.json",
                     *kSettingsFile = "/training.json", *kLogFile = "/log.jsonl";

/// Everything `attn train` can be told, beside the model's configuration.
struct Settings {
  std::string data, validation, tokens, out = "model", precision = "float32";
  int64_t batch = 12, validation_batches = 20, min_count = 2;
  double epochs = 0, word_dropout = 0;
  Options options;
  bool resume = false, overwrite = false, interactive = false, quiet = false;
  int64_t sample_every = 0;
  std::string sample_prompt;
};

/// What a resumed training takes over from the one that was stopped.
template <class S, class Visit>
void each_saved(S& settings, const Visit& visit) {
  visit("data", settings.data);
  visit("validation", settings.validation);
  visit("tokens", settings.tokens);
  visit("precision", settings.precision);
  visit("batch", settings.batch);
  visit("validation_batches", settings.validation_batches);
  visit("word_dropout", settings.word_dropout);
  visit("steps", settings.options.steps);
  visit("accumulation", settings.options.accumulation);
  visit("learning_rate", settings.options.learning_rate);
  visit("min_learning_rate", settings.options.min_learning_rate);
  visit("warmup", settings.options.warmup);
  visit("decay_steps", settings.options.decay_steps);
  visit("beta1", settings.options.beta1);
  visit("beta2", settings.options.beta2);
  visit("epsilon", settings.options.epsilon);
  visit("weight_decay", settings.options.weight_decay);
  visit("clip", settings.options.clip);
  visit("eval_every", settings.options.eval_every);
  visit("save_every", settings.options.save_every);
  visit("keep_every", settings.options.keep_every);
  visit("seed", settings.options.seed);
}

std::string settings_json(const Settings& settings) {
  Json object;
  each_saved(settings, [&](const char* name, const auto& field) { object[name] = field; });
  return object.dump(2) + "\n";
}

template <class T>
bool is_of_type(const Json& value) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  if constexpr (std::is_same_v<T, bool>) return value.is_boolean();
  else if constexpr (std::is_same_v<T, std::string>) return value.is_string();
  else if constexpr (std::is_same_v<T, double>) return value.is_number();
  else return value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= kMost);
}

/// Fields that the command line does not name come from the file.
void take_over(Settings& settings, const CLI::App& command) {
  const std::string path = settings.out + kSettingsFile, text = attn::io::read_file(path, 1 << 20);
  attn::io::check_json("train", path, text);
  const Json object = Json::parse(text);
  if (!object.is_object()) throw attn::Error("train", {path + " is not a JSON object"});
  each_saved(settings, [&](const std::string& name, auto& field) {
    using Field = std::decay_t<decltype(field)>;
    if (command.count(name == "data" ? name : flag_of(name)) > 0) return;
    if (!object.contains(name) || !is_of_type<Field>(object[name]))
      throw attn::Error("train", {path + ": '" + name + "' is missing or of another type"});
    field = object[name].get<Field>();
  });
}

struct Prepared {
  std::unique_ptr<attn::text::Tokenizer> tokenizer;
  std::unique_ptr<attn::train::Data> data;
  std::vector<std::string> labels = {};  // of a classifier
};

std::vector<std::string> classes_of_all(std::vector<attn::train::LabelledText> rows,
                                        const std::vector<attn::train::LabelledText>& held_out, int64_t least) {
  rows.insert(rows.end(), held_out.begin(), held_out.end());
  return attn::train::classes_of(rows, least);
}

/// Labelled sentences: the last tenth is for validation unless a file is named.
Prepared prepare_sentences(const Settings& settings, const attn::models::Config& config,
                           std::unique_ptr<attn::text::Tokenizer> tokenizer) {
  std::vector<attn::train::LabelledText> rows = attn::train::read_labelled(settings.data), held_out;
  if (!settings.validation.empty()) {
    held_out = attn::train::read_labelled(settings.validation);
  } else {
    const size_t kept = rows.size() - rows.size() / 10;
    held_out.assign(rows.begin() + static_cast<int64_t>(kept), rows.end());
    rows.resize(kept);
  }
  Prepared prepared;
  prepared.tokenizer = std::move(tokenizer);
  if (settings.word_dropout > 0 && settings.tokens == "bytes") throw UsageError("--word-dropout is for --tokens words");
  if (!prepared.tokenizer) {
    std::vector<std::string> texts;
    for (const auto& row : rows) texts.push_back(row.text);
    if (settings.tokens == "bytes") prepared.tokenizer = attn::text::bytes();
    else if (settings.tokens.empty() || settings.tokens == "words")
      prepared.tokenizer = attn::text::words_of(texts, {.min_count = settings.min_count});
    else throw UsageError("sentences take --tokens words or bytes, not '" + settings.tokens + "'");
  }
  prepared.labels = settings.resume ? attn::models::load_labels(settings.out, config.classes)
                                    : classes_of_all(rows, held_out, config.classes);
  if (static_cast<int64_t>(prepared.labels.size()) < config.classes)
    throw attn::Error("train", {fmt::format("{} has {} different labels, the model {} classes", settings.data,
                                            prepared.labels.size(), config.classes)});
  const std::string& held_path = settings.validation.empty() ? settings.data : settings.validation;
  const auto encoded = [&](const auto& part, const std::string& path) {
    return attn::train::encode_labelled(part, *prepared.tokenizer, prepared.labels, path);
  };
  prepared.data = std::make_unique<attn::train::LabelledData>(
      encoded(rows, settings.data), encoded(held_out, held_path), config.context, settings.batch, settings.options.seed,
      settings.word_dropout);
  return prepared;
}

Prepared prepare_text(const Settings& settings, const attn::models::Config& config,
                      std::unique_ptr<attn::text::Tokenizer> tokenizer) {
  const std::string text = settings.data.empty() ? std::string(kPrimer) : attn::io::read_input(settings.data);
  const std::string name = settings.data.empty() ? "the primer" : settings.data;
  if (text.empty()) throw attn::Error("train", {name + " is empty"});
  Prepared prepared;
  prepared.tokenizer = std::move(tokenizer);
  if (!prepared.tokenizer) {
    if (settings.tokens == "bytes") {
      prepared.tokenizer = attn::text::bytes();
    } else if (settings.tokens.empty() || settings.tokens == "characters") {
      attn::text::require_utf8(text, name);
      prepared.tokenizer = attn::text::characters_of(text);
    } else if (settings.tokens == "words") {
      prepared.tokenizer = attn::text::words_of(std::vector<std::string>{text}, {.min_count = settings.min_count});
    } else {
      throw UsageError("--tokens must be characters, bytes or words, not '" + settings.tokens + "'");
    }
  }
  prepared.data =
      std::make_unique<attn::train::TextData>(prepared.tokenizer->encode(text), config.context, settings.batch,
                                              settings.options.seed, settings.validation_batches);
  return prepared;
}

/// One line that is written over on a terminal, and a line now and then elsewhere.
class Progress {
 public:
  Progress(const Options& options, double flops_per_token, double peak, bool quiet)
      : options_(options), flops_(flops_per_token), peak_(peak), quiet_(quiet) {}

  void step(const attn::train::StepReport& report) {
    const double rate = static_cast<double>(report.tokens) / report.seconds;
    if (recent_seconds_ == 0) loss_ = report.loss;
    recent_seconds_ = recent_seconds_ == 0 ? report.seconds : 0.95 * recent_seconds_ + 0.05 * report.seconds;
    rate_ = rate_ == 0 ? rate : 0.95 * rate_ + 0.05 * rate;
    loss_ = 0.9 * loss_ + 0.1 * report.loss;
    last_ = report;
    const auto now = std::chrono::steady_clock::now();
    const double pause = terminal_ ? 0.1 : 10;
    if (quiet_ || std::chrono::duration<double>(now - shown_).count() < pause) return;
    shown_ = now;
    show(terminal_ ? "\r" : "", terminal_ ? "\x1b[K" : "\n");
  }
  void validation(int64_t, const attn::train::Validation& result, bool best, bool classes) {
    validation_ = classes ? fmt::format("  val {:.4f} ({:.1f} %)", result.loss, 100 * result.accuracy)
                          : fmt::format("  val {:.4f}", result.loss);
    if (best) validation_ += " best";
    if (!quiet_) show(terminal_ ? "\r" : "", terminal_ ? "\x1b[K\n" : "\n");
  }
  void note(const std::string& text) const { fmt::print(stderr, "{}attn: {}\n", terminal_ ? "\r\x1b[K" : "", text); }
  double peak_share() const { return rate_ * flops_ / peak_; }

 private:
  void show(const char* before, const char* after) const {
    const double left = static_cast<double>(options_.steps - last_.step) * recent_seconds_;
    fmt::print(stderr, "{}step {}/{}  loss {:.4f}{}  {} tokens/s  {:.0f} % of peak  ETA {}{}", before, last_.step,
               options_.steps, loss_, validation_, grouped(static_cast<int64_t>(rate_)), 100 * peak_share(),
               clock_time(left), after);
    std::fflush(stderr);
  }

  const Options& options_;
  double flops_, peak_, rate_ = 0, loss_ = 0, recent_seconds_ = 0;
  bool quiet_, terminal_ = isatty(STDERR_FILENO);
  std::string validation_;
  attn::train::StepReport last_;
  std::chrono::steady_clock::time_point shown_{};
};

Json rounded(double value) { return value - value == 0 ? Json(value) : Json(nullptr); }

void print_sample(const attn::models::Model& model, const attn::text::Tokenizer& tokenizer, const Settings& settings,
                  int64_t step) {
  const std::vector<int64_t> prompt = settings.sample_prompt.empty() ? std::vector<int64_t>{step % tokenizer.size()}
                                                                     : tokenizer.encode(settings.sample_prompt);
  const auto result = attn::generate::generate(
      model, prompt, {.sampling = {.temperature = 0.8, .top_k = 40}, .max_tokens = 100, .seed = settings.options.seed});
  fmt::print("--- sample at step {}\n{}{}\n---\n", step, settings.sample_prompt, tokenizer.decode(result.tokens));
  std::fflush(stdout);
}

void describe(const attn::models::Model& model, const Prepared& prepared, const Settings& settings, double peak) {
  const attn::models::Config& config = model.config();
  fmt::print(stderr, "{}: {} parameters, {} layers of {} heads, width {}, context {}, {} {} tokens, {}\n", config.model,
             grouped(model.parameters().count()), config.layers, config.heads, config.embed_dim, config.context,
             grouped(prepared.tokenizer->size()), prepared.tokenizer->kind(), settings.precision);
  fmt::print(stderr, "data: {}{}\n", settings.data.empty() ? "the built-in primer: " : "", prepared.data->describe());
  const int64_t tokens = settings.batch * config.context * settings.options.accumulation;
  fmt::print(stderr, "{} tokens an update{} ({} sequences x {} x {} accumulated), {} updates\n", grouped(tokens),
             config.classes ? " at most" : "", settings.batch, config.context, settings.options.accumulation,
             grouped(settings.options.steps));
  fmt::print(stderr, "peak: {}FLOP/s in large products on {} threads\n", short_number(peak), attn::thread_count());
}

void check_directory(const Settings& settings) {
  const bool taken = !attn::models::Checkpoints(settings.out).empty();
  if (settings.resume && !taken) throw UsageError("--resume: " + settings.out + " holds no checkpoint");
  if (!settings.resume && !settings.overwrite && taken)
    throw UsageError(settings.out + " holds a model already: --resume continues it, --overwrite replaces it, --out " +
                     "names another directory");
}

void remove_old(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") || name == "checkpoints.json" || name == "log.jsonl")
      std::filesystem::remove(entry.path());
  }
}

attn::models::Config stored_config(const std::string& directory) {
  attn::models::Config config;
  const std::string path = directory + kConfigFile;
  attn::models::apply_json(config, attn::io::read_file(path, 1 << 20), path);
  return config;
}

std::unique_ptr<attn::text::Tokenizer> stored_tokenizer(const std::string& directory) {
  const std::string path = directory + kTokenizerFile;
  return attn::text::load_tokenizer(attn::io::read_file(path, 1 << 28), path);
}

/// A new model takes its sizes from the data; the data of a resumed one must fit it.
Prepared prepare(const Settings& settings, attn::models::Config& config) {
  if (config.classes == 0 && attn::train::is_labelled(settings.data))
    throw UsageError(settings.data + " has labels, which need --model encoder");
  if (config.classes > 0 && settings.data.empty())
    throw UsageError("a classifier learns from a file with labels: .tsv, .csv or .jsonl");
  std::unique_ptr<attn::text::Tokenizer> tokenizer = settings.resume ? stored_tokenizer(settings.out) : nullptr;
  Prepared prepared = config.classes ? prepare_sentences(settings, config, std::move(tokenizer))
                                     : prepare_text(settings, config, std::move(tokenizer));
  if (!settings.resume) {
    config.vocab_size = prepared.tokenizer->size();
    if (config.classes) config.classes = static_cast<int64_t>(prepared.labels.size());
  }
  return prepared;
}

/// Steps from epochs, and a schedule that fits them.
void settle_schedule(Settings& settings, const attn::train::Data& data) {
  Options& options = settings.options;
  if (settings.epochs > 0) {
    const double batches = settings.epochs * static_cast<double>(data.batches_per_epoch());
    options.steps = std::max<int64_t>(1, static_cast<int64_t>(batches) / options.accumulation);
  }
  if (options.min_learning_rate > options.learning_rate) options.min_learning_rate = options.learning_rate / 10;
  options.warmup = std::min(options.warmup, options.steps / 10);
}

void resume(attn::train::Trainer& trainer) {
  std::vector<std::string> notes;
  trainer.resume(&notes);
  for (const std::string& note : notes) fmt::print(stderr, "attn: {}\n", note);
  fmt::print(stderr, "resuming after step {}\n", trainer.steps_done());
}

/// The directory, and all that a model needs in it besides its weights.
void begin_directory(const Settings& settings, const attn::models::Config& config, const Prepared& prepared) {
  attn::io::make_directory(settings.out);
  remove_old(settings.out);
  attn::io::write_file(settings.out + kConfigFile, attn::models::to_json(config));
  attn::io::write_file(settings.out + kTokenizerFile, prepared.tokenizer->to_json());
  if (config.classes)
    attn::io::write_file(settings.out + "/" + attn::models::kLabelsFile, attn::models::labels_to_json(prepared.labels));
  attn::io::write_file(settings.out + kSettingsFile, settings_json(settings));
}

/// What happens beside the training: progress, the log, samples, signals. Borrows all it is given.
attn::train::Trainer::Events events_of(const Settings& settings, const attn::models::Model& model,
                                       const attn::text::Tokenizer& tokenizer, Progress& progress) {
  const auto log = [&settings](const Json& row) { attn::io::append_line(settings.out + kLogFile, row.dump()); };
  const bool classifies = model.config().classes > 0;
  attn::train::Trainer::Events events;
  events.step = [=, &settings, &model, &tokenizer, &progress](const attn::train::StepReport& report) {
    progress.step(report);
    log({{"step", report.step},
         {"loss", rounded(report.loss)},
         {"gradient_norm", rounded(report.gradient_norm)},
         {"learning_rate", report.learning_rate},
         {"seconds", report.seconds},
         {"tokens", report.tokens}});
    if (settings.sample_every > 0 && report.step % settings.sample_every == 0 && !classifies)
      print_sample(model, tokenizer, settings, report.step);
  };
  events.validation = [=, &progress](int64_t step, const attn::train::Validation& result, bool best) {
    progress.validation(step, result, best, classifies);
    log({{"step", step}, {"validation_loss", rounded(result.loss)}, {"validation_accuracy", result.accuracy}});
  };
  events.note = [&progress](const std::string& text) { progress.note(text); };
  events.stop = [] { return signal_seen() != 0; };
  return events;
}

void train(Settings settings, const ConfigOptions& config_options, const CLI::App& command) {
  check_directory(settings);
  if (settings.resume) take_over(settings, command);
  attn::models::Config config = settings.resume
                                    ? stored_config(settings.out)
                                    : config_options.build(attn::train::is_labelled(settings.data) ? "encoder" : "gpt");
  const Prepared prepared = prepare(settings, config);
  settle_schedule(settings, *prepared.data);

  const attn::nn::Precision precision = precision_named(settings.precision);
  attn::models::Model model(config, precision, settings.options.seed);
  attn::train::Trainer trainer(model, *prepared.data, settings.options, settings.out);
  if (settings.resume) resume(trainer);
  else begin_directory(settings, config, prepared);

  const double peak = measured_peak(model.parameters().dtype());
  if (!settings.quiet) describe(model, prepared, settings, peak);
  Progress progress(settings.options, 3 * model.forward_flops(config.context) / static_cast<double>(config.context),
                    peak, settings.quiet);
  catch_signals();
  if (!trainer.run(events_of(settings, model, *prepared.tokenizer, progress))) {
    fmt::print(stderr, "\nstopped after step {}; attn train --resume --out {} continues\n", trainer.steps_done(),
               settings.out);
    return;
  }
  if (!settings.quiet)
    fmt::print(stderr, "saved in {}: best validation {} {:.4f}\n", settings.out, config.classes ? "error" : "loss",
               trainer.best_score());
  if (settings.interactive) {
    if (config.classes) throw UsageError("--interactive is for models that write; attn classify takes sentences");
    GenerationOptions generation;
    generation.converse(attn::models::load_model(settings.out, "best", precision));
  }
}

// ------------------------------------------------------------------------------------------------------------ options

void add_data_options(CLI::App& command, Settings& settings) {
  command
      .add_option("data", settings.data,
                  "a text, or .tsv, .csv or .jsonl with labels; - is standard input; none: a primer")
      ->type_name("FILE");
  command.add_option("--validation", settings.validation, "sentences to validate with; none: the last tenth")
      ->type_name("FILE");
  command.add_option("--out", settings.out, "the folder for the model")->type_name("FOLDER");
  command.add_option("--tokens", settings.tokens, "what a token is; none: characters, of sentences words")
      ->check(one_of({"characters", "bytes", "words"}));
  command.add_option("--min-count", settings.min_count, "words that are rarer are unknown")->check(whole(1));
  command.add_option("--word-dropout", settings.word_dropout, "share of words hidden in training, of sentences")
      ->check(number(0, 1, "[)"));
}

void add_schedule_options(CLI::App& command, Settings& settings) {
  Options& options = settings.options;
  command.add_option("--batch", settings.batch, "sequences a batch")->check(whole(1, 1 << 20));
  command.add_option("--accumulation", options.accumulation, "batches an update")->check(whole(1, 1 << 20));
  CLI::Option* steps = command.add_option("--steps", options.steps, "updates")->check(whole(1, int64_t{1} << 40));
  command.add_option("--epochs", settings.epochs, "instead of --steps: times through the data")
      ->check(number(0, 1e6, "(]"))
      ->default_str("")
      ->excludes(steps);
  command.add_option("--learning-rate", options.learning_rate, "at its highest")->check(number(0, 1e6, "(]"));
  command
      .add_option("--min-learning-rate", options.min_learning_rate, "where the cosine ends, or a tenth of the highest")
      ->check(number(0, 1e6));
  command.add_option("--warmup", options.warmup, "steps of linear growth, at most a tenth of all")->check(whole(0));
  command.add_option("--decay-steps", options.decay_steps, "where the cosine ends; 0 = with the training")
      ->check(whole(0));
  command.add_option("--beta1", options.beta1, "of AdamW")->check(number(0, 1, "[)"));
  command.add_option("--beta2", options.beta2, "of AdamW")->check(number(0, 1, "[)"));
  command.add_option("--epsilon", options.epsilon, "of AdamW")->check(number(0, 1, "(]"));
  command.add_option("--weight-decay", options.weight_decay, "of products and embeddings")->check(number(0, 1e6));
  command.add_option("--clip", options.clip, "largest norm of the gradients; 0 = none")->check(number(0));
}

void add_run_options(CLI::App& command, Settings& settings) {
  Options& options = settings.options;
  command.add_option("--eval-every", options.eval_every, "steps between validations; 0 = only at the end")
      ->check(whole(0));
  command.add_option("--validation-batches", settings.validation_batches, "batches a validation, of a text")
      ->check(whole(1));
  command.add_option("--save-every", options.save_every, "steps between checkpoints; 0 = with each validation")
      ->check(whole(0));
  command.add_option("--keep-every", options.keep_every, "checkpoints at these steps stay; 0 = none")->check(whole(0));
  command.add_option("--seed", options.seed, "of weights, data and dropout")->check(whole(0));
  add_precision(command, settings.precision, "of the arithmetic; master weights are float32");
  command.add_flag("--recompute", options.recompute, "less memory, a third more work");
  command.add_flag("--skip-nonfinite", options.skip_nonfinite, "leave out updates that are not finite");
  command.add_option("--sample-every", settings.sample_every, "steps between samples; 0 = none")->check(whole(0));
  command.add_option("--sample-prompt", settings.sample_prompt, "how samples begin");
  CLI::Option* resume = command.add_flag("--resume", settings.resume, "continue the training in --out");
  command.add_flag("--overwrite", settings.overwrite, "replace the model in --out")->excludes(resume);
  command.add_flag("--interactive", settings.interactive, "after the training, continue what is typed");
  command.add_flag("--quiet", settings.quiet, "no progress");
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "train a model on a text, or a classifier on labelled sentences");
  command->footer(
      "Examples:\n  attn train text.txt --layers 6 --embed-dim 256 --steps 5000 --out model\n"
      "  attn train reviews.csv --model encoder --tokens words --out reviews");
  auto settings = std::make_shared<Settings>();
  auto config = std::make_shared<ConfigOptions>();
  add_data_options(*command, *settings);
  add_schedule_options(*command, *settings);
  add_run_options(*command, *settings);
  config->add(*command);
  command->callback([=] {
    const Options& options = settings->options;
    if (command->count("data") > 0 && settings->data.empty()) throw UsageError("data: the name of the file is empty");
    if (command->count("--min-learning-rate") > 0 && options.min_learning_rate > options.learning_rate &&
        !settings->resume)
      throw UsageError(fmt::format("--min-learning-rate {} must not exceed --learning-rate {}",
                                   options.min_learning_rate, options.learning_rate));
    train(*settings, *config, *command);
  });
}

}  // namespace cli
