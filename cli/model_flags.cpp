#include "model_flags.h"

#include "attn/core_names.h"
#include "commands.h"
#include "config_flags.h"
#include "options.h"
#include "output.h"
#include "progress.h"

namespace cli {

void ModelOptions::add(CLI::App& command) {
  command
      .add_option("directory", directory,
                  "a model: the output folder of attn train, a folder of the Hugging Face hub, or a GGUF file")
      ->required()
      ->type_name("FOLDER");
  command.add_option("--checkpoint", which, "which checkpoint of the training")->check(one_of({"best", "last"}));
  command.add_option("--adapter", adapter, "a LoRA folder of PEFT for this folder of the hub")->type_name("FOLDER");
  add_model_precision(command, precision);
}

attn::models::Loaded ModelOptions::load(bool packed, attn::cluster::Communicator* tensor_ranks) const {
  Loading loading;
  attn::models::OpenOptions options{.tensor_ranks = tensor_ranks,
                                    .which = which,
                                    .packed = packed,
                                    .adapter = adapter,
                                    .on_progress = loading.listener()};
  set_precision(options, precision);
  attn::models::Loaded loaded = attn::models::open_with_tokenizer(directory, options);
  for (const std::string& note : loaded.notes) say("attn: {}\n", note);
  return loaded;
}

bool writes(const attn::models::Config& config) { return config.causal && config.head && !config.classes; }

std::string what_fits(const attn::models::Config& config) {
  if (config.encoder_layers) return "it answers texts: use attn generate";
  if (config.classes) return "it classifies: use attn classify";
  if (writes(config)) return "it continues texts: use attn generate";
  return config.head ? "it fills gaps: use attn fill or attn embed" : "it makes vectors: use attn embed";
}

void ContextOption::add(CLI::App& command, const std::string& seen) {
  command
      .add_option("--context", tokens, seen + ", more than in training only without learned positions; 0 = as trained")
      ->check(whole(0, 1 << 24));
}

namespace {

/// Of what a model reads, which with an encoder may have a context of its own.
int64_t trained_context(const attn::models::Config& config) {
  return config.encoder_layers && config.source_context ? config.source_context : config.context;
}

}  // namespace

std::string ContextOption::larger(const attn::models::Config& config) {
  return attn::models::learns_positions(config) ? "" : "; a larger --context takes more";
}

void ContextOption::say_truncated(int64_t truncated, int64_t texts, int64_t length, const std::string& larger) {
  if (truncated) say("attn: {} of {} texts were cut to {} tokens{}\n", truncated, texts, length, larger);
}

int64_t ContextOption::of(const attn::models::Config& config) const {
  const int64_t own = trained_context(config);
  if (tokens > own && attn::models::learns_positions(config))
    throw UsageError(fmt::format("--context is {}, but the model has learned {} positions", tokens, own));
  return tokens ? tokens : own;
}

std::string ContextOption::too_long(int64_t count, const attn::models::Config& config) const {
  const int64_t own = trained_context(config);
  return fmt::format("the text has {} tokens, the model's context is {}: --context {} takes the first of them, {}",
                     count, own, own,
                     attn::models::learns_positions(config) ? "all are possible only without learned positions"
                                                            : fmt::format("--context {} all", count));
}

void CacheOption::add(CLI::App& command) {
  command
      .add_option("--kv-cache", storage,
                  "how the KV cache stores keys and values: int8 takes about a quarter of the memory and rounds them")
      ->check(one_of(attn::names_of<attn::KVStorage>()));
}

attn::KVStorage CacheOption::of() const { return *attn::from_name<attn::KVStorage>(storage); }

std::vector<std::string> token_labels(const attn::text::Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  std::vector<std::string> labels;  // what is beyond the tokenizer begins an answer
  for (const int64_t id : ids) labels.push_back(id < tokenizer.vocab_size() ? tokenizer.label(id) : "<start>");
  return labels;
}

}  // namespace cli
