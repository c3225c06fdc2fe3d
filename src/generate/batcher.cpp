// Many texts with one cache: who enters, what one step computes, and what becomes of the tokens.
#include "attn/generate_batch.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <list>
#include <numeric>

#include "core/numbers.h"
#include "generate/loop.h"

namespace attn::generate {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kKept = 64;

int64_t pages_for(int64_t tokens) { return div_up(tokens, KVCacheConfig().page_size); }

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

int64_t common_prefix(std::span<const int64_t> a, std::span<const int64_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

void check_options(const models::Model& model, const BatcherOptions& options) {
  const models::Config& config = model.config();
  Checker checker("Batcher");
  const auto require_positive = [&](const char* name, int64_t value, int64_t least) {
    checker.require(value >= least && value <= (int64_t{1} << 40), [&] {
      return std::string(name) + " is " + std::to_string(value) + ", must be from " + std::to_string(least) +
             " to 2^40";
    });
  };
  require_positive("max_requests", options.max_requests, 1);
  require_positive("max_step_tokens", options.max_step_tokens, 1);
  require_positive("max_cache_tokens", options.max_cache_tokens, 0);
  checker.require(config.causal && config.head && config.classes == 0, "the model does not continue texts");
  checker.require(config.encoder_layers == 0 && !config.takes_embeddings,
                  "a model with an encoder, or that reads embeddings, is not supported");
  for (int64_t n = 0; n < config.layers; ++n)
    if (!checker.require(models::has_attention(config, n), [&] {
          return "layer " + std::to_string(n) + " has no attention, which all layers must have";
        }))
      break;
  checker.done();
}

}  // namespace

/// A request's text while it is generated.
struct RequestedText {
  RequestedText(int64_t request_number, std::vector<int64_t> prompt, GenerateOptions given, int64_t context)
      : number(request_number),
        options(std::move(given)),
        tokens(std::move(prompt)),
        longest(std::min(context + 1, std::ssize(tokens) + options.max_new_tokens)),
        chooser(std::ssize(tokens), options) {
    if (options.max_length) longest = std::min(longest, options.max_length);
    if (longest <= std::ssize(tokens)) end = FinishReason::length;
  }

  /// KV pages for all tokens but the last, which ends the text.
  int64_t pages() const { return pages_for(longest - 1); }

  int64_t number;
  GenerateOptions options;
  std::vector<int64_t> tokens;
  int64_t longest;
  Chooser chooser;
  int64_t place = -1;         // in the cache
  bool has_own_page = false;  // the last page that is partly filled is not shared
  Generated generated = {};
  std::optional<FinishReason> end = {};
  std::string error = {};
  Clock::time_point added = Clock::now(), first_token = {};
};

/// A text that has ended, whose keys and values a later one may begin with.
struct KeptText {
  std::vector<int64_t> tokens;  // those that are cached
  int64_t place, used;          // used: the greatest is the last
};

struct Batcher::State {
  State(const models::Model& of, const BatcherOptions& given)
      : model(of),
        options(given),
        context(std::min(of.config().context, steady_length(of.config()))),
        cache(of.new_cache(1, {}, given.cache_storage)) {
    if (options.max_cache_tokens == 0) {
      const bool fits = !__builtin_mul_overflow(options.max_requests, context, &options.max_cache_tokens);
      if (!fits) options.max_cache_tokens = int64_t{1} << 40;
    }
    max_pages = pages_for(options.max_cache_tokens);
    cache.remove(0);
  }

  void admit();
  bool start(RequestedText& text);
  int64_t promised_pages() const;
  std::pair<int64_t, int64_t> find_prefix(std::span<const int64_t> tokens);
  void remove(int64_t place);
  void forget_oldest();
  std::vector<int64_t> shares() const;
  Array compute(std::span<const int64_t> counts);
  void compute_and_choose();
  void add(RequestedText& text, int64_t token);
  std::vector<FinishedText> finish();
  void keep(RequestedText& text);

  const models::Model& model;
  BatcherOptions options;
  int64_t context, max_pages;
  models::ModelCache cache;
  std::list<RequestedText> texts;  // that are computed; a chooser refers to its text
  std::vector<KeptText> kept;
  std::list<RequestedText> queue;
  int64_t next_number = 0, uses = 0;
  std::shared_ptr<autograd::Recycler> memory = autograd::Tape().memory();
};

// ---------------------------------------------------------------------------------------------------- who is computed

/// KV pages that the texts will take beyond those in use.
int64_t Batcher::State::promised_pages() const {
  int64_t total = 0;
  for (const RequestedText& text : texts) {
    const int64_t length = cache.length(text.place);
    total += text.pages() - (text.has_own_page ? pages_for(length) : length / KVCacheConfig().page_size);
  }
  return total;
}

/// The place in the cache with the longest beginning of these tokens, and its length; -1 and 0 if there is none. The
/// last token is always computed: its logits are wanted.
std::pair<int64_t, int64_t> Batcher::State::find_prefix(std::span<const int64_t> tokens) {
  std::pair<int64_t, int64_t> best = {-1, 0};
  tokens = tokens.first(tokens.size() - 1);
  for (const RequestedText& text : texts) {
    const int64_t common = std::min(common_prefix(tokens, text.tokens), cache.length(text.place));
    if (common > best.second) best = {text.place, common};
  }
  KeptText* source = nullptr;
  for (KeptText& text : kept) {
    const int64_t common = common_prefix(tokens, text.tokens);
    if (common <= best.second) continue;
    best = {text.place, common};
    source = &text;
  }
  if (source) source->used = ++uses;
  return best;
}

void Batcher::State::remove(int64_t place) {
  cache.remove(place);
  for (RequestedText& text : texts) text.place -= text.place > place;
  for (KeptText& text : kept) text.place -= text.place > place;
}

void Batcher::State::forget_oldest() {
  const auto oldest =
      std::min_element(kept.begin(), kept.end(), [](const KeptText& a, const KeptText& b) { return a.used < b.used; });
  const int64_t place = oldest->place;
  kept.erase(oldest);
  remove(place);
}

/// Gives the text a place in the cache; false if there is no room.
bool Batcher::State::start(RequestedText& text) {
  while (true) {
    const auto [source, common] = find_prefix(text.tokens);
    const int64_t wanted = text.pages() - common / KVCacheConfig().page_size;
    if (cache.pages_in_use() + promised_pages() + wanted <= max_pages) {
      if (source < 0) cache.add();
      else cache.fork(source, common);
      text.place = cache.sequences() - 1;
      text.generated.reused = common;
      return true;
    }
    if (kept.empty()) return false;
    forget_oldest();
  }
}

void Batcher::State::admit() {
  while (!queue.empty() && std::ssize(texts) < options.max_requests) {
    if (!start(queue.front())) return;
    texts.splice(texts.end(), queue, queue.begin());
  }
}

// ------------------------------------------------------------------------------------------------------------ one step

/// How many tokens of each text this step computes, at least one: those with short rests first, in equal shares.
std::vector<int64_t> Batcher::State::shares() const {
  std::vector<int64_t> rests, order(texts.size());
  for (const RequestedText& text : texts)
    rests.push_back(text.end ? 0 : std::ssize(text.tokens) - cache.length(text.place));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return rests[a] < rests[b]; });
  std::vector<int64_t> counts(texts.size());
  int64_t left = options.max_step_tokens;
  for (size_t n = 0; n < order.size(); ++n) {
    const int64_t others = std::ssize(order) - static_cast<int64_t>(n);
    counts[order[n]] = std::min(rests[order[n]], std::max<int64_t>(left / others, 1));
    left -= counts[order[n]];
  }
  return counts;
}

/// Logits [texts that are computed, V] after the last computed token of each.
Array Batcher::State::compute(std::span<const int64_t> counts) {
  models::Batch batch{.cu_seqlens = {0}};
  std::vector<int64_t> places;
  auto count = counts.begin();
  for (RequestedText& text : texts) {
    const int64_t own = *count++;
    if (own == 0) continue;
    const auto begin = text.tokens.begin() + cache.length(text.place);
    batch.tokens.insert(batch.tokens.end(), begin, begin + own);
    batch.cu_seqlens.push_back(std::ssize(batch.tokens));
    places.push_back(text.place);
    text.has_own_page = true;
  }
  batch.sequences = std::ssize(places);
  batch.length = std::ssize(batch.tokens);
  const ProfileSpan span("batch");
  autograd::Tape tape({.batch_invariant = true}, memory);
  const autograd::Value logits =
      model.forward(tape, batch, {.cache = &cache, .cache_sequences = places, .last_only = true});
  if (logits.dtype() == DType::float32) return logits.data();
  const Array values(DType::float32, logits.shape());
  ops::convert(logits.data().flat(), values.flat());
  return values;
}

void Batcher::State::add(RequestedText& text, int64_t token) {
  if (text.generated.tokens.empty()) text.first_token = Clock::now();
  if (is_end(token, text.options)) {
    text.end = FinishReason::eos;
    return;
  }
  text.tokens.push_back(token);
  text.generated.tokens.push_back(token);
  if (text.options.on_token && !text.options.on_token(token)) text.end = FinishReason::stopped;
  else if (std::ssize(text.tokens) >= text.longest) text.end = FinishReason::length;
}

void Batcher::State::compute_and_choose() {
  const std::vector<int64_t> counts = shares();
  if (std::all_of(counts.begin(), counts.end(), [](int64_t count) { return count == 0; })) return;
  Array logits;
  try {
    logits = compute(counts);
  } catch (const std::exception& error) {  // as out of memory; layers may have cached different tokens
    for (RequestedText& text : texts)
      if (!text.end) {
        text.end = FinishReason::failed;
        text.error = error.what();
      }
    return;
  }
  struct Choice {
    RequestedText& text;
    std::span<float> logits;
    int64_t token = 0;
  };
  const auto V = static_cast<size_t>(model.config().vocab_size);
  std::vector<Choice> choices;
  size_t row = 0;
  auto count = counts.begin();
  for (RequestedText& text : texts) {
    if (*count++ == 0) continue;
    const std::span<float> own = std::span(static_cast<float*>(logits.data()) + V * row++, V);
    if (cache.length(text.place) == std::ssize(text.tokens)) choices.push_back({text, own});
  }
  const auto guarded = [](RequestedText& text, const auto& function) {
    try {
      function();
    } catch (const std::exception& error) {
      text.end = FinishReason::failed;
      text.error = error.what();
    }
  };
  parallel_for(std::ssize(choices), [&](int64_t n) {
    Choice& choice = choices[static_cast<size_t>(n)];
    guarded(choice.text, [&] { choice.token = choice.text.chooser.next(choice.logits, choice.text.tokens, 0); });
  });
  for (Choice& choice : choices)  // callbacks one after the other
    if (!choice.text.end) guarded(choice.text, [&] { add(choice.text, choice.token); });
}

/// Leaves the keys and values of a text that has ended to later ones.
void Batcher::State::keep(RequestedText& text) {
  const int64_t length = cache.length(text.place);
  if (text.end == FinishReason::failed || length == 0) return remove(text.place);
  text.tokens.resize(static_cast<size_t>(length));
  kept.push_back({std::move(text.tokens), text.place, ++uses});
  if (kept.size() > kKept) forget_oldest();
}

std::vector<FinishedText> Batcher::State::finish() {
  std::vector<FinishedText> all;
  const auto now = Clock::now();
  for (auto text = texts.begin(); text != texts.end();) {
    if (!text->end) {
      ++text;
      continue;
    }
    if (!text->generated.tokens.empty()) {
      text->generated.prompt_seconds = seconds_between(text->added, text->first_token);
      text->generated.token_seconds = seconds_between(text->first_token, now);
    }
    text->generated.logprobs = text->chooser.take_logprobs(text->generated.tokens.size());
    all.push_back({text->number, std::move(text->generated), *text->end, std::move(text->error)});
    if (text->place >= 0) keep(*text);
    text = texts.erase(text);
  }
  return all;
}

// ------------------------------------------------------------------------------------------------------- the interface

Batcher::Batcher(const models::Model& model, const BatcherOptions& options) {
  check_options(model, options);
  state_ = std::make_unique<State>(model, options);
}

Batcher::~Batcher() = default;
Batcher::Batcher(Batcher&&) noexcept = default;
Batcher& Batcher::operator=(Batcher&&) noexcept = default;

int64_t Batcher::add(std::vector<int64_t> prompt, GenerateOptions options) {
  State& state = *state_;
  check(state.model, prompt, options);
  Checker checker("Batcher");
  checker.require(options.cache && options.beam.num_beams == 1 && options.streaming.window == 0 && !options.recorder &&
                      !options.text_cache && options.speculation.tokens == 0,
                  "a request needs the cache, and supports no beams, streaming, recorder, text_cache or speculation");
  checker.require(options.cache_storage == KVStorage::exact || options.cache_storage == state.options.cache_storage,
                  "cache_storage is not that of the Batcher, whose texts share one cache");
  const int64_t context = options.context ? std::min(options.context, state.context) : state.context;
  checker.require(std::ssize(prompt) <= context, [&] {
    return "the prompt has " + std::to_string(prompt.size()) + " tokens, must have at most the context of " +
           std::to_string(context);
  });
  std::list<RequestedText> added;
  const RequestedText& text = added.emplace_back(state.next_number, std::move(prompt), std::move(options), context);
  checker.require(text.pages() <= state.max_pages, [&] {
    return "prompt and new tokens are up to " + std::to_string(text.longest) +
           " tokens, more than max_cache_tokens = " + std::to_string(state.options.max_cache_tokens) + " has room for";
  });
  checker.done();
  state.queue.splice(state.queue.end(), added);
  return state.next_number++;
}

bool Batcher::cancel(int64_t request) {
  const auto end = [&](auto& all) {
    for (RequestedText& text : all)
      if (text.number == request && !text.end) {
        text.end = FinishReason::cancelled;
        return true;
      }
    return false;
  };
  return end(state_->texts) || end(state_->queue);
}

std::vector<FinishedText> Batcher::step() {
  State& state = *state_;
  for (auto text = state.queue.begin(); text != state.queue.end();) {  // what has ended does not wait
    const auto next = std::next(text);
    if (text->end) state.texts.splice(state.texts.end(), state.queue, text);
    text = next;
  }
  std::vector<FinishedText> ended = state.finish();
  state.admit();
  state.compute_and_choose();
  for (FinishedText& each : state.finish()) ended.push_back(std::move(each));
  return ended;
}

int64_t Batcher::requests() const { return std::ssize(state_->texts) + waiting(); }
int64_t Batcher::waiting() const { return std::ssize(state_->queue); }
int64_t Batcher::cache_bytes() const { return state_->cache.bytes(); }

// --------------------------------------------------------------------------------------------------------------- texts

TextBatcher::TextBatcher(const TextGenerator& generator, const BatcherOptions& options)
    : generator_(generator), batcher_(generator.model(), options) {}

bool TextBatcher::Text::add(const std::string& piece) {
  text += piece;
  return !on_text || on_text(piece);
}

int64_t TextBatcher::add(std::span<const int64_t> prompt_ids, const TextOptions& options,
                         TextGenerator::OnText on_text) {
  GenerateOptions all = generator_.options(options);
  const auto text = std::make_shared<Text>(Text{StreamedText(generator_.tokenizer(), prompt_ids, options.stop_strings),
                                                std::move(on_text),
                                                {prompt_ids.begin(), prompt_ids.end()}});
  all.on_token = [text](int64_t token) { return text->add(text->streamed.push(token)) && !text->streamed.stopped(); };
  const int64_t request = batcher_.add(text->prompt_ids, std::move(all));
  texts_.emplace(request, text);
  return request;
}

std::vector<WrittenText> TextBatcher::step() {
  std::vector<WrittenText> all;
  for (FinishedText& each : batcher_.step()) {
    const auto found = texts_.find(each.request);
    Text& text = *found->second;
    if (each.reason != FinishReason::failed && each.reason != FinishReason::cancelled) {
      try {
        text.add(text.streamed.finish());
      } catch (const std::exception& error) {
        each.reason = FinishReason::failed;
        each.error = error.what();
      }
    }
    all.push_back({std::move(each), std::move(text.text), std::move(text.prompt_ids)});
    texts_.erase(found);
  }
  return all;
}

}  // namespace attn::generate
