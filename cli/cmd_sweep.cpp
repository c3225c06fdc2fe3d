// attn sweep: time, memory, decoding and loss of one model as one field varies, for a list of mixers, with the
// exponents that fit. All that is measured is a new model with random weights; with a text it is trained, at equal
// numbers of tokens.
#include <fmt/core.h>

#include <charconv>
#include <chrono>
#include <cmath>
#include <exception>
#include <memory>
#include <optional>

#include "attn/profile.h"
#include "attn/train.h"
#include "commands.h"
#include "config_flags.h"
#include "memory.h"
#include "model_flags.h"
#include "numbers.h"
#include "one_batch.h"
#include "options.h"
#include "output.h"
#include "prepare.h"
#include "progress.h"
#include "signals.h"
#include "sweep_report.h"

namespace cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The field "tokens" is the length of the sequences; the others are fields of the configuration.
constexpr const char* kLength = "tokens";

class SweepCommand {
 public:
  DataSettings data;
  ConfigOptions config;
  std::string over = "tokens=512,1024,2048,4096", precision = "float32", output = "text", csv, plots;
  std::vector<std::string> mixers, wanted;
  int64_t vocabulary = 1024, batch_tokens = 0, train_tokens = 0, seeds = 1, repeats = 5, generated = 32;
  attn::train::TrainerOptions options;
  CLI::Option* of_vocabulary = nullptr;
  std::vector<CLI::Option*> of_text;  ///< the options that are about a text

  void run() {
    plan();
    if (!csv.empty()) attn::io::write_output(csv, sweep_.table().csv());  // what cannot be written is found out now
    catch_signals();
    std::exception_ptr failure;
    try {
      for (const Job& job : jobs_) {
        if (signal_seen()) break;
        measure(job);
        if (!csv.empty()) attn::io::write_output(csv, sweep_.table().csv());
      }
    } catch (...) {  // which must not cost what was measured before
      failure = std::current_exception();
      if (sweep_.rows.empty()) throw;
    }
    status_.end();
    if (sweep_.rows.empty()) throw attn::Error("sweep", {"stopped before there was a result"});
    print(sweep_.table());
    if (const Table laws = sweep_.laws(); !laws.rows.empty()) {
      if (output == "text" || output == "md") fmt::print("\ny = factor x {}^exponent\n\n", sweep_.field);
      print(laws);
    }
    if (!plots.empty()) draw();
    if (failure) std::rethrow_exception(failure);
    if (signal_seen()) say("attn: stopped; what is printed is a part\n");
  }

 private:
  /// One model that is measured.
  struct Job {
    std::string mixer;
    double place = 0;
    int64_t seed = 0, sequences = 1;
    attn::models::Config config;
  };

  std::string field_of_config() const { return sweep_.field == kLength ? "context" : sweep_.field; }
  bool wants(const char* metric) const { return std::find(wanted.begin(), wanted.end(), metric) != wanted.end(); }

  void check_flags(const std::vector<std::string>& values) const;
  std::vector<std::string> places();
  Job job_of(const std::string& mixer, const std::string& place, int64_t seed) const;
  void plan();
  void measure(const Job& job);
  static int64_t without_scratch() { return attn::memory_in_use() - attn::scratch_in_use(); }
  void train(const Job& job, attn::models::Model& model, const attn::train::Dataset& dataset, int64_t before,
             SweepRow& row);
  void decode(const attn::models::Model& model, SweepRow& row) const;
  void show(const Job& job, const std::string& what);
  void draw() const;
  void print(const Table& table) const { fmt::print("{}", table.in(output)); }

  std::vector<Job> jobs_;
  Sweep sweep_;
  StatusLine status_;
  Clock::time_point begin_ = Clock::now();
};

// ---------------------------------------------------------------------------------------------------------------- plan

/// The values in --over FIELD=VALUE,..., as they are written.
std::vector<std::string> SweepCommand::places() {
  const size_t equals = over.find('=');
  if (equals == 0 || equals == std::string::npos || equals + 1 == over.size())
    throw UsageError("--over is '" + over + "', must be FIELD=VALUE,VALUE,... as tokens=512,1024 or heads=1,2,4");
  sweep_.field = over.substr(0, equals);
  std::replace(sweep_.field.begin(), sweep_.field.end(), '-', '_');
  std::vector<std::string> values;
  for (size_t begin = equals + 1; begin <= over.size();) {
    const size_t end = std::min(over.find(',', begin), over.size());
    values.push_back(over.substr(begin, end - begin));
    begin = end + 1;
  }
  return values;
}

SweepCommand::Job SweepCommand::job_of(const std::string& mixer, const std::string& place, int64_t seed) const {
  Job job{.mixer = mixer.empty() ? "model" : mixer, .seed = seed, .config = config.build("gpt")};
  const auto [end, error] = std::from_chars(place.data(), place.data() + place.size(), job.place);
  if (error != std::errc() || end != place.data() + place.size())
    throw UsageError("--over: '" + place + "' of " + over + " is no number");
  try {
    job.config.vocab_size = vocabulary;
    attn::models::set_field(job.config, field_of_config(), place);
    if (!mixer.empty()) attn::models::set_mixers(job.config, mixer);
    attn::models::check(job.config);
  } catch (const attn::Error& failure) {
    throw UsageError(fmt::format("{} with {} = {}: {}", job.mixer, sweep_.field, place, failure.reasons().front()));
  }
  if (!writes(job.config) || job.config.encoder_layers || job.config.takes_embeddings)
    throw UsageError("attn sweep measures models that continue texts, as gpt and llama");
  return job;
}

/// Nothing on the command line has no effect: what varies is given by --over alone, and what is about a text needs one.
void SweepCommand::check_flags(const std::vector<std::string>& values) const {
  for (const auto& [name, value] : config.fields)
    if (name == field_of_config() && !value.empty())
      throw UsageError(fmt::format("{} {} is given, but --over varies {}", flag_of(name), value, sweep_.field));
  if (sweep_.field == "vocab_size" && (of_vocabulary->count() || !data.data.empty()))
    throw UsageError("--over varies vocab_size: leave --vocab-size and the text out, which set it too");
  for (const std::string& value : values)
    if (std::count(values.begin(), values.end(), value) > 1) throw UsageError("--over names " + value + " twice");
  if (!mixers.empty() && !config.mixer.empty())
    throw UsageError("--mixer and --mixer-list are given: leave one of them out");
  for (const std::string& mixer : mixers)
    if (mixer.empty()) throw UsageError("--mixer-list has an empty name");
  if (!data.data.empty()) return;
  if (wants("loss")) throw UsageError("--measure loss needs a text to train on");
  for (const CLI::Option* option : of_text)
    if (option->count()) throw UsageError(option->get_name() + " needs a text to train on");
}

/// Everything that can be wrong is found before the first measurement.
void SweepCommand::plan() {
  if (wanted.empty()) wanted = {"time", "memory"};
  if (!data.data.empty() && !wants("loss")) wanted.emplace_back("loss");
  const std::vector<std::string> all = places();
  check_flags(all);
  if (mixers.empty()) mixers = {""};  // that of the model
  for (const std::string& mixer : mixers)
    for (const std::string& place : all)
      for (int64_t seed = 1; seed <= seeds; ++seed) jobs_.push_back(job_of(mixer, place, seed));
  int64_t longest = 0;
  for (const Job& job : jobs_) {
    longest = std::max(longest, job.config.context);
    if ((wants("decode") || wants("cache")) && job.config.context < 2)
      throw UsageError("--measure decode and cache need sequences of at least 2 tokens");
  }
  for (Job& job : jobs_) {
    job.sequences = std::max<int64_t>((batch_tokens ? batch_tokens : longest) / job.config.context, 1);
    require_memory({job.config, precision_named(precision), job.sequences, job.config.context, options.recompute, {}},
                   false);
  }
  for (const SweepMetric& metric : sweep_metrics())
    if (wants(metric.name.c_str())) sweep_.metrics.push_back(metric.name);
}

// ------------------------------------------------------------------------------------------------------------- measure

void SweepCommand::show(const Job& job, const std::string& what) {
  if (!status_.is_due()) return;
  const double done = static_cast<double>(sweep_.rows.size()), all = static_cast<double>(jobs_.size());
  const std::string left = done > 0 ? clock_time(seconds_since(begin_) / done * (all - done)) + " left" : "";
  status_.show(fmt::format("{} of {}: {}, {} = {:g}, seed {}: {}   {}", done + 1, all, job.mixer, sweep_.field,
                           job.place, job.seed, what, left));
}

/// Adds a row, unless a signal comes first.
void SweepCommand::measure(const Job& job) {
  const auto seed = static_cast<uint64_t>(job.seed);
  SweepRow row{.mixer = job.mixer, .place = job.place, .seed = job.seed};
  row.sequences = job.sequences;
  row.length = job.config.context;
  attn::models::Config shape = job.config;
  std::unique_ptr<attn::train::Dataset> dataset;
  if (data.data.empty()) {
    dataset = std::make_unique<OneBatch>(random_batch(shape, row.sequences, row.length, seed));
  } else {
    DataSettings settings = data;
    settings.batch = job.sequences;
    dataset = prepare(settings, shape, seed, "").data;
  }
  const int64_t before = without_scratch();
  attn::models::Model model(shape, precision_named(precision), seed);
  row.parameters = model.parameters().count();
  train(job, model, *dataset, before, row);
  if (signal_seen()) return;
  if (wants("decode") || wants("cache")) {
    model.parameters().pack();
    decode(model, row);
  }
  if (!signal_seen()) sweep_.rows.push_back(std::move(row));
}

/// Updates that are timed after two that are not, the second under a Profiler, which records the peak of memory.
/// `before`: the memory that was in use without the model.
void SweepCommand::train(const Job& job, attn::models::Model& model, const attn::train::Dataset& dataset,
                         int64_t before, SweepRow& row) {
  const int64_t tokens = row.sequences * row.length;
  attn::train::TrainerOptions how = options;
  how.steps = data.data.empty() ? repeats + 2 : std::max<int64_t>(train_tokens / tokens, 3);
  how.warmup = std::min(how.warmup, how.steps / 10);
  how.min_learning_rate = std::min(how.min_learning_rate, how.learning_rate / 10);
  how.seed = static_cast<uint64_t>(job.seed);
  attn::train::Trainer trainer(model, dataset, how, "");
  std::vector<double> times;
  int64_t peak = 0;
  for (int64_t step = 0; step < how.steps && !signal_seen(); ++step) {
    std::optional<attn::Profiler> profiler;
    if (step == 1) {
      profiler.emplace(attn::ProfilerOptions{.on_span = [](attn::Span&&) {}});
      attn::reset_memory_peak();
    }
    const attn::train::StepReport report = trainer.step();
    if (step == 1) peak = attn::memory_peak() - attn::scratch_in_use();
    if (step > 1) times.push_back(1e6 * report.seconds / static_cast<double>(tokens));
    show(job, fmt::format("update {} of {}, loss {:.3f}", step + 1, how.steps, report.loss));
  }
  if (signal_seen()) return;
  row.values.push_back(sweep_value("time", times));
  row.values.push_back(sweep_value("memory", {1e-6 * static_cast<double>(peak - before)}));
  if (wants("loss")) row.values.push_back(sweep_value("loss", {attn::train::validate(model, dataset).loss}));
}

/// Tokens that are written one by one, the last one at the end of the context.
void SweepCommand::decode(const attn::models::Model& model, SweepRow& row) const {
  const attn::models::Config& shape = model.config();
  const int64_t count = std::min(generated, row.length - 1);
  attn::models::ModelCache cache = model.new_cache(1, {}, attn::KVStorage::exact);
  const auto memory = attn::autograd::Tape().memory();
  const auto feed = [&](int64_t length) {
    attn::autograd::Tape tape({}, memory);
    model.forward(tape, random_batch(shape, 1, length, 1), {.cache = &cache, .last_only = true});
  };
  std::vector<double> times;
  feed(row.length - count);
  for (int64_t n = 0; n < count && !signal_seen(); ++n) {
    const Clock::time_point start = Clock::now();
    feed(1);
    times.push_back(1e6 * seconds_since(start));
  }
  if (signal_seen()) return;
  row.values.push_back(sweep_value("decode", times));
  const attn::DType dtype = model.parameters().dtype();
  const double grown = static_cast<double>(attn::models::cache_bytes_per_token(shape, dtype) * row.length);
  const double fixed = static_cast<double>(attn::models::state_bytes(shape, precision_named(precision)));
  row.values.push_back(sweep_value("cache", {1e-3 * (grown + fixed)}));
}

void SweepCommand::draw() const {
  for (const std::string& metric : sweep_.metrics) {
    const attn::view::Chart chart = sweep_.chart(metric);
    for (const char* end : {".svg", ".png"}) attn::view::save_chart(plots + "-" + metric + end, chart);
  }
}

}  // namespace

void add_sweep(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("sweep", "measure time, memory and loss of new models as one field varies, and fit exponents");
  command->footer(
      "Examples:\n  attn sweep --mixer-list full,window:256,gated_delta --plots scaling\n"
      "  attn sweep --over heads=1,2,4,8 --measure time,decode,cache\n"
      "  attn sweep text.txt --over tokens=64,128,256 --train-tokens 500000 --seeds 3 --csv context.csv");
  auto run = std::make_shared<SweepCommand>();
  const auto list = [&](const char* name, std::vector<std::string>& values, const char* description) {
    return command->add_option(name, values, description)->delimiter(',')->allow_extra_args(false);
  };
  command->add_option("data", run->data.data, "a text to train on; none: a few updates with random tokens")
      ->type_name("FILE");
  const auto of_text = [&](CLI::Option* option) {
    run->of_text.push_back(option);
    return option;
  };
  of_text(command->add_option("--tokens", run->data.tokens, "kind of tokens of the text; default: characters"))
      ->check(one_of({"characters", "bytes", "words"}));
  of_text(command->add_option("--tokenizer", run->data.tokenizer, "a tokenizer.json for the text"))->type_name("FILE");
  command
      ->add_option(
          "--over", run->over,
          "what varies: tokens, which are the length of the sequences, or a field of the model, and its values")
      ->type_name("FIELD=VALUE,...");
  list("--mixer-list", run->mixers, "mixers to compare, each as --mixer takes it; default: the one of the model");
  std::vector<std::string> names;
  for (const SweepMetric& metric : sweep_metrics()) names.push_back(metric.name);
  list("--measure", run->wanted, "what is measured; default: time,memory, and with a text loss")->check(one_of(names));
  command
      ->add_option("--batch-tokens", run->batch_tokens,
                   "tokens of an update, in sequences of one length; 0 = those of the longest sequence")
      ->check(whole(0, 1 << 24));
  run->train_tokens = 1 << 20;
  of_text(command->add_option("--train-tokens", run->train_tokens, "tokens of the training of each model on a text"))
      ->check(whole(1, int64_t{1} << 40));
  of_text(command->add_option("--seeds", run->seeds, "trainings of each model on a text, with the seeds 1, 2, ..."))
      ->check(whole(1, 1000));
  command->add_option("-r,--repeats", run->repeats, "timed updates without a text, after two")->check(whole(1, 1000));
  command->add_option("-n,--generations", run->generated, "tokens that --measure decode writes")
      ->check(whole(1, 1 << 20));
  run->of_vocabulary =
      command->add_option("--vocab-size", run->vocabulary, "vocabulary size without a text")->check(whole(1, 1 << 24));
  command->add_option("--learning-rate", run->options.learning_rate, "at its highest")->check(number(0, 1e6, "(]"));
  command->add_flag("--recompute", run->options.recompute, "recompute layers in the backward");
  add_precision(*command, run->precision);
  command->add_option("-o,--output", run->output, "the format of the tables")
      ->check(one_of({"text", "md", "csv", "json"}));
  command->add_option("--csv", run->csv, "a file for the rows, written after each of them")->type_name("FILE");
  command->add_option("--plots", run->plots, "draw each measure as NAME-time.svg, NAME-time.png and so on")
      ->type_name("NAME");
  run->config.add(*command);
  command->callback([=] { run->run(); });
}

}  // namespace cli
