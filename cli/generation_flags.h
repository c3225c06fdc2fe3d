// Flags of generation, and the texts that they generate on standard output.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attn/generate.h"

namespace CLI {
class App;
}

namespace cli {

/// How text becomes one token after another on standard output.
struct GenerationOptions {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;  ///< absent: as the model's folder says
  std::optional<int64_t> top_k, tokens, min_new_tokens, no_repeat_ngram_size, beams;
  std::optional<double> length_penalty;
  std::optional<std::string> do_sample, early_stopping;
  int64_t context = 0;
  uint64_t seed = 0;
  bool no_cache = false;
  std::vector<std::string> stop;
  void add(CLI::App& command);
  attn::generate::GenerateOptions for_model(const attn::models::Loaded& loaded) const;
  /// What a text was made of.
  struct Streamed {
    std::vector<int64_t> prompt, text;  ///< what an encoder read; prompt and continuation, or the answer with its start
  };
  /// Streams a continuation of `prompt`. Ends early at a stop text or a signal. The text is what a recorder, if one is
  /// given, has seen, and perhaps one token more.
  Streamed stream(const attn::models::Loaded& loaded, const std::string& prompt, bool with_statistics,
                  attn::view::Recorder* recorder = nullptr) const;
  /// Reads prompts line by line and answers each.
  void converse(const attn::models::Loaded& loaded) const;
};

}  // namespace cli
