// generate: samples tokens from a model, one at a time or by beam search.
//
// ```cpp
// #include "attn/generate.h"
// using namespace attn;
// int main() {
//   models::Config config = models::family("gpt");
//   config.vocab_size = 50;
//   const models::Model model(config, nn::Precision::float32, 1);
//   const std::vector<int64_t> prompt = {1, 2, 3};
//   const auto text = generate::generate(model, prompt, {.sampling = {.temperature = 0}, .max_new_tokens = 8});
//   return text.tokens.size() == 8 ? 0 : 1;
// }
// ```
//
// For a model from a folder start from options_of(loaded), which has its eos tokens and generation_config.json.
#pragma once

#include <functional>

#include "attn/models.h"

#pragma GCC visibility push(default)
namespace attn::generate {

/// Applied in this order: repetition penalty, temperature, top-k, top-p, min-p; then a token is drawn.
struct SamplingOptions {
  double temperature = 1;  ///< 0 = greedy: the most probable token, the first of equals
  int64_t top_k = 0;       ///< keep the k most probable tokens; 0 = all
  double top_p = 1;        ///< keep the fewest with total probability p (Holtzman et al. 2019, arXiv:1904.09751)
  double min_p = 0;        ///< keep those with at least min_p times the largest probability
  /// Divides positive and multiplies negative logits of seen tokens (Keskar et al. 2019).
  double repetition_penalty = 1;
};

/// Draws one token from logits [V]; the repetition penalty applies to the ids `seen`. Throws Error for a NaN logit, for
/// an id outside [0, V) and for options out of range.
int64_t sample(std::span<const float> logits, std::span<const int64_t> seen, const SamplingOptions& options,
               Random& random);

using models::EarlyStopping;

/// Beam search, as in transformers, without sampling. The best text has the largest sum of log probabilities /
/// length^length_penalty; the length counts the new tokens, eos included.
struct BeamOptions {
  int64_t num_beams = 1;      ///< 1 = no beam search
  double length_penalty = 1;  ///< above 0 prefers longer texts, below 0 shorter ones
  EarlyStopping early_stopping = EarlyStopping::hopeless;
  bool forced_eos = false;             ///< a text of full length is scored with eos at its end
  std::function<bool()> on_step = {};  ///< called after each step; return false to stop
};

/// What a model has computed of a text, for a later call whose prompt begins with the same tokens, as the next turn of
/// a conversation. It belongs to one model. A default-constructed one is empty.
struct TextCache {
  std::vector<int64_t> tokens = {};
  models::ModelCache cache = {};
};

/// Speculative decoding (Leviathan et al. 2022, arXiv:2211.17192): the model computes several draft tokens in one step
/// and accepts those that it would have chosen itself. The text is that of batch_invariant without drafts, at any
/// temperature. Requires a model with attention in all layers.
struct Speculation {
  int64_t tokens = 0;  ///< draft tokens of one step, at most; 0 = none. There are fewer after drafts that were rejected
  /// Without a draft model, the draft is what followed the last n tokens where they occurred before in the text, for
  /// the largest n from 1 to this one (transformers' max_matching_ngram_size).
  int64_t ngram = 3;
  /// A smaller model of the same vocabulary, which writes the drafts; borrowed.
  const models::Model* draft = nullptr;
};

struct GenerateOptions {
  SamplingOptions sampling = {};
  BeamOptions beam = {};  ///< requires temperature 0
  int64_t max_new_tokens = 256;
  int64_t max_length = 0;      ///< of prompt (or decoder start tokens) and new tokens together; 0 = no limit
  int64_t min_new_tokens = 0;  ///< no text ends with fewer new tokens
  int64_t min_length = 0;      ///< the same, counted as max_length
  int64_t context = 0;         ///< tokens that the model sees; 0 = its own context, the limit of learned positions
  uint64_t seed = 0;
  std::vector<int64_t> eos_token_ids = {};  ///< tokens that end the text; not in the result
  /// Of a model with an encoder: first tokens of the output; not in the result.
  std::vector<int64_t> decoder_start_token_ids = {};
  /// [1, L, C]: input of an encoder with takes_embeddings, in place of a prompt.
  Array inputs_embeds = {};
  std::vector<int64_t> suppress_tokens = {};        ///< tokens that are never generated
  std::vector<int64_t> begin_suppress_tokens = {};  ///< tokens that are not generated first
  int64_t no_repeat_ngram_size = 0;                 ///< n > 0: no n-gram occurs twice in the whole text
  /// Runs of tokens and a bias: it is added to the logit of a run's last token if the text ends with the tokens before
  /// it, before all other steps; in beam search to the log probability. -infinity forbids the run.
  std::vector<std::pair<std::vector<int64_t>, double>> sequence_bias = {};
  /// Fields of the model's folder that are not supported. generate() throws Error for those that have an effect with
  /// these options; remove a field to ignore it.
  std::vector<models::UnsupportedField> unsupported = {};
  /// False: compute the whole text again for every token, as a slow check.
  bool cache = true;
  /// With a window: the cache is a streaming one, models::Model::new_cache(). The text then has no limit, and no part
  /// of it is computed again. Requires the cache, and no `context` or recorder of self-attention.
  Streaming streaming = {};
  /// int8: keys and values take a quarter of the memory in float32, half in 16 bits, and tokens may differ from those
  /// of an exact cache. Requires the cache, and no recorder of self-attention.
  KVStorage cache_storage = KVStorage::exact;
  /// Ranks that share the tokens of the text, see Model::new_shared_cache(). All ranks call generate() alike, and get
  /// the same tokens. Without beams, a text_cache, streaming, speculation and a recorder. Borrowed; null: none.
  cluster::Communicator* sequence_ranks = nullptr;
  /// Read and replaced, where the whole text fits into the context. Requires `cache`, and no encoder, beams, streaming
  /// or recorder.
  TextCache* text_cache = nullptr;
  Speculation speculation = {};  ///< requires `cache`, and no beams, streaming or recorder
  /// With a value, from 0 to 1000: Generated::logprobs has the log probability of each new token, and those of so many
  /// most probable ones. Not for beams.
  std::optional<int64_t> top_logprobs = {};
  bool batch_invariant = false;  ///< logits with and without an exact cache have the same bits
  Recorder* recorder = nullptr;  ///< records the attention of prompt and output
  /// Return false to stop; after a beam search called for the best text.
  std::function<bool(int64_t token)> on_token = {};
};

/// `otherwise` with the settings of the model's folder: eos and decoder start tokens, and generation_config.json (see
/// models::GenerationConfig). do_sample false means temperature 0. A model with an encoder has temperature 0 unless
/// do_sample is true, as in transformers. max_new_tokens overrides max_length, min_new_tokens overrides min_length.
GenerateOptions options_of(const models::Loaded& loaded, GenerateOptions otherwise = {});

/// The natural logarithms of probabilities that the model gives, before biases, penalties, temperature and all else
/// that GenerateOptions changes.
struct TokenLogprobs {
  double logprob = 0;                                ///< of the token that was chosen
  std::vector<std::pair<int64_t, double>> top = {};  ///< the most probable tokens, the first of equals first
};

struct Generated {
  std::vector<int64_t> tokens = {};          ///< new tokens, without the prompt
  std::vector<TokenLogprobs> logprobs = {};  ///< of each of them, if GenerateOptions::top_logprobs has a value
  double score = 0;                          ///< of a beam search: sum of log probabilities / length^length_penalty
  /// First tokens of the text that no longer fitted into the context at its end; 0 with a streaming cache.
  int64_t forgotten = 0;
  int64_t reused = 0;                 ///< tokens of the prompt that text_cache knew
  int64_t drafted = 0, accepted = 0;  ///< draft tokens of `speculation`, and those of them that the text has
  double prompt_seconds = 0;
  double token_seconds = 0;  ///< of all tokens after the first
};

/// Throws the Error that generate() would throw for these arguments.
void check(const models::Model& model, std::span<const int64_t> prompt, const GenerateOptions& options);

/// Continues `prompt`, which has at least one token. If the text outgrows `context`, its oldest half is dropped from
/// the model's input. A model with an encoder reads the prompt, or options.inputs_embeds, with the encoder and writes a
/// new text of at most `context` tokens. With a streaming cache neither holds: nothing is dropped, texts may be longer.
/// Throws Error for a context beyond learned positions; other positions have no limit.
Generated generate(const models::Model& model, std::span<const int64_t> prompt, const GenerateOptions& options);

}  // namespace attn::generate
#pragma GCC visibility pop
