// models: the generation settings of a model's folder.
//
// ```cpp
// #include "attn/models_generation.h"
// int main() {
//   attn::models::GenerationConfig config;  // models::open() fills it from generation_config.json
//   config.temperature = 0.7;
//   config.max_new_tokens = 100;
// }
// ```
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attn/core_dtype.h"

#pragma GCC visibility push(default)
namespace attn::models {

/// When beam search stops before its texts have reached their length.
enum class EarlyStopping {
  full,      ///< when num_beams texts are finished; true in transformers
  hopeless,  ///< when no running text, scored with its length now, beats the worst finished one; false
  certain    ///< the same, scored with the length that is best for it; never
};
constexpr auto enum_names(EarlyStopping) { return std::to_array<std::string_view>({"true", "false", "never"}); }

/// A field of generation_config.json that changes the output and that generate() does not support.
struct UnsupportedField {
  enum When { always, with_sampling, with_beams };  ///< when the field has an effect
  std::string field = {};                           ///< its name
  std::string reason = {};                          ///< for an error: file, field and value
  When when = always;
};

/// The fields of transformers' generation_config.json that generate() supports; absent fields are absent in the file.
/// In folders without that file they come from config.json.
struct GenerationConfig {
  std::optional<bool> do_sample = {};  ///< false: greedy
  std::optional<double> temperature = {}, top_p = {}, min_p = {}, repetition_penalty = {};
  std::optional<int64_t> top_k = {};
  std::optional<int64_t> max_new_tokens = {};
  std::optional<int64_t> max_length = {};  ///< of prompt (or decoder start tokens) and new tokens together
  std::optional<int64_t> min_new_tokens = {}, min_length = {};  ///< no text ends earlier; counted in the same way
  bool forced_eos = false;                           ///< forced_eos_token_id: a text of full length ends with eos
  std::vector<int64_t> suppress_tokens = {};         ///< tokens that are never generated
  std::vector<int64_t> begin_suppress_tokens = {};   ///< tokens that are not generated first
  std::optional<int64_t> no_repeat_ngram_size = {};  ///< no n-gram of this length occurs twice
  std::optional<int64_t> num_beams = {};             ///< width of the beam search
  std::optional<double> length_penalty = {};         ///< of beams
  std::optional<EarlyStopping> early_stopping = {};  ///< of beams
  /// Added to the logit of the last token of a run that it would complete; -infinity forbids the run.
  std::vector<std::pair<std::vector<int64_t>, double>> sequence_bias = {};
  std::vector<UnsupportedField> unsupported = {};
};

}  // namespace attn::models
#pragma GCC visibility pop
