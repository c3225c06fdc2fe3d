// attn bench: tokens a second, in the rows that llama-bench made customary: pp512 reads a prompt of 512 tokens, tg128
// writes 128 tokens one by one, "@ d1024" with 1024 tokens in the cache already; "train 4 x 64" is one update, and
// "encode 4 x 64" one forward of what writes nothing.
#include <fmt/core.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>

#include "attn/ops.h"
#include "attn/peaks.h"
#include "attn/train.h"
#include "commands.h"
#include "config_flags.h"
#include "memory.h"
#include "model_flags.h"
#include "numbers.h"
#include "one_batch.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "signals.h"
#include "table.h"

namespace cli {
namespace {

struct Row {
  std::string test;
  double flops = 0;  // a token
  std::vector<double> rates = {};

  double mean() const { return std::accumulate(rates.begin(), rates.end(), 0.0) / static_cast<double>(rates.size()); }
  double deviation() const {
    double squares = 0;
    for (double rate : rates) squares += (rate - mean()) * (rate - mean());
    return rates.size() > 1 ? std::sqrt(squares / static_cast<double>(rates.size() - 1)) : 0;
  }
};

struct Bench {
  std::string directory, precision = "float32", output = "md";
  ConfigOptions config;
  int64_t vocabulary = 50257, repeats = 5;
  std::vector<int64_t> prompts = {512}, generations = {128}, depths = {0}, trainings, batches = {1};
  CacheOption kv_cache;
  CLI::Option *of_prompts = nullptr, *of_generations = nullptr, *of_trainings = nullptr;  ///< which of them are given
  std::shared_ptr<StatusLine> status = std::make_shared<StatusLine>();

  template <class Work>
  void measure(Row& row, int64_t tokens, const Work& work) const {
    for (int64_t repeat = -1; repeat < repeats && !signal_seen(); ++repeat) {  // the first one warms up
      if (status->is_due()) status->show(fmt::format("{}: {} of {}", row.test, repeat + 1, repeats));
      const double seconds = work();
      if (repeat >= 0) row.rates.push_back(static_cast<double>(tokens) / seconds);
    }
  }

  static double seconds_of(const std::function<void()>& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  /// `count` tokens after `depth` that are cached, so many at once: all of a prompt, one where a text is written.
  Row infer(const char* name, const attn::models::Model& model, int64_t count, int64_t depth, int64_t at_once) const {
    // A prompt has logits of its last token alone, what is written has those of each.
    Row row{name + std::to_string(count) + (depth ? " @ d" + std::to_string(depth) : ""),
            attn::models::forward_flops(model.config(), count, depth, at_once > 1) / static_cast<double>(count)};
    const auto memory = attn::autograd::Tape().memory();
    attn::models::ModelCache cache = model.new_cache(1, {}, kv_cache.of());
    const auto feed = [&](int64_t tokens) {
      attn::autograd::Tape tape({}, memory);
      model.forward(tape, random_batch(model.config(), 1, tokens, 1), {.cache = &cache, .last_only = true});
    };
    if (depth) feed(depth);
    bool has_states = false;
    for (int64_t layer = 0; layer < model.config().layers; ++layer)
      has_states = has_states || !attn::models::has_attention(model.config(), layer);
    const auto go_back = [&] {  // to `depth` tokens, which a state cannot
      cache.truncate(has_states ? 0 : depth);
      if (has_states && depth) feed(depth);
    };
    measure(row, count, [&] {
      go_back();
      return seconds_of([&] {
        for (int64_t n = 0; n < count; n += at_once) feed(at_once);
      });
    });
    return row;
  }

  /// Sequences side by side through a model that writes nothing; the tokens of all of them count.
  Row encode(const attn::models::Model& model, int64_t sequences, int64_t length) const {
    Row row{fmt::format("encode {} x {}", sequences, length),
            attn::models::forward_flops(model.config(), length) / static_cast<double>(length)};
    const auto memory = attn::autograd::Tape().memory();
    const attn::models::Batch batch = random_batch(model.config(), sequences, length, 1);
    measure(row, sequences * length, [&] {
      return seconds_of([&] {
        attn::autograd::Tape tape({}, memory);
        model.forward(tape, batch);
      });
    });
    return row;
  }

  Row train(attn::models::Model& model, int64_t sequences, int64_t length, bool recompute) const {
    const OneBatch data(random_batch(model.config(), sequences, length, 3));
    attn::train::TrainerOptions options;
    options.recompute = recompute;
    attn::train::Trainer trainer(model, data, options, "");
    Row row{fmt::format("train {} x {}{}", sequences, length, recompute ? ", recomputed" : ""),
            3 * attn::models::forward_flops(model.config(), length) / static_cast<double>(length)};
    measure(row, sequences * length, [&] { return trainer.step().seconds; });
    return row;
  }

  void print(const std::vector<Row>& rows, const attn::models::Model& model, double peak) const {
    const std::string name =
        fmt::format("{} {}", model.config().model, short_number(static_cast<double>(model.parameters().count())));
    const auto size = static_cast<double>(model.parameters().bytes());
    const bool is_less = precision == "float32" && float32_precision() != "full";
    const std::string arithmetic = precision + (is_less ? " " + float32_precision() : "");
    Table table{{{"model", "{}", "", "{}"},
                 {"parameters", "", "", "{}"},
                 {"", "{:>}", "size"},
                 {"precision", "{}", "", "{}"},
                 {"isa", "{}", "", "{}"},
                 {"threads", "{:>}"},
                 {"test", "{}"},
                 {"", "{:>}", "t/s"},
                 {"avg_ts", "", "", "{:.2f}"},
                 {"stddev_ts", "", "", "{:.2f}"},
                 {"samples_ts", "", "", {}},
                 {"", "{:>.1f} %", "of peak"},
                 {"peak_share", "", "", "{:.4f}"}}};
    for (const Row& row : rows) {
      const double share = row.mean() * row.flops / peak;
      table.rows.push_back({name, model.parameters().count(), short_number(size) + "B", arithmetic, attn::active_isa(),
                            attn::thread_count(), row.test, fmt::format("{:.2f} ± {:.2f}", row.mean(), row.deviation()),
                            row.mean(), row.deviation(), row.rates, 100 * share, share});
    }
    fmt::print("{}", table.in(output));
  }

  /// Of the largest batch; without training, of the weights and a little more.
  void require_training_memory(const attn::models::Config& shape, attn::nn::Precision kind) const {
    const auto most = [](const std::vector<int64_t>& all) {
      return all.empty() ? 1 : std::max<int64_t>(*std::max_element(all.begin(), all.end()), 1);
    };
    if (!trainings.empty()) require_memory({shape, kind, most(batches), most(trainings), false, {}}, false);
    const double weights = attn::models::training_memory(shape, kind, 1, 1).weights;
    if (weights > attn::models::available_memory())
      throw UsageError(fmt::format("the weights need {}B, but only {}B are available", short_number(weights),
                                   short_number(attn::models::available_memory())));
  }

  /// Where positions are learned, what is named must fit, and of what is not as much as fits is measured.
  void fit_positions(const attn::models::Config& shape) {
    if (!attn::models::learns_positions(shape)) return;
    const int64_t depth = writes(shape) ? *std::max_element(depths.begin(), depths.end()) : 0;
    for (auto [lengths, option, behind] : {std::tuple(&prompts, of_prompts, depth),
                                           {&generations, of_generations, depth},
                                           {&trainings, of_trainings, int64_t{0}}})
      for (int64_t& length : *lengths) {
        if (length + behind <= shape.context) continue;
        if (option->count() || behind >= shape.context)
          throw UsageError(fmt::format("{} is {}{}, but the model has learned {} positions", option->get_name(), length,
                                       behind ? fmt::format(" after {} tokens", behind) : "", shape.context));
        length = shape.context - behind;
      }
  }

  /// What writes is measured as it writes, what does not as it reads.
  std::vector<Row> infer_all(const attn::models::Model& model) const {
    const attn::models::Config& shape = model.config();
    std::vector<Row> rows;
    if (writes(shape)) {
      for (int64_t depth : depths) {
        for (int64_t length : prompts)
          if (length > 0) rows.push_back(infer("pp", model, length, depth, length));
        for (int64_t count : generations)
          if (count > 0) rows.push_back(infer("tg", model, count, depth, 1));
      }
      return rows;
    }
    if (of_generations->count() && generations != std::vector<int64_t>{0})
      say("attn: the model does not generate text, --generations is ignored\n");
    for (int64_t length : prompts)
      for (int64_t sequences : batches)
        if (length > 0) rows.push_back(encode(model, sequences, length));
    return rows;
  }

  void run() {
    catch_signals();
    attn::models::OpenOptions options{
        .purpose = trainings.empty() ? attn::nn::Purpose::inference : attn::nn::Purpose::training, .which = "last"};
    set_precision(options, precision);
    const attn::nn::Precision kind = options.precision;
    if (options.quantization && directory.empty())
      throw UsageError("--precision " + precision + " needs a model folder, whose weights it quantizes");
    std::unique_ptr<attn::models::Model> model;
    attn::models::Config shape;
    if (!directory.empty()) {
      attn::models::Loaded loaded = attn::models::open(directory, options);
      model = std::move(loaded.model);
      shape = model->config();
      fit_positions(shape);
    } else {
      shape = config.build("gpt");
      if (!shape.vocab_size) shape.vocab_size = vocabulary;
      int64_t longest = shape.context;
      for (const auto* lengths : {&prompts, &generations, &trainings})
        for (int64_t length : *lengths)
          for (int64_t depth : depths) longest = std::max(longest, length + depth);
      shape.context = longest;
      require_training_memory(shape, kind);
      model = std::make_unique<attn::models::Model>(shape, kind);
    }
    if (shape.encoder_layers || shape.takes_embeddings)
      throw UsageError(
          "attn bench measures models that continue texts and encoders of texts, not models with an encoder and a "
          "decoder or models that read embeddings");
    const auto none = [](const std::vector<int64_t>& all) {
      return std::count(all.begin(), all.end(), 0) == std::ssize(all);
    };
    if (none(prompts) && (none(generations) || !writes(shape)) && trainings.empty())
      throw UsageError(
          "there is nothing to measure: give --prompts, --generations for a model that generates text, or --train");
    const auto measure_peak = [dtype = model->parameters().dtype()] {
      return 1e9 * attn::peaks::measure_products(dtype, attn::ops::matmul_precision());
    };
    if (trainings.empty()) model->parameters().pack();
    double peak = measure_peak();
    std::vector<Row> rows = infer_all(*model);
    for (int64_t length : trainings)
      for (int64_t sequences : batches)
        for (bool recompute : {false, true}) rows.push_back(train(*model, sequences, length, recompute));
    peak = std::max(peak, measure_peak());  // the machine may have been slower before
    std::erase_if(rows, [](const Row& row) { return row.rates.empty(); });
    status->end();
    print(rows, *model, peak);
    if (signal_seen()) say("attn: stopped; what is printed is a part\n");
  }
};

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "measure tokens per second: prompts, generation, encoding, training");
  auto run = std::make_shared<Bench>();
  command
      ->add_option(
          "directory", run->directory,
          "a model folder: the output of attn train, or of the Hugging Face hub; none: random weights of --model")
      ->type_name("FOLDER");
  const auto list = [&](const char* names, std::vector<int64_t>& values, const char* description, int64_t lowest) {
    return command->add_option(names, values, description)
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(whole(lowest, 1 << 24));
  };
  run->of_prompts = list("-p,--prompts", run->prompts, "prompt lengths, such as 128,512; 0 = none", 0);
  run->of_generations = list("-n,--generations", run->generations, "numbers of tokens to generate; 0 = none", 0);
  list("-d,--depths", run->depths, "tokens in the KV cache before each measurement", 0);
  run->kv_cache.add(*command);
  run->of_trainings = list("--train", run->trainings, "lengths of sequences to train on", 1);
  list("--batch", run->batches, "sequences per batch, for training and encoders", 1);
  command->add_option("-r,--repeats", run->repeats, "timed repeats, after one warm-up")->check(whole(1, 1000));
  command->add_option("-o,--output", run->output, "the format")->check(one_of({"md", "csv", "json"}));
  add_model_precision(*command, run->precision);
  command->add_option("--vocab-size", run->vocabulary, "vocabulary size of random weights")->check(whole(1, 1 << 24));
  run->config.add(*command);
  command->callback([=] { run->run(); });
}

}  // namespace cli
