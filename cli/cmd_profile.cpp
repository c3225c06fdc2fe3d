// attn profile: what a model spends its time and memory on, by layer and operation: a forward, one update of a
// training, reading a prompt, writing tokens. Each part runs with and without a Profiler in turn, so that its cost
// shows.
#include <fmt/core.h>

#include <chrono>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>

#include "attn/generate.h"
#include "attn/ops.h"
#include "attn/peaks.h"
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
#include "profile_report.h"
#include "progress.h"
#include "signals.h"
#include "trace_file.h"

namespace cli {
namespace {

using attn::models::Batch;

/// "block *" of "block 3".
std::string without_number(const std::string& name) {
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  return digits > 1 && digits < name.size() && name[digits - 1] == ' ' ? name.substr(0, digits) + "*" : name;
}

class Profile {
 public:
  std::string directory, precision = "float32", text, output = "text", trace, roofline_file, json;
  std::vector<std::string> wanted, compared;
  int64_t tokens = 256, generated = 64, sequences = 1, repeats = 3, rows = 20;
  CLI::Option* of_generated = nullptr;  ///< whether it is given
  bool each_layer = false, counts = false;
  CacheOption kv_cache;

  void run() {
    if (!compared.empty()) return print(comparison(compared[0], compared[1], rows));
    if (directory.empty()) throw UsageError("attn profile needs a model folder, or --compare with two files");
    catch_signals();
    if (counts) counters_ = std::make_unique<Counters>();  // before there are other threads
    if (!trace.empty()) trace_ = std::make_unique<TraceFile>(trace);
    measure_peaks();
    infer();
    std::exception_ptr failure;  // of a training, which must not cost what was measured before
    try {
      const bool is_quantized = precision == "int8" || precision == "int4";
      if (wants("train") && !signal_seen() && !(is_quantized && wanted.empty())) train();
    } catch (...) {
      failure = std::current_exception();
      if (phases_.empty()) throw;
    }
    status_.end();
    if (phases_.empty()) throw attn::Error("profile", {"stopped before there was a result"});
    report();
    if (trace_) trace_->finish(threads_);
    if (!json.empty()) attn::io::write_file(json, indented(profile_json(phases_, peaks_)));
    if (!roofline_file.empty()) attn::view::save_chart(roofline_file, roofline(phases_, peaks_));
    if (failure) std::rethrow_exception(failure);
    if (signal_seen()) say("attn: stopped; what is printed is a part\n");
  }

 private:
  struct MemoryPart {
    std::string phase, part;
    double measured = 0, formula = 0;
  };

  bool wants(const char* phase) const {
    return wanted.empty() || std::find(wanted.begin(), wanted.end(), phase) != wanted.end();
  }

  void measure_peaks() {
    constexpr int64_t kBytes = int64_t{1} << 28;
    attn::models::OpenOptions options;
    set_precision(options, precision);
    const attn::DType dtype = options.precision == attn::nn::Precision::bfloat16  ? attn::DType::bfloat16
                              : options.precision == attn::nn::Precision::float16 ? attn::DType::float16
                                                                                  : attn::DType::float32;
    const attn::Buffer memory(kBytes, true);
    for (int n = 0; n < 5; ++n) {
      peaks_.flops = std::max(peaks_.flops, 1e9 * attn::peaks::measure_products(dtype, attn::ops::matmul_precision()));
      peaks_.bandwidth = std::max(peaks_.bandwidth, 1e9 * attn::peaks::measure_read(memory.data(), kBytes));
    }
  }

  attn::models::Loaded open(attn::nn::Purpose purpose) const {
    attn::models::OpenOptions options{.purpose = purpose, .which = "last"};
    set_precision(options, precision);
    if (purpose == attn::nn::Purpose::inference) options.packed = true;
    Loading loading;
    options.on_progress = loading.listener();
    attn::models::Loaded loaded = attn::models::open(directory, options);
    if (loaded.model->config().takes_embeddings)
      throw UsageError(directory + " reads embeddings of images or sound; attn profile gives models tokens");
    return loaded;
  }

  /// `count` tokens of the text, again from its beginning where it ends; without a text random ones.
  std::vector<int64_t> some_tokens(const attn::models::Loaded& loaded, int64_t count) const {
    const attn::models::Config& config = loaded.model->config();
    std::vector<int64_t> read, all;
    if (!text.empty()) {
      if (!loaded.tokenizer) throw UsageError(directory + " has no tokenizer: leave --text out for random tokens");
      try {
        read = loaded.tokenizer->encode(attn::io::read_file(text, int64_t{1} << 28)).ids;
      } catch (const attn::Error& error) {
        throw attn::Error("profile", {text + ": " + error.reasons().front()});
      }
      if (read.empty()) throw attn::Error("profile", {text + " has no tokens"});
    }
    attn::Random random(1);
    for (int64_t n = 0; n < count; ++n)
      all.push_back(read.empty() ? random.below(config.vocab_size) : read[static_cast<size_t>(n) % read.size()]);
    return all;
  }

  /// The length that fits learned positions.
  int64_t length_of(const attn::models::Config& config, int64_t after = 0) const {
    return attn::models::learns_positions(config) ? std::min(tokens, config.context - after) : tokens;
  }

  Batch batch_of(const attn::models::Loaded& loaded, int64_t length) const {
    const attn::models::Config& config = loaded.model->config();
    Batch batch{.tokens = some_tokens(loaded, sequences * length), .sequences = sequences, .length = length};
    if (config.encoder_layers) {
      batch.source = batch.tokens;
      batch.source_length = length;
    }
    return batch;
  }

  /// Runs `work`, in a scope of this name unless it has scopes, once to warm up, then `repeats` times each with and
  /// without a Profiler. Returns whether one of the runs was complete.
  bool measure(const char* name, int64_t count, const std::function<void()>& work, bool has_scopes = false) {
    using Clock = std::chrono::steady_clock;
    ProfiledPhase phase{.name = name, .tokens = count};
    std::vector<attn::Span> spans, all;
    spans.reserve(1 << 16);
    const auto timed = [&] {
      const auto start = Clock::now();
      std::optional<attn::ProfileSpan> span;
      if (!has_scopes) span.emplace(name);
      work();
      span.reset();
      return std::chrono::duration<double>(Clock::now() - start).count();
    };
    timed();
    for (int64_t n = 0; n < repeats && !signal_seen(); ++n) {
      if (status_.is_due()) status_.show(fmt::format("{}: {} of {}", name, n, repeats));
      spans.clear();
      const Counters::Values before = counters_ ? counters_->read() : Counters::Values();
      const double plain = timed();
      Counters::Values counted = counters_ ? counters_->read() : Counters::Values();
      for (size_t c = 0; c < counted.size(); ++c) counted[c] -= before[c];
      offset_ = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - started_).count();
      attn::Profiler profiler({.on_span =
                                   [&](attn::Span&& span) {
                                     spans.push_back(std::move(span));
                                     if (trace_) trace_->write(spans.back(), offset_);
                                   },
                               .tasks = trace_ != nullptr});
      const double profiled = timed();
      profiler.stop();
      peak_ = attn::memory_peak();
      threads_ = profiler.threads();
      if (signal_seen()) break;  // a part of a run says nothing
      phase.plain.push_back(plain);
      if (counters_) phase.counted.push_back(counted);
      phase.profiled.push_back(profiled);
      all.insert(all.end(), std::make_move_iterator(spans.begin()), std::make_move_iterator(spans.end()));
    }
    if (phase.profiled.empty()) return false;
    phase.rows = attn::summarize(all, each_layer ? nullptr : std::function(without_number));
    phases_.push_back(std::move(phase));
    return true;
  }

  /// Threads keep their scratch from one phase to the next.
  static int64_t without_scratch() { return attn::memory_in_use() - attn::scratch_in_use(); }
  void infer();
  void write(const attn::models::Loaded& loaded, int64_t before, double weights);
  void train();
  void add_inference_memory(const char* phase, int64_t before, double weights, const attn::models::Model& model,
                            double cache, double formula_of_cache);
  void add_memory(const std::string& phase,
                  const std::vector<std::pair<std::string, std::pair<double, double>>>& parts);
  void print(const Table& table) const { fmt::print("{}", table.in(output)); }
  void report() const;

  StatusLine status_;
  std::unique_ptr<TraceFile> trace_;
  std::unique_ptr<Counters> counters_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  int64_t offset_ = 0;  // nanoseconds from there to the Profiler that collects
  std::vector<std::string> threads_;
  MachinePeaks peaks_;
  std::vector<ProfiledPhase> phases_;
  std::vector<MemoryPart> memory_;
  int64_t peak_ = 0;
};

void Profile::add_memory(const std::string& phase,
                         const std::vector<std::pair<std::string, std::pair<double, double>>>& parts) {
  for (const auto& [part, bytes] : parts) memory_.push_back({phase, part, bytes.first, bytes.second});
}

/// `before`: bytes in use before the model was opened.
void Profile::add_inference_memory(const char* phase, int64_t before, double weights, const attn::models::Model& model,
                                   double cache, double formula_of_cache) {
  const auto scratch = static_cast<double>(attn::scratch_in_use());
  const double activations = static_cast<double>(peak_ - before) - weights - cache - scratch;
  add_memory(phase, {{"weights", {weights, static_cast<double>(model.parameters().bytes())}},
                     {"KV cache and states", {cache, formula_of_cache}},
                     {"scratch", {scratch, std::nan("")}},
                     {"activations", {activations, std::nan("")}}});
}

/// A forward, or reading a prompt and writing after it.
void Profile::infer() {
  const bool any = wants("forward") || wants("prefill") || wants("decode");
  if (!any) return;
  const int64_t before = without_scratch();
  const attn::models::Loaded loaded = open(attn::nn::Purpose::inference);
  const attn::models::Model& model = *loaded.model;
  const attn::models::Config& config = model.config();
  const auto weights = static_cast<double>(without_scratch() - before);
  if (wants("forward")) {
    const Batch batch = batch_of(loaded, length_of(config));
    const auto memory = attn::autograd::Tape().memory();
    const bool is_done = measure("forward", sequences * batch.length, [&] {
      attn::autograd::Tape tape({}, memory);
      model.forward(tape, batch);
    });
    if (is_done) add_inference_memory("forward", before, weights, model, 0, 0);
  }
  if (writes(config) && !config.encoder_layers && (wants("prefill") || wants("decode"))) write(loaded, before, weights);
}

/// Reads a prompt, and writes after it.
void Profile::write(const attn::models::Loaded& loaded, int64_t before, double weights) {
  const attn::models::Model& model = *loaded.model;
  const attn::models::Config& config = model.config();
  if (attn::models::learns_positions(config) && !of_generated->count())
    generated = std::min(generated, std::max<int64_t>(config.context / 2, 1));
  const int64_t length = length_of(config, generated);
  if (length < 1)
    throw UsageError(
        fmt::format("--generate {} leaves no room for a prompt in {} learned positions", generated, config.context));
  const Batch prompt{.tokens = some_tokens(loaded, length), .sequences = 1, .length = length};
  const auto formula = [&](int64_t count) {
    const attn::DType dtype = model.parameters().dtype();
    return static_cast<double>(attn::models::cache_bytes_per_token(config, dtype, kv_cache.of()) * count +
                               attn::models::state_bytes(config, model.parameters().options().precision));
  };
  const int64_t without = without_scratch();
  const auto in_cache = [&] { return static_cast<double>(without_scratch() - without); };
  if (wants("prefill") && !signal_seen()) {
    attn::models::ModelCache cache;
    const auto memory = attn::autograd::Tape().memory();
    const bool is_done = measure("prefill", length, [&] {
      cache = {};
      cache = model.new_cache(1, {}, kv_cache.of());
      attn::autograd::Tape tape({}, memory);
      model.forward(tape, prompt, {.cache = &cache, .last_only = true});
    });
    if (is_done) add_inference_memory("prefill", before, weights, model, in_cache(), formula(length));
  }
  if (!wants("decode") || signal_seen()) return;
  attn::generate::TextCache kept;
  attn::generate::GenerateOptions options{.sampling = {.temperature = 0}, .max_new_tokens = generated};
  options.cache_storage = kv_cache.of();
  options.on_token = [](int64_t) { return !signal_seen(); };
  options.text_cache = &kept;  // of all but the first run, which warms up, the prompt is known
  const auto decode = [&] { attn::generate::generate(model, prompt.tokens, options); };
  if (measure("decode", generated, decode, true))
    add_inference_memory("decode", before, weights, model, in_cache(), formula(kept.cache.length()));
}

/// One update with AdamW.
void Profile::train() {
  const int64_t before = without_scratch();
  attn::models::Loaded loaded = open(attn::nn::Purpose::training);
  attn::models::Model& model = *loaded.model;
  const attn::models::Config& config = model.config();
  if (model.parameters().trained_count() == 0) throw UsageError(directory + " has no parameters that train");
  if (!config.head && !config.classes) {
    say("attn: the model has no head to train, the phase train is left out\n");
    return;
  }
  Batch batch = batch_of(loaded, length_of(config));
  batch.targets = batch.tokens;
  if (config.classes) {
    const bool one = classifies_texts(config);
    batch.targets.assign(static_cast<size_t>(sequences * (one ? 1 : batch.length)), 0);
    if (config.problem_type == attn::models::ProblemType::regression) {
      batch.targets.clear();
      batch.values.assign(static_cast<size_t>(sequences * config.classes), 0);
    }
  }
  const attn::nn::Precision kind = model.parameters().options().precision;
  require_memory({config, kind, sequences, batch.length, false, {}}, false);
  const auto weights = static_cast<double>(without_scratch() - before);
  const OneBatch data(batch);
  attn::train::Trainer trainer(model, data, {}, "");
  const double moments = static_cast<double>(without_scratch() - before) - weights;
  if (!measure("train", sequences * batch.length, [&] { trainer.step(); })) return;
  const double gradients = static_cast<double>(without_scratch() - before) - weights - moments;  // those stay
  const attn::models::TrainingMemory formula = attn::models::training_memory(config, kind, sequences, batch.length);
  const auto scratch = static_cast<double>(attn::scratch_in_use());
  add_memory("train",
             {{"weights", {weights, formula.weights}},
              {"gradients", {gradients, formula.gradients}},
              {"moments", {moments, formula.moments}},
              {"scratch", {scratch, std::nan("")}},
              {"activations",
               {static_cast<double>(peak_ - before) - weights - gradients - moments - scratch, formula.activations}}});
}

void Profile::report() const {
  Table memory{{{"phase", "{:<10}"},
                {"part", "{:<22}"},
                {"measured_megabytes", "{:>14.2f}", "measured, MB"},
                {"formula_megabytes", "{:>14.2f}", "formula, MB"},
                {"difference_percent", "{:>14.1f}", "difference, %"}}};
  for (const MemoryPart& part : memory_)
    memory.rows.push_back({part.phase, part.part, 1e-6 * part.measured, 1e-6 * part.formula,
                           part.formula > 0 ? 100 * (part.measured / part.formula - 1) : std::nan("")});
  Table all = operation_table(phases_.front(), peaks_, rows);
  all.rows.clear();
  for (const ProfiledPhase& phase : phases_)
    for (auto& row : operation_table(phase, peaks_, rows).rows) all.rows.push_back(std::move(row));
  if (output == "csv") return print(all);
  if (output == "json") return fmt::print("{}", indented(profile_json(phases_, peaks_)));
  fmt::print("{}, {} threads; peak {:.0f} GFLOP/s of products, {:.1f} GB/s read from memory\n\n", attn::active_isa(),
             attn::thread_count(), 1e-9 * peaks_.flops, 1e-9 * peaks_.bandwidth);
  print(phase_table(phases_, peaks_));
  if (counters_) {
    fmt::print("\ncounted in one run without the profiler\n\n");
    print(counter_table(phases_));
    if (const std::string missing = counters_->missing(); !missing.empty())
      fmt::print("\nnot counted here: {}\n", missing);
  }
  for (const ProfiledPhase& phase : phases_) {
    fmt::print("\n{}, one run\n\n", phase.name);
    print(operation_table(phase, peaks_, rows));
  }
  fmt::print("\nmemory in use at the peak\n\n");
  print(memory);
}

}  // namespace

void add_profile(CLI::App& app) {
  CLI::App* command = app.add_subcommand("profile", "time and memory of a model by layer and operation");
  auto run = std::make_shared<Profile>();
  command
      ->add_option("directory", run->directory, "a model folder: the output of attn train, or of the Hugging Face hub")
      ->type_name("FOLDER");
  command->add_option("--text", run->text, "a file whose tokens the model reads; none: random tokens")
      ->type_name("FILE")
      ->check(CLI::ExistingFile);
  command
      ->add_option("--phases", run->wanted,
                   "forward, prefill, decode, train: what to run; none: all that the model can do")
      ->delimiter(',')
      ->check(one_of({"forward", "prefill", "decode", "train"}));
  command->add_option("--tokens", run->tokens, "tokens of a sequence and of a prompt")->check(whole(1, 1 << 24));
  run->of_generated =
      command->add_option("--generate", run->generated, "tokens that decode writes")->check(whole(1, 1 << 24));
  command->add_option("--batch", run->sequences, "sequences of forward and train")->check(whole(1, 1 << 20));
  command->add_option("-r,--repeats", run->repeats, "runs with a profiler, and as many without")->check(whole(1, 1000));
  command->add_option("--rows", run->rows, "lines of a table; 0 = all")->check(whole(0, 1 << 20));
  command->add_flag("--counters", run->counts,
                    "count cycles, instructions, cache and branch misses, page faults, context switches");
  command->add_flag("--layers", run->each_layer, "each layer in lines of its own, not all together as block *");
  command->add_option("--trace", run->trace, "write a Chrome trace, which Perfetto and chrome://tracing open")
      ->type_name("FILE");
  command
      ->add_option("--roofline", run->roofline_file,
                   "draw the operations under the machine's limits: a file .svg or .png")
      ->check(CLI::Validator(
          [](const std::string& file) {
            return file.ends_with(".svg") || file.ends_with(".png") ? "" : "'" + file + "' must end in .svg or .png";
          },
          ""))
      ->type_name("FILE");
  command->add_option("--json", run->json, "write the profile, for --compare")->type_name("FILE");
  command->add_option("--compare", run->compared, "print two such profiles side by side; nothing is run")
      ->type_name("FILE FILE")
      ->expected(2)
      ->check(CLI::ExistingFile);
  command->add_option("-o,--output", run->output, "the format")->check(one_of({"text", "md", "csv", "json"}));
  run->kv_cache.add(*command);
  add_model_precision(*command, run->precision);
  command->callback([=] { run->run(); });
}

}  // namespace cli
