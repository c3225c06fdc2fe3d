// Flags of generation, and the texts that they generate on standard output.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attn/cluster.h"
#include "attn/generate_text.h"
#include "model_flags.h"

namespace CLI {
class App;
}

namespace cli {

/// The flags of a text that is generated.
struct GenerationOptions {
  attn::generate::TextOptions text;
  std::optional<std::string> do_sample, early_stopping;
  bool no_cache = false;
  std::vector<int64_t> streaming;  // sink tokens, window
  CacheOption kv_cache;
  int64_t draft_tokens = 0;
  std::string draft;
  void add(CLI::App& command);
  /// Writes what the model makes of `prompt` to standard output, token by token. Ends early at a signal. The
  /// `recorder`, if there is one, keeps the attention of the text.
  attn::generate::GeneratedText stream(const attn::generate::TextGenerator& generator, const std::string& prompt,
                                       bool with_statistics, attn::Recorder* recorder = nullptr) const;
  /// Reads prompts from standard input, line by line, and streams a text for each, the same on all `ranks`.
  void converse(const attn::generate::TextGenerator& generator,
                attn::cluster::Communicator& ranks = attn::cluster::one_rank()) const;

  /// The options of the answers of a conversation.
  attn::generate::TextOptions of_answers() const;

  /// Of texts that are computed together.
  attn::generate::TextOptions of_batch() const;

 private:
  void add_choice(CLI::App& command);
  void add_search(CLI::App& command);
  void add_context(CLI::App& command);
  attn::generate::TextOptions text_options() const;
  mutable std::shared_ptr<const attn::models::Model> draft_model_;
};

/// Prints on standard error how quick a text was.
void say_statistics(int64_t prompt_tokens, const attn::generate::Generated& generated);

}  // namespace cli
