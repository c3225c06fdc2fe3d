// models: what the folder of a model says of how its texts are drawn and where they end.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#pragma GCC visibility push(default)
namespace attn::models {

/// generation_config.json of transformers, as far as generate() can do what it says; nothing where it says nothing.
struct GenerationDefaults {
  std::optional<bool> do_sample;  ///< false: always the most probable token
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
  std::optional<int64_t> max_new_tokens;
  std::optional<int64_t> max_length;  ///< of the whole text, the prompt or what an answer begins with among it
  bool forced_end = false;            ///< the last token of a text that reaches its length is the one that ends it
  std::vector<int64_t> suppressed;    ///< tokens that are never drawn
};

}  // namespace attn::models
#pragma GCC visibility pop
