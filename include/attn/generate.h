// generate: from logits to tokens, one at a time.
#pragma once

#include <functional>

#include "attn/models.h"

#pragma GCC visibility push(default)
namespace attn::generate {

/// The chain, in this order: repetition penalty, temperature, top-k, top-p, min-p, draw.
struct SamplingOptions {
  double temperature = 1;  ///< 0 = always the most probable token, the first of equals
  int64_t top_k = 0;       ///< keep the k most probable; 0 = all
  double top_p = 1;        ///< keep the fewest whose probabilities reach p (Holtzman et al. 2019, arXiv:1904.09751)
  double min_p = 0;        ///< keep those of at least min_p times the largest probability
  double repetition_penalty = 1;  ///< seen tokens: positive logits divided, negative multiplied (Keskar et al. 2019)
};

/// One token from logits [V]; `seen` are the ids, all in [0, V), that the penalty applies to. Throws Error for a logit
/// that is NaN, for any other id and for options out of range.
int64_t sample(std::span<const float> logits, std::span<const int64_t> seen, const SamplingOptions& options,
               Random& random);

/// When a search of beams ends before its texts have reached their length.
enum class EarlyStopping {
  full,      ///< as soon as there are as many finished texts as beams
  hopeless,  ///< once no running text, scored as if it ended here, is better than the worst of these
  certain    ///< the same, scored with the length that helps it most
};

/// Several texts at a time: of all that continue them by one token the most probable go on (transformers' beam search,
/// without drawing). The best is the one with the largest sum of log probabilities / length^length_penalty, where the
/// length is of what is new, the token that ends it among it.
struct BeamOptions {
  int64_t beams = 1;          ///< 1 = no search: one token after the other
  double length_penalty = 1;  ///< above 0 for longer texts, below for shorter
  EarlyStopping early_stopping = EarlyStopping::hopeless;
  bool forced_end = false;             ///< a text that reaches its length is scored with the end behind it
  std::function<bool()> on_step = {};  ///< heard after each step; false ends the search
};

struct GenerateOptions {
  SamplingOptions sampling = {};
  BeamOptions beam = {};  ///< with temperature 0
  int64_t max_tokens = 256;
  int64_t max_length = 0;  ///< of the whole text, the prompt or `start` among it; 0 = any
  int64_t min_tokens = 0;  ///< no text ends before it has so many new ones
  int64_t min_length = 0;  ///< the same, counted as max_length
  int64_t context = 0;  ///< the longest text that the model is shown; 0 = its own context. Learned positions end there
  uint64_t seed = 0;
  std::vector<int64_t> ends = {};              ///< tokens that end the text; not among the result
  std::vector<int64_t> start = {};             ///< with an encoder: what an answer begins with; not among it
  autograd::Array rows = {};                   ///< [1, L, C]: what an encoder of rows reads in place of a prompt
  std::vector<int64_t> suppressed = {};        ///< tokens that are never drawn
  std::vector<int64_t> suppressed_first = {};  ///< tokens that are not drawn first
  int64_t no_repeat = 0;                       ///< n > 0: no n tokens in a row occur twice in the whole text
  /// Added to the logit of a run's last token where the tokens before it stand at the end of the text, before anything
  /// else is done with logits; with beams to its log probability. -infinity forbids the run.
  std::vector<std::pair<std::vector<int64_t>, double>> biases = {};
  /// What the model's folder asks for and is not done: generate() throws Error with all that counts for these options.
  /// Whoever decides otherwise removes it.
  std::vector<models::Unserved> unserved = {};
  bool cache = true;                                 ///< false: the whole text again for every token, the slow check
  bool same_bits = false;                            ///< logits with and without the cache are equal to the bit
  view::Recorder* recorder = nullptr;                ///< keeps the attention of prompt and answer
  std::function<bool(int64_t token)> on_token = {};  ///< false ends the text; of beams, heard when all is known
};

/// `otherwise` with what the model's folder says instead: ends and start, and what its generation_config.json has (see
/// models::GenerationDefaults). do_sample false is temperature 0; so is a model with an encoder unless the file says
/// do_sample true, as transformers has it. max_new_tokens stands above max_length, min_new_tokens above min_length.
GenerateOptions options_of(const models::Loaded& loaded, GenerateOptions otherwise = {});

struct Generated {
  std::vector<int64_t> tokens;  ///< without the prompt
  double score = 0;             ///< of beams: the sum of log probabilities / length^length_penalty
  int64_t forgotten = 0;        ///< tokens of the text at its beginning that the model no longer saw at its end
  double prompt_seconds = 0;
  double token_seconds = 0;  ///< of all tokens after the first
};

/// Throws the Error that generate() throws before it computes anything.
void check(const models::Model& model, std::span<const int64_t> prompt, const GenerateOptions& options);

/// Continues `prompt`, at least one token. A text that outgrows `context` forgets its oldest half and goes on. A model
/// with an encoder answers instead: the encoder reads the prompt, or the rows of the options where it reads rows, and
/// the answer ends at `context` tokens. Throws Error for a context beyond learned positions; every other kind of
/// position has no end.
Generated generate(const models::Model& model, std::span<const int64_t> prompt, const GenerateOptions& options);

/// Ends a streamed text at the first of the stop texts, which is not shown: what may be its beginning is held back.
class StopFilter {
 public:
  /// Throws Error for a stop text without a character.
  explicit StopFilter(std::vector<std::string> stops);
  /// The part that may be shown now.
  std::string feed(std::string_view piece);
  /// What was held back, once there is no more.
  std::string rest();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace attn::generate
#pragma GCC visibility pop
