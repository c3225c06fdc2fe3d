// attn info: the machine, and a model in numbers.
#include <fmt/core.h>

#include <fstream>
#include <memory>

#include "common.h"

namespace cli {
namespace {

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

void row(const char* name, const std::string& value) { fmt::print("{:<22}{}\n", name, value); }

void describe_machine() {
  row("processor", processor());
  row("threads", std::to_string(attn::thread_count()));
  std::string isas;
  for (const std::string& name : attn::available_isas())
    isas += (isas.empty() ? "" : ", ") + name + (name == attn::active_isa() ? " (in use)" : "");
  row("instruction sets", isas);
  row("peak, float32", short_number(measured_peak(attn::DType::float32)) + "FLOP/s in large products");
  row("peak, bfloat16", short_number(measured_peak(attn::DType::bfloat16)) + "FLOP/s in large products");
}

void describe_model(const attn::models::Model& model, const std::string& tokens) {
  const attn::models::Config& config = model.config();
  const int64_t kv_heads = config.kv_heads ? config.kv_heads : config.heads;
  row("model", config.model);
  row("parameters", grouped(model.parameters().count()));
  row("shape", fmt::format("{} layers, {} heads, {} key/value heads, width {}, context {}", config.layers, config.heads,
                           kv_heads, config.embed_dim, config.context));
  row("tokens", tokens);
  const double context = static_cast<double>(config.context);
  row("FLOP a token",
      fmt::format("{} forward, {} training, at {} tokens", short_number(model.forward_flops(config.context) / context),
                  short_number(3 * model.forward_flops(config.context) / context), config.context));
  row("weights", short_number(static_cast<double>(model.parameters().count()) * 4) + "B in float32");
  if (config.causal && config.positions != "relative")
    row("cache",
        fmt::format("{} bytes a token, {}B for {} tokens", grouped(model.cache_bytes_per_token()),
                    short_number(static_cast<double>(model.cache_bytes_per_token()) * context), config.context));
  fmt::print("\n{:<44}{:>18}{:>12}\n", "parameter", "shape", "numbers");
  for (const attn::nn::Parameter& parameter : model.parameters().all()) {
    const std::vector<int64_t>& shape = parameter.master.shape();
    fmt::print("{:<44}{:>18}{:>12}\n", parameter.name, attn::to_string(shape.data(), static_cast<int>(shape.size())),
               grouped(parameter.master.count()));
  }
}

struct Info {
  std::string directory;
  ConfigOptions config;
  int64_t vocabulary = 256;

  void run() const {
    describe_machine();
    if (!directory.empty()) {
      const attn::models::Loaded loaded = attn::models::load_model(directory, "last");
      fmt::print("\n");
      row("directory", fmt::format("{}, step {}", directory, loaded.step));
      describe_model(*loaded.model, fmt::format("{} {}", grouped(loaded.tokenizer->size()), loaded.tokenizer->kind()));
    } else if (!config.family.empty() || !config.file.empty()) {
      attn::models::Config shape = config.build("gpt");
      if (!shape.vocab_size) shape.vocab_size = vocabulary;
      fmt::print("\n");
      describe_model(attn::models::Model(shape, attn::nn::Precision::float32), grouped(shape.vocab_size));
    }
  }
};

}  // namespace

void add_info(CLI::App& app) {
  CLI::App* command = app.add_subcommand("info", "the machine, and a model in numbers");
  auto run = std::make_shared<Info>();
  command->add_option("directory", run->directory, "what attn train wrote")->type_name("FOLDER");
  command->add_option("--vocab-size", run->vocabulary, "of a model that is not trained yet")->check(whole(1, 1 << 24));
  run->config.add(*command);
  command->callback([=] { run->run(); });
}

}  // namespace cli
