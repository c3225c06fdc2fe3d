// models: what the folder of a model says of how its texts are drawn and where they end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attn/core_dtype.h"

#pragma GCC visibility push(default)
namespace attn::models {

/// A field of the file that generate() does not do, and that changes what is written.
struct Unserved {
  enum When { always, drawing, beams };  ///< how texts must be made for it to count: with a temperature above 0, ...
  std::string field;                     ///< its name
  std::string reason;                    ///< for an error: file, field and value
  When when = always;
};

/// generation_config.json of transformers, as far as generate() can do what it says; nothing where it says nothing. In
/// folders without one config.json says the same.
struct GenerationDefaults {
  std::optional<bool> do_sample;  ///< false: always the most probable token
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
  std::optional<int64_t> max_new_tokens;
  std::optional<int64_t> max_length;  ///< of the whole text, the prompt or what an answer begins with among it
  std::optional<int64_t> min_new_tokens, min_length;  ///< no text ends before it has so many, counted likewise
  bool forced_end = false;                ///< the last token of a text that reaches its length is the one that ends it
  std::vector<int64_t> suppressed;        ///< tokens that are never drawn
  std::vector<int64_t> suppressed_first;  ///< tokens that do not come first
  std::optional<int64_t> no_repeat;       ///< no run of so many tokens occurs twice
  std::optional<int64_t> beams;           ///< texts that are searched at a time
  std::optional<double> length_penalty;   ///< of beams
  std::optional<std::string> early_stopping;  ///< of beams: "true", "false" or "never"
  /// What is added to the logit of the last token of a run, where it would complete it; -infinity forbids it.
  std::vector<std::pair<std::vector<int64_t>, double>> biases;
  std::vector<Unserved> unserved;
};

}  // namespace attn::models
#pragma GCC visibility pop
