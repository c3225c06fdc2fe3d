// The rules of a text and the loop around the model.
#include "attn/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "generate/loop.h"
#include "models/shape.h"

namespace attn::generate {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void check_beams(Checker& checker, const GenerateOptions& options) {
  const BeamOptions& beam = options.beam;
  checker.require(beam.num_beams >= 1 && beam.num_beams <= 1024,
                  [&] { return "num_beams is " + std::to_string(beam.num_beams) + ", must be from 1 to 1024"; });
  checker.require(std::isfinite(beam.length_penalty),
                  [&] { return "length_penalty is " + std::to_string(beam.length_penalty) + ", must be finite"; });
  if (beam.num_beams == 1) return;
  checker.require(options.sampling.temperature == 0, [&] {
    return "temperature is " + std::to_string(options.sampling.temperature) +
           ", must be 0 with beams, which search for the most probable text";
  });
  checker.require(!options.recorder, "beams do not support a recorder");
  checker.require(!options.top_logprobs, "beams do not support top_logprobs");
  checker.require(!options.inputs_embeds || options.cache, "beams of a model that reads embeddings need the cache");
  checker.require(!beam.forced_eos || !options.eos_token_ids.empty(), "forced_eos needs a token that ends a text");
}

void check_streaming(Checker& checker, const models::Config& config, const GenerateOptions& options) {
  models::check_streaming(checker, config, options.streaming);
  if (options.streaming.window == 0) return;
  checker.require(options.cache, "streaming needs the cache");
  checker.require(options.context == 0, [&] {
    return "context is " + std::to_string(options.context) +
           ", must be 0 with streaming, whose window limits what the model sees";
  });
  checker.require(!options.recorder || options.recorder->options().kind != AttentionKind::self,
                  "streaming does not support a recorder of self-attention: keys that it needs are evicted");
}

void check_storage(Checker& checker, const GenerateOptions& options) {
  if (options.cache_storage == KVStorage::exact) return;
  checker.require(options.cache, "cache_storage needs the cache");
  checker.require(!options.recorder || options.recorder->options().kind != AttentionKind::self,
                  "a recorder of self-attention needs the exact cache_storage");
}

void check_text_cache(Checker& checker, bool answers, const GenerateOptions& options) {
  checker.require(!options.text_cache || (options.cache && !answers && options.beam.num_beams == 1 &&
                                          options.streaming.window == 0 && !options.recorder),
                  "text_cache needs the cache, and supports no encoder, beams, streaming or recorder");
}

void check_speculation(Checker& checker, const models::Config& config, const GenerateOptions& options) {
  const Speculation& speculation = options.speculation;
  checker.require(speculation.tokens >= 0 && speculation.tokens <= 64, [&] {
    return "speculation.tokens is " + std::to_string(speculation.tokens) + ", must be from 0 to 64";
  });
  if (speculation.tokens == 0) return;
  checker.require(speculation.ngram >= 1 && speculation.ngram <= 64, [&] {
    return "speculation.ngram is " + std::to_string(speculation.ngram) + ", must be from 1 to 64";
  });
  checker.require(options.cache && options.beam.num_beams == 1 && options.streaming.window == 0 && !options.recorder,
                  "speculation needs the cache, and supports no beams, streaming or recorder");
  const auto require_attention = [&](const char* whose, const models::Config& of) {
    for (int64_t n = 0; n < of.layers; ++n)
      if (!checker.require(models::has_attention(of, n), [&] {
            return "speculation needs attention in all layers, and layer " + std::to_string(n) + " of " + whose +
                   " has a state";
          }))
        return;
  };
  require_attention("the model", config);
  if (!speculation.draft) return;
  const models::Config& draft = speculation.draft->config();
  require_attention("the draft model", draft);
  checker.require(draft.causal && draft.head && draft.classes == 0 && draft.encoder_layers == 0 &&
                      config.encoder_layers == 0 && !draft.takes_embeddings,
                  "a draft model must be one that continues texts, without an encoder, and so must the model");
  checker.require(draft.vocab_size == config.vocab_size, [&] {
    return "the draft model has a vocabulary of " + std::to_string(draft.vocab_size) + " tokens, must have the " +
           std::to_string(config.vocab_size) + " of the model";
  });
}

}  // namespace

void check(const models::Model& model, std::span<const int64_t> prompt, const GenerateOptions& options) {
  const models::Config& config = model.config();
  model.parameters();
  Checker checker("generate");
  if (config.takes_embeddings)
    checker.require(prompt.empty() && options.inputs_embeds,
                    "the model reads embeddings: inputs_embeds must be given and no prompt");
  else checker.require(!prompt.empty(), "the prompt must have at least one token");
  const bool answers = config.encoder_layers > 0;
  require_ids(checker, "prompt", prompt,
              answers && config.source_vocab_size ? config.source_vocab_size : config.vocab_size);
  const auto require_natural = [&](const char* name, int64_t value) {
    checker.require(value >= 0,
                    [&] { return std::string(name) + " is " + std::to_string(value) + ", must not be negative"; });
  };
  require_natural("max_new_tokens", options.max_new_tokens);
  checker.require(config.causal, "only a causal model can continue a text");
  checker.require(options.decoder_start_token_ids.empty() != answers,
                  answers ? "a model with an encoder begins its answer with start, which is not given"
                          : "start is given, but the model has no encoder");
  require_ids(checker, "start", options.decoder_start_token_ids, config.vocab_size);
  require_ids(checker, "suppress_tokens", options.suppress_tokens, config.vocab_size);
  require_ids(checker, "begin_suppress_tokens", options.begin_suppress_tokens, config.vocab_size);
  require_natural("min_new_tokens", options.min_new_tokens);
  require_natural("min_length", options.min_length);
  require_natural("no_repeat_ngram_size", options.no_repeat_ngram_size);
  check_beams(checker, options);
  for (const auto& [run, bias] : options.sequence_bias) {
    checker.require(!run.empty() && !std::isnan(bias),
                    "a run that has a bias must have at least one token, and its bias must be a number");
    require_ids(checker, "biases", run, config.vocab_size);
  }
  for (const models::UnsupportedField& said : options.unsupported)
    checker.require((said.when == models::UnsupportedField::with_sampling && options.sampling.temperature == 0) ||
                        (said.when == models::UnsupportedField::with_beams && options.beam.num_beams == 1),
                    said.reason);
  const std::set<int64_t> never(options.suppress_tokens.begin(), options.suppress_tokens.end());
  checker.require(static_cast<int64_t>(never.size()) < config.vocab_size, "all tokens are suppressed");
  require_natural("max_length", options.max_length);
  checker.require(config.head, "the model has no language-model head");
  checker.require(config.classes == 0, "the model classifies texts and does not continue them");
  require_natural("context", options.context);
  checker.require(!models::learns_positions(config) || options.context <= config.context, [&] {
    return "context is " + std::to_string(options.context) + ", but the model has learned " +
           std::to_string(config.context) + " positions";
  });
  check_streaming(checker, config, options);
  check_storage(checker, options);
  const int64_t top = options.top_logprobs.value_or(0);
  checker.require(top >= 0 && top <= 1000,
                  [&] { return "top_logprobs is " + std::to_string(top) + ", must be from 0 to 1000"; });
  check_text_cache(checker, answers, options);
  checker.require(!options.sequence_ranks ||
                      (options.cache && !options.recorder && !options.text_cache && options.beam.num_beams == 1 &&
                       options.streaming.window == 0 && options.speculation.tokens == 0),
                  "ranks share the tokens of a text with a cache, without beams, a text_cache, streaming, speculation "
                  "and a recorder");
  check_speculation(checker, config, options);
  checker.done();
  check(options.sampling);
}

bool is_end(int64_t token, const GenerateOptions& options) {
  return std::find(options.eos_token_ids.begin(), options.eos_token_ids.end(), token) != options.eos_token_ids.end();
}

std::vector<int64_t> forbidden(std::span<const int64_t> text, int64_t given, const GenerateOptions& options) {
  std::vector<int64_t> ids = options.suppress_tokens;
  const auto add = [&](const std::vector<int64_t>& more) { ids.insert(ids.end(), more.begin(), more.end()); };
  const auto length = static_cast<int64_t>(text.size());
  if (length == given) add(options.begin_suppress_tokens);
  if (length - given < options.min_new_tokens || length < options.min_length) add(options.eos_token_ids);
  const int64_t before = options.no_repeat_ngram_size - 1;  // what the last tokens of a run follow
  if (before < 0) return ids;
  for (int64_t at = 0; at + before < length; ++at)
    if (std::equal(text.begin() + at, text.begin() + at + before, text.end() - before))
      ids.push_back(text[at + before]);
  return ids;
}

void add_biases(std::span<const int64_t> text, const GenerateOptions& options,
                const std::function<void(int64_t, double)>& add) {
  for (const auto& [run, bias] : options.sequence_bias) {
    const size_t before = run.size() - 1;
    if (before <= text.size() && std::equal(run.begin(), run.end() - 1, text.end() - static_cast<int64_t>(before)))
      add(run.back(), bias);
  }
}

namespace {

TokenLogprobs logprobs_of(std::span<const float> logits, int64_t token, int64_t count) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  const double log_sum = largest + std::log(sum);
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + std::min<int64_t>(count, std::ssize(order));
  std::partial_sort(order.begin(), end, order.end(),
                    [&](int64_t a, int64_t b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); });
  TokenLogprobs found{.logprob = logits[token] - log_sum};
  for (auto id = order.begin(); id != end; ++id) found.top.emplace_back(*id, logits[*id] - log_sum);
  return found;
}

}  // namespace

std::vector<TokenLogprobs> Chooser::take_logprobs(size_t count) {
  logprobs_.resize(std::min(count, logprobs_.size()));
  return std::move(logprobs_);
}

int64_t Chooser::next(std::span<float> logits, std::span<const int64_t> text, int64_t first) {
  const ProfileSpan span("sample");
  if (options_.top_logprobs) raw_.assign(logits.begin(), logits.end());
  add_biases(text, options_, [&](int64_t id, double bias) { logits[id] += static_cast<float>(bias); });
  for (const int64_t id : forbidden(text, given_, options_)) logits[id] = -std::numeric_limits<float>::infinity();
  const int64_t token = sample(logits, text.subspan(first), options_.sampling, random_, workspace_);
  if (options_.top_logprobs) logprobs_.push_back(logprobs_of(raw_, token, *options_.top_logprobs));
  return token;
}

int64_t context_of(const models::Model& model, const GenerateOptions& options) {
  if (options.streaming.window > 0) return std::numeric_limits<int64_t>::max() - 1;
  return options.context ? options.context : model.config().context;
}

int64_t steady_length(const models::Config& config) {
  const bool by_length =
      config.positions == models::PositionEncoding::rope &&
      (config.rope_scaling == nn::RopeScaling::dynamic || config.rope_scaling == nn::RopeScaling::longrope);
  if (!by_length) return std::numeric_limits<int64_t>::max() - 1;
  return config.rope_context ? config.rope_context : config.context;
}

// ------------------------------------------------------------------------------------------------- texts and the model

Sequences::Sequences(const models::Model& model, std::span<const int64_t> source, const GenerateOptions& options)
    : model_(model),
      cache_(options.sequence_ranks ? model.new_shared_cache(*options.sequence_ranks, options.cache_storage)
                                    : model.new_cache(1, options.streaming, options.cache_storage)),
      source_(source),
      rows_(options.inputs_embeds),
      recorder_(options.recorder),
      cached_(options.cache),
      same_bits_(options.batch_invariant || options.speculation.tokens > 0) {}

std::vector<float> Sequences::next(std::span<const std::vector<int64_t>> texts, int64_t first) {
  models::Batch batch;
  batch.sequences = static_cast<int64_t>(texts.size());
  for (const std::vector<int64_t>& text : texts)
    batch.tokens.insert(batch.tokens.end(), text.begin() + first + known(), text.end());
  if (known() == 0)
    for (size_t n = 0; n < texts.size(); ++n) batch.source.insert(batch.source.end(), source_.begin(), source_.end());
  if (known() == 0) batch.inputs_embeds = rows_;
  batch.source_length = batch.inputs_embeds ? batch.inputs_embeds.shape()[1] : static_cast<int64_t>(source_.size());
  return logits(batch, true);
}

std::vector<float> Sequences::next(int64_t last, std::span<const int64_t> draft) {
  models::Batch batch{.tokens = {last}, .sequences = 1};
  batch.tokens.insert(batch.tokens.end(), draft.begin(), draft.end());
  return logits(batch, false);
}

std::vector<float> Sequences::logits(models::Batch& batch, bool last_only) {
  batch.length = static_cast<int64_t>(batch.tokens.size()) / batch.sequences;
  const ProfileSpan span(known() == 0 ? "prefill" : "decode");
  autograd::Tape tape({.batch_invariant = same_bits_}, memory_);
  const autograd::Value logits = model_.forward(
      tape, batch, {.cache = cached_ ? &cache_ : nullptr, .last_only = last_only, .recorder = recorder_});
  const Array& rows = logits.data();
  std::vector<float> values(static_cast<size_t>(rows.count()));
  ops::convert(rows.flat(), View<2>(values.data(), {1, rows.count()}));
  return values;
}

int64_t Sequences::resume(TextCache& from, std::span<const int64_t> text) {
  const auto known = static_cast<int64_t>(from.tokens.size());
  int64_t common = 0;  // the last token is computed in any case: its logits are wanted
  while (common < known && common + 1 < std::ssize(text) && from.tokens[common] == text[common]) ++common;
  if (common == 0 || from.cache.storage() != cache_.storage()) return 0;
  models::ModelCache cache = std::exchange(from, {}).cache;
  try {
    cache.truncate(common);
  } catch (const Error&) {  // a state cannot go back
    return 0;
  }
  cache_ = std::move(cache);
  return common;
}

void Sequences::keep(TextCache& to, std::span<const int64_t> text) {
  to.tokens.assign(text.begin(), text.begin() + cache_.length());
  to.cache = std::move(cache_);
}

void Sequences::select(std::span<const int64_t> texts) {
  if (cached_) cache_.select(texts);
}

GenerateOptions options_of(const models::Loaded& loaded, GenerateOptions options) {
  const models::GenerationConfig& said = loaded.generation_config;
  const bool answers = loaded.model->config().encoder_layers > 0;
  options.eos_token_ids = loaded.eos_token_ids;
  options.decoder_start_token_ids = loaded.decoder_start_token_ids;
  options.suppress_tokens = said.suppress_tokens;
  options.begin_suppress_tokens = said.begin_suppress_tokens;
  options.no_repeat_ngram_size = said.no_repeat_ngram_size.value_or(0);
  options.sequence_bias = said.sequence_bias;
  options.unsupported = said.unsupported;
  options.beam.num_beams = said.num_beams.value_or(1);
  options.beam.length_penalty = said.length_penalty.value_or(1);
  options.beam.forced_eos = said.forced_eos;
  options.beam.early_stopping = said.early_stopping.value_or(EarlyStopping::hopeless);
  if (said.min_new_tokens) (answers ? options.min_length : options.min_new_tokens) = *said.min_new_tokens + answers;
  else options.min_length = said.min_length.value_or(0);
  SamplingOptions& sampling = options.sampling;
  if (said.do_sample.value_or(false)) sampling.temperature = 1;
  sampling.temperature = said.temperature.value_or(sampling.temperature);
  if (!said.do_sample.value_or(!answers)) sampling.temperature = 0;
  sampling.top_k = said.top_k.value_or(sampling.top_k);
  sampling.top_p = said.top_p.value_or(sampling.top_p);
  sampling.min_p = said.min_p.value_or(sampling.min_p);
  sampling.repetition_penalty = said.repetition_penalty.value_or(sampling.repetition_penalty);
  if (!said.max_new_tokens && !said.max_length) return options;
  const int64_t ending = said.forced_eos ? 1 : 0;  // the last token is the one that ends it, and not shown
  // What is forced after the first token of an answer is new there.
  const int64_t longest = !said.max_new_tokens ? *said.max_length : answers ? 1 + *said.max_new_tokens : 0;
  options.max_new_tokens = said.max_new_tokens.value_or(longest) - ending;
  options.max_length = longest ? longest - ending : 0;
  return options;
}

namespace {

/// A text while it is generated.
class Text {
 public:
  Text(const models::Model& model, std::span<const int64_t> begin, std::span<const int64_t> source,
       const GenerateOptions& options)
      : options_(options),
        context_(context_of(model, options)),
        steady_length_(steady_length(model.config())),
        text_(begin.begin(), begin.end()),
        chooser_(std::ssize(begin), options),
        sequence_(model, source, options) {
    if (options.speculation.tokens > 0) drafter_.emplace(options);
    if (options.text_cache) result_.reused = sequence_.resume(*options.text_cache, text_);
  }

  Generated run() {
    start_ = std::chrono::steady_clock::now();
    while (!ended_ && room() > 0 && fits()) step();
    result_.token_seconds = seconds_since(start_);
    result_.forgotten = first_;
    result_.logprobs = chooser_.take_logprobs(result_.tokens.size());
    if (options_.text_cache && first_ == 0) sequence_.keep(*options_.text_cache, text_);
    return std::move(result_);
  }

 private:
  int64_t length() const { return std::ssize(text_); }

  /// Tokens that may still come.
  int64_t room() const {
    const int64_t new_ones = options_.max_new_tokens - std::ssize(result_.tokens);
    return options_.max_length ? std::min(new_ones, options_.max_length - length()) : new_ones;
  }

  /// False at the end of an answer's context; other texts forget their older half.
  bool fits() {
    if (length() - first_ <= context_) return true;
    if (!options_.decoder_start_token_ids.empty()) return false;
    first_ = length() - std::max<int64_t>(context_ / 2, 1);
    sequence_.cut(0);
    return true;
  }

  /// One call of the model: a token, and one more for each draft token that it accepts.
  void step() {
    const int64_t seen = length() - first_;
    std::vector<int64_t> draft;
    if (drafter_ && sequence_.known() + 1 == seen)
      draft = drafter_->next(std::span(text_).subspan(first_),
                             std::min({room() - 1, context_ - seen, steady_length_ - seen}));
    std::vector<float> logits =
        draft.empty() ? sequence_.next({&text_, 1}, first_) : sequence_.next(text_.back(), draft);
    const size_t V = logits.size() / (draft.size() + 1);
    size_t accepted = 0;
    while (take(std::span(logits).subspan(accepted * V, V)) && accepted < draft.size() &&
           text_.back() == draft[accepted])
      ++accepted;
    if (draft.empty()) return;
    sequence_.cut(seen + static_cast<int64_t>(accepted));
    drafter_->judge(std::ssize(draft), static_cast<int64_t>(accepted));
    result_.drafted += std::ssize(draft);
    result_.accepted += static_cast<int64_t>(accepted);
  }

  /// The next token; false if there is none, or no other may follow.
  bool take(std::span<float> logits) {
    const int64_t token = chooser_.next(logits, text_, first_);
    if (result_.tokens.empty()) {
      result_.prompt_seconds = seconds_since(start_);
      start_ = std::chrono::steady_clock::now();
    }
    ended_ = is_end(token, options_);
    if (ended_) return false;
    text_.push_back(token);
    result_.tokens.push_back(token);
    ended_ = options_.on_token && !options_.on_token(token);
    return !ended_;
  }

  const GenerateOptions& options_;
  int64_t context_, steady_length_;
  std::vector<int64_t> text_;
  int64_t first_ = 0;  // of the tokens that the model sees
  Chooser chooser_;
  Sequences sequence_;
  std::optional<Drafter> drafter_;
  Generated result_;
  bool ended_ = false;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

Generated generate(const models::Model& model, std::span<const int64_t> prompt, const GenerateOptions& options) {
  check(model, prompt, options);
  const auto run = [&] {
    if (options.beam.num_beams > 1) return search(model, prompt, options);
    const bool answers = !options.decoder_start_token_ids.empty();
    return Text(model, answers ? options.decoder_start_token_ids : prompt,
                answers ? prompt : std::span<const int64_t>(), options)
        .run();
  };
  const auto ranks_or_one = [](cluster::Communicator* ranks) -> cluster::Communicator& {
    return ranks ? *ranks : cluster::one_rank();
  };
  Generated result;
  cluster::on_all_ranks(ranks_or_one(model.parameters().tensor_ranks()), "generate", [&] {
    cluster::on_all_ranks(ranks_or_one(options.sequence_ranks), "generate", [&] { result = run(); });
  });
  return result;
}

}  // namespace attn::generate
