#include "common.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <iostream>

#include "attn/generate.h"

namespace cli {

// ---------------------------------------------------------------------------------------------------- configurations

std::string flag_of(std::string field) {
  std::replace(field.begin(), field.end(), '_', '-');
  return "--" + field;
}

void ConfigOptions::add(CLI::App& command) {
  std::string names;
  for (const std::string& name : attn::models::families()) names += (names.empty() ? "" : ", ") + name;
  command.add_option("--model", family, "family: " + names)->group("Model");
  command.add_option("--config", file, "JSON file with fields of the model")->group("Model");
  fields.clear();
  for (const std::string& name : attn::models::fields())
    if (name != "model" && name != "vocab_size") fields.emplace_back(name, "");
  for (auto& [name, value] : fields) command.add_option(flag_of(name), value)->group("Model")->type_name("");
}

attn::models::Config ConfigOptions::build(const std::string& default_family) const {
  attn::models::Config config = attn::models::family(family.empty() ? default_family : family);
  if (!file.empty()) attn::models::apply_json(config, attn::io::read_file(file, 1 << 20), file);
  for (const auto& [name, value] : fields)
    if (!value.empty()) attn::models::set_field(config, name, value);
  return config;
}

attn::nn::Precision precision_named(const std::string& name) {
  if (name == "float32") return attn::nn::Precision::float32;
  if (name == "bfloat16") return attn::nn::Precision::bfloat16;
  if (name == "float16") return attn::nn::Precision::float16;
  throw UsageError("--precision must be " + std::string(kPrecisions) + ", not '" + name + "'");
}

void ModelOptions::add(CLI::App& command) {
  command.add_option("directory", directory, "what attn train wrote")->required();
  command.add_option("--checkpoint", which, "best or last")->check(CLI::IsMember({"best", "last"}));
  command.add_option("--precision", precision, kPrecisions);
}

attn::models::Loaded ModelOptions::load() const {
  attn::models::Loaded loaded = attn::models::load_model(directory, which, precision_named(precision));
  for (const std::string& note : loaded.notes) fmt::print(stderr, "attn: {}\n", note);
  return loaded;
}

// --------------------------------------------------------------------------------------------------------- generation

void GenerationOptions::add(CLI::App& command) {
  command.add_option("--tokens", tokens, "at most so many")->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command.add_option("--temperature", temperature, "0 = always the most probable token");
  command.add_option("--top-k", top_k, "keep the k most probable; 0 = all");
  command.add_option("--top-p", top_p, "keep the fewest that reach this probability");
  command.add_option("--min-p", min_p, "keep those of at least this part of the largest probability");
  command.add_option("--repetition-penalty", repetition_penalty, "1 = none");
  command.add_option("--seed", seed, "the same seed gives the same text");
  command.add_option("--stop", stop, "a text that ends the output");
  command.add_flag("--no-cache", no_cache, "compute the whole text again for every token");
}

void GenerationOptions::stream(const attn::models::Loaded& loaded, const std::string& prompt,
                               bool with_statistics) const {
  const std::vector<int64_t> ids = loaded.tokenizer->encode(prompt);
  if (ids.empty()) throw UsageError("the prompt is empty");
  attn::generate::StopFilter filter(stop);
  const auto show = [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  show(prompt);
  attn::generate::GenerateOptions options;
  options.sampling = {temperature, top_k, top_p, min_p, repetition_penalty};
  options.max_tokens = tokens;
  options.seed = seed;
  options.cache = !no_cache;
  const bool words = loaded.tokenizer->kind() == "words";
  options.on_token = [&](int64_t token) {
    show(filter.feed((words ? " " : "") + loaded.tokenizer->decode({&token, 1})));
    return !filter.stopped() && !signal_seen();
  };
  const attn::generate::Generated result = attn::generate::generate(*loaded.model, ids, options);
  show(filter.rest() + "\n");
  const double count = static_cast<double>(result.tokens.size());
  if (with_statistics)
    fmt::print(stderr, "prompt: {} tokens, {:.1f} tokens/s; then {} tokens, {:.1f} tokens/s\n", ids.size(),
               static_cast<double>(ids.size()) / result.prompt_seconds, result.tokens.size(),
               count > 1 ? (count - 1) / result.token_seconds : 0.0);
}

void GenerationOptions::converse(const attn::models::Loaded& loaded) const {
  const bool terminal = isatty(STDIN_FILENO);
  if (terminal) fmt::print(stderr, "Type the beginning of a text; an empty line or Ctrl-D ends.\n");
  std::string line;
  while (!signal_seen()) {
    if (terminal) fmt::print(stderr, "> ");
    if (!std::getline(std::cin, line) || line.empty()) return;
    try {
      stream(loaded, line, false);
    } catch (const attn::Error& error) {  // a character that the model does not know: the next line may do
      fmt::print(stderr, "attn: {}\n", error.what());
    }
  }
}

// ------------------------------------------------------------------------------------------------------------ signals

namespace {

std::atomic<int> seen{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int number) {
  if (seen.exchange(number) != 0) _exit(128 + number);
}

}  // namespace

void catch_signals() {
  for (int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, on_signal);
}

int signal_seen() { return seen.load(); }

// ------------------------------------------------------------------------------------------------------------ numbers

std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  const size_t sign = number < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > 3 + sign;) digits.insert(at -= 3, ",");
  return digits;
}

std::string short_number(double number) {
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  for (; number >= 1000 && unit + 1 < std::size(kUnits); ++unit) number /= 1000;
  return fmt::format("{:.{}f} {}", number, unit == 0 ? 0 : number < 10 ? 2 : 1, kUnits[unit]);
}

std::string clock_time(double seconds) {
  const int64_t whole = static_cast<int64_t>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

double measured_peak(attn::DType dtype) {
  using Shape = std::array<int64_t, 3>;  // M, K, N of layers' own products: x [M, K], weight [N, K]
  double best = 0;
  for (const auto& [M, K, N] : {Shape{768, 512, 768}, Shape{512, 768, 3072}, Shape{1024, 1024, 1024}}) {
    const attn::autograd::Array a(dtype, {M, K}), b(dtype, {K, N}), c(dtype, {M, N});
    const attn::View<2> plain = b.rows(), transposed(b.data(), dtype, {K, N}, {1, K});
    for (const attn::View<2>& weight : {plain, transposed}) {
      double total = 0;
      for (int repeat = 0; repeat < 3 || (total < 0.05 && repeat < 50); ++repeat) {  // the first ones warm up
        const auto start = std::chrono::steady_clock::now();
        attn::ops::matmul(a.rows(), weight, c.rows());
        const double taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        best = std::max(best, 2 * static_cast<double>(M * K * N) / taken);
        total += taken;
      }
    }
  }
  return best;
}

}  // namespace cli
