// Flags that name a model's folder, the model that they open, and what a message says about the model and its context.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attn/models.h"

namespace CLI {
class App;
}

namespace cli {

/// A model directory and which checkpoint of it.
struct ModelOptions {
  std::string directory, which = "best", precision = "float32", adapter;
  void add(CLI::App& command);
  /// Prints on standard error which damaged files were passed over.
  /// `packed`: for work that needs no gradients.
  /// Ranks that share the layers of the model each load their part of it.
  attn::models::Loaded load(bool packed = true, attn::cluster::Communicator* tensor_ranks = nullptr) const;
};

/// True for a model that continues texts.
bool writes(const attn::models::Config& config);
/// What attn does with a model, as a sentence ends: "it fills gaps: attn fill, attn embed".
std::string what_fits(const attn::models::Config& config);

/// --context: how many tokens of a text the model reads; 0 = as many as in training.
struct ContextOption {
  int64_t tokens = 0;
  /// `seen` says which tokens they are.
  void add(CLI::App& command, const std::string& seen = "tokens of a text that the model sees, the first");
  /// Throws UsageError for more tokens than the model has learned positions.
  int64_t of(const attn::models::Config& config) const;
  /// How a message about a text that is too long ends: "" where no larger --context is possible.
  static std::string larger(const attn::models::Config& config);
  /// Says how many of the texts were truncated to this number of tokens, if any, and ends with `larger`.
  static void say_truncated(int64_t truncated, int64_t texts, int64_t length, const std::string& larger);
  /// The reason of an error about a longer text: its tokens, the limit, and the ways out.
  std::string too_long(int64_t count, const attn::models::Config& config) const;
};

/// --kv-cache: how keys and values are stored.
struct CacheOption {
  std::string storage = "exact";
  void add(CLI::App& command);
  attn::KVStorage of() const;
};

/// The label of each token in pictures.
std::vector<std::string> token_labels(const attn::text::Tokenizer& tokenizer, const std::vector<int64_t>& ids);

}  // namespace cli
