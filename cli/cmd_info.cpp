// attn info: the machine, and a model in numbers.
#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <map>
#include <memory>

#include "attn/models.h"
#include "attn/peaks.h"
#include "commands.h"
#include "config_flags.h"
#include "job.h"
#include "memory.h"
#include "numbers.h"
#include "options.h"
#include "output.h"
#include "table.h"

namespace cli {
namespace {

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

void row(const char* name, const std::string& value) { show(fmt::format("{:<24}{}\n", name, value)); }

/// Multiply-adds a second, counted as two, of the forward over a few heads: the quickest of 50 ms.
double attention_speed(const std::string& isa, attn::DType dtype) {
  constexpr int64_t kTokens = 512, kDepth = 64;
  const int64_t heads = 4 * attn::thread_count();
  const attn::Shape<4> size = {1, heads, kTokens, kDepth};
  const attn::Buffer memory(4 * heads * kTokens * kDepth * attn::size_of(dtype), true);
  const auto tensor = [&](int64_t n) {
    return attn::View<4>(static_cast<char*>(memory.data()) + n * memory.bytes() / 4, dtype, size);
  };
  attn::set_isa(isa);
  double best = 0, total = 0;
  for (int repeat = 0; repeat < 3 || (total < 0.05 && repeat < 100); ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    attn::attention(tensor(0), tensor(1), tensor(2), tensor(3));
    const double taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, 4 * static_cast<double>(heads * kTokens * kTokens * kDepth) / taken);
    total += taken;
  }
  return best;
}

/// What each instruction set reaches here, beside the choice, which follows the processor's maker and features alone.
void describe_instruction_sets() {
  const std::string chosen = attn::active_isa();
  for (const std::string& isa : attn::available_isas())
    row(("attention, " + isa).c_str(), short_number(attention_speed(isa, attn::DType::float32)) +
                                           "FLOP/s in float32, " +
                                           short_number(attention_speed(isa, attn::DType::bfloat16)) +
                                           "FLOP/s in bfloat16" + (isa == chosen ? " (in use)" : ""));
  attn::set_isa(chosen);
  if (const std::string missing = attn::missing_isa(); !missing.empty()) row("not available", missing);
}

void describe_machine() {
  row("processor", processor());
  row("threads", std::to_string(attn::thread_count()));
  describe_instruction_sets();
  row("float32 precision", float32_precision());
  for (const attn::DType dtype : {attn::DType::float32, attn::DType::bfloat16}) {
    const double peak = 1e9 * attn::peaks::measure_products(dtype, attn::ops::matmul_precision());
    row(fmt::format("peak, {}", attn::name_of(dtype)).c_str(), short_number(peak) + "FLOP/s of products");
  }
}

std::string bytes(double count) { return short_number(count) + "B"; }

bool is_of_hub(const attn::models::Config& config) {
  const std::vector<std::string> names = attn::models::hub_families();
  return std::find(names.begin(), names.end(), config.model) != names.end();
}

/// Without the number of the block: "blocks.*.attention.qkv.weight".
std::string pattern_of(const std::string& name) {
  for (const std::string before : {"blocks.", "encoder."})
    if (name.starts_with(before)) return before + "*" + name.substr(name.find('.', before.size()));
  return name;
}

/// One line for the same parameter of all blocks, where they have it in one shape.
void list_parameters(const attn::models::Config& config) {
  struct Line {
    std::string name, shape;
    int64_t count = 0, copies = 0;
  };
  std::vector<Line> lines;
  std::map<std::string, size_t> line_of;
  for (const attn::models::ParameterShape& parameter : attn::models::parameter_shapes(config)) {
    const std::string name = pattern_of(parameter.name);
    const std::string shape = attn::to_string(parameter.shape.data(), static_cast<int>(parameter.shape.size()));
    const auto [place, is_new] = line_of.emplace(name + shape, lines.size());
    if (is_new) lines.push_back({name, shape, parameter.count()});
    ++lines[place->second].copies;
  }
  Table table{{{"parameter", "{:<40}"}, {"shape", "{:>20}"}, {"times", "{:>8}"}, {"numbers", "{:>24}"}}};
  for (const Line& line : lines)
    table.rows.push_back({line.name, line.shape, line.copies, grouped(line.count * line.copies)});
  fmt::print("\n{}", table.text());
}

/// Those of each layer; of a pruned model all that are left.
std::string heads_of(const attn::models::Config& config) {
  if (config.kept_heads.empty())
    return fmt::format("{} heads, {} key/value heads", config.heads, config.kv_heads ? config.kv_heads : config.heads);
  int64_t left = 0, all = 0;
  for (const attn::models::AttentionLayer& layer : attn::models::attention_layers(config)) {
    left += layer.heads;
    all += config.heads;
  }
  return fmt::format("{} of {} heads", left, all);
}

/// From the configuration alone: it takes no longer for a large model than for a small one. `training` is in float32,
/// without recomputation.
void describe_model(const attn::models::Config& config, const std::string& tokens, const TrainingShape& training) {
  using attn::nn::Precision;
  const attn::models::ParameterCounts counts = attn::models::count_parameters(config);
  row("model", config.model);
  row("shape", fmt::format("{} layers, {}, width {}, context {}", config.layers, heads_of(config), config.embed_dim,
                           config.context));
  if (!config.kept_heads.empty())
    for (const attn::models::AttentionLayer& layer : attn::models::attention_layers(config))
      row(("  " + layer.name).c_str(),
          fmt::format("{} of {} heads: {}", layer.heads, config.heads, fmt::join(layer.kept, ", ")));
  row("tokens", tokens);
  row("parameters", grouped(counts.total()));
  for (const auto& [part, count] : {std::pair("  embedding", counts.embedding),
                                    {"  attention", counts.attention},
                                    {"  feed-forward", counts.feed_forward},
                                    {"  norms", counts.norms},
                                    {"  head", counts.head}})
    row(part, grouped(count));
  const double context = static_cast<double>(config.context), total = static_cast<double>(counts.total());
  const double flops = attn::models::forward_flops(config, config.context) / context;
  row("FLOP a token", fmt::format("{} forward, {} training, at {} tokens", short_number(flops), short_number(3 * flops),
                                  config.context));
  row("weights", fmt::format("{} in float32, {} in bfloat16", bytes(4 * total), bytes(2 * total)));
  if (config.causal) {
    const double each = static_cast<double>(attn::models::cache_bytes_per_token(config, attn::DType::float32));
    const double rounded =
        static_cast<double>(attn::models::cache_bytes_per_token(config, attn::DType::float32, attn::KVStorage::int8));
    if (each > 0)
      row("cache",
          fmt::format("{} a token, {} for {} tokens in float32, half of it in bfloat16, {} with --kv-cache int8",
                      bytes(each), bytes(each * context), config.context, bytes(rounded * context)));
    if (const int64_t states = attn::models::state_bytes(config, Precision::float32))
      row("states", fmt::format("{} a text of any length", bytes(static_cast<double>(states))));
  }
  const auto memory = [&](Precision precision, bool recompute) {
    TrainingShape other = training;
    other.precision = precision;
    other.recompute = recompute;
    return memory_of(other);
  };
  const attn::cluster::GridShape& grid = training.ranks;
  const int ranks = grid.data * grid.sequence * grid.tensor;
  for (const auto& [name, precision] :
       {std::pair("float32", Precision::float32), std::pair("bfloat16", Precision::bfloat16)})
    row(fmt::format("training, {}", name).c_str(),
        fmt::format("{}; {} with --recompute (batches of {}{})", bytes(memory(precision, false).total()),
                    bytes(memory(precision, true).total()), training.batch,
                    ranks > 1 ? fmt::format(", each of {} ranks", ranks) : ""));
  row("  of that, float32", describe(memory(Precision::float32, false)));
  row("  with --recompute", describe(memory(Precision::float32, true)));
  list_parameters(config);
}

struct Info {
  std::string directory;
  ConfigOptions config;
  int64_t vocabulary = 256, batch = 12;
  Parallel parallel;

  /// All that can be wrong is found before the machine is measured.
  void run() const {
    if (!directory.empty()) {
      const attn::models::Config shape = attn::models::read_config(directory);
      const bool of_hub = is_of_hub(shape);
      const auto tokenizer = of_hub ? attn::text::find_tokenizer(directory) : attn::text::open_tokenizer(directory);
      const std::optional<int64_t> step = attn::models::Checkpoints(directory).last_step();
      const std::string where = directory + (step ? fmt::format(", step {}", *step) : of_hub ? "" : ", no checkpoint");
      describe(shape,
               tokenizer ? fmt::format("{} {}", grouped(tokenizer->vocab_size()), tokenizer->kind())
                         : fmt::format("{}, no tokenizer", grouped(shape.vocab_size)),
               where);
    } else if (!config.family.empty() || !config.file.empty()) {
      attn::models::Config shape = config.build("gpt");
      if (!shape.vocab_size) shape.vocab_size = vocabulary;
      describe(shape, grouped(shape.vocab_size), "");
    } else {
      describe_machine();
    }
  }

 private:
  void describe(const attn::models::Config& shape, const std::string& tokens, const std::string& where) const {
    attn::models::check(shape);
    attn::models::check_tensor_ranks(shape, parallel.shape().tensor);
    attn::models::check_sequence_ranks(shape, parallel.shape().sequence);
    const TrainingShape training = {.config = shape,
                                    .batch = batch,
                                    .length = shape.context,
                                    .ranks = parallel.shape(),
                                    .schedule = parallel.schedule};
    memory_of(training);  // throws where the ranks cannot have the schedule
    describe_machine();
    fmt::print("\n");
    if (!where.empty()) row("directory", where);
    describe_model(shape, tokens, training);
  }
};

}  // namespace

void add_info(CLI::App& app) {
  CLI::App* command = app.add_subcommand("info", "print the machine's instruction sets, and a model's sizes and costs");
  auto run = std::make_shared<Info>();
  command
      ->add_option("directory", run->directory,
                   "a model folder: the output of attn train, or a folder of the Hugging Face hub")
      ->type_name("FOLDER");
  command->add_option("--vocab-size", run->vocabulary, "of a model that is not trained yet")->check(whole(1, 1 << 24));
  command->add_option("--batch", run->batch, "sequences a batch, for the memory of a training")
      ->check(whole(1, 1 << 20));
  run->parallel.add_data(*command);
  run->parallel.add_sequence(*command);
  run->parallel.add_schedule(*command);
  run->parallel.add_tensor(*command);
  run->config.add(*command);
  command->callback([=] { run->run(); });
}

}  // namespace cli
