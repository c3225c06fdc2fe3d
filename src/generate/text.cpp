// From a prompt to a text: tokens, what the model's folder says, stop strings and streaming.
#include "attn/generate_text.h"

#include <algorithm>
#include <utility>

#include "generate/loop.h"

namespace attn::generate {
TextGenerator::TextGenerator(const std::string& folder, const models::OpenOptions& how)
    : TextGenerator(models::open_with_tokenizer(folder, how)) {}

TextGenerator::TextGenerator(models::Loaded loaded)
    : loaded_(std::move(loaded)),
      model_(loaded_.model.get()),
      tokenizer_(loaded_.tokenizer.get()),
      source_tokenizer_(loaded_.source_tokenizer ? loaded_.source_tokenizer.get() : tokenizer_),
      defaults_(options_of(loaded_, {.sampling = {.temperature = kTemperature}})) {
  if (!tokenizer_) throw Error("generate", {"the model has no tokenizer"});
}

TextGenerator::TextGenerator(const models::Model& model, const text::Tokenizer& tokenizer,
                             const text::Tokenizer* source_tokenizer)
    : model_(&model),
      tokenizer_(&tokenizer),
      source_tokenizer_(source_tokenizer ? source_tokenizer : &tokenizer),
      defaults_({.sampling = {.temperature = model.config().encoder_layers > 0 ? 0 : kTemperature}}) {
  if (model.config().encoder_layers == 0) return;
  defaults_.decoder_start_token_ids = defaults_.eos_token_ids = {model.config().vocab_size - 1};
}

GenerateOptions TextGenerator::options(const TextOptions& changes) const {
  GenerateOptions all = defaults_;
  SamplingOptions& sampling = all.sampling;
  const bool never_draws = changes.do_sample == false;
  const bool draws = changes.temperature || changes.do_sample == true;
  if (never_draws && changes.temperature.value_or(0) > 0)
    throw Error("generate", {"do_sample is false, which always takes the most probable token, but temperature is " +
                             std::to_string(*changes.temperature) + ": must be 0 or absent"});
  if (never_draws) sampling.temperature = 0;
  else if (draws && sampling.temperature == 0) sampling.temperature = 1;
  const auto change = [](auto& to, const auto& given) { to = given.value_or(to); };
  change(sampling.temperature, changes.temperature);
  change(sampling.top_k, changes.top_k);
  change(sampling.top_p, changes.top_p);
  change(sampling.min_p, changes.min_p);
  change(sampling.repetition_penalty, changes.repetition_penalty);
  change(all.no_repeat_ngram_size, changes.no_repeat_ngram_size);
  change(all.beam.length_penalty, changes.length_penalty);
  change(all.beam.early_stopping, changes.early_stopping);
  if (draws && sampling.temperature > 0) all.beam.num_beams = 1;  // the folder's beams do not draw
  change(all.beam.num_beams, changes.num_beams);
  if (changes.num_beams.value_or(1) > 1 && !draws) sampling.temperature = 0;
  if (changes.max_new_tokens) {  // overrides the folder's max_length, as min_new_tokens overrides min_length
    all.max_new_tokens = *changes.max_new_tokens;
    all.max_length = 0;
  }
  if (changes.min_new_tokens) {
    all.min_new_tokens = *changes.min_new_tokens;
    all.min_length = 0;
  }
  if (!changes.stop_strings.empty())
    std::erase_if(all.unsupported, [](const auto& field) { return field.field == "stop_strings"; });
  all.seed = changes.seed;
  all.context = changes.context;
  all.cache = changes.cache;
  all.streaming = changes.streaming;
  all.cache_storage = changes.cache_storage;
  all.sequence_ranks = changes.sequence_ranks;
  all.top_logprobs = changes.top_logprobs;
  all.recorder = changes.recorder;
  all.text_cache = changes.text_cache;
  all.speculation = changes.speculation;
  return all;
}

int64_t TextGenerator::context(const TextOptions& options) const { return context_of(*model_, this->options(options)); }

GeneratedText TextGenerator::write(std::string_view prompt, const TextOptions& options, const OnText& on_text) const {
  return write_after(options.return_full_text ? prompt : "", source_tokenizer_->encode(prompt).ids, options, on_text);
}

GeneratedText TextGenerator::write(std::span<const int64_t> prompt_ids, const TextOptions& options,
                                   const OnText& on_text) const {
  return write_after("", prompt_ids, options, on_text);
}

GeneratedText TextGenerator::write_after(std::string_view prefix, std::span<const int64_t> prompt_ids,
                                         const TextOptions& options, const OnText& on_text) const {
  const bool answers = model_->config().encoder_layers > 0;
  GenerateOptions all = this->options(options);
  if (answers && all.decoder_start_token_ids.empty())
    throw Error("generate",
                {"decoder_start_token_id, with which answers begin, is missing in generation_config.json, and without "
                 "that file in config.json"});
  // The text of a token may depend on the tokens before it.
  StreamedText streamed(*tokenizer_, answers ? std::span<const int64_t>() : prompt_ids, options.stop_strings);
  check(*model_, prompt_ids, all);
  GeneratedText result{.prompt_ids = {prompt_ids.begin(), prompt_ids.end()}};
  const auto add = [&](const std::string& piece) {
    result.text += piece;
    return !on_text || on_text(piece);
  };
  if (!answers && !prefix.empty() && !add(std::string(prefix))) return result;
  all.on_token = [&](int64_t token) { return add(streamed.push(token)) && !streamed.stopped(); };
  all.beam.on_step = [&] { return add(""); };
  result.generated = generate(*model_, prompt_ids, all);
  add(streamed.finish());
  return result;
}

// ------------------------------------------------------------------------------------------------------- stop strings

StopFilter::StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_)
    if (stop.empty()) throw Error("StopFilter", {"a stop text is empty"});
}

std::string StopFilter::feed(std::string_view piece) {
  if (stopped_) return "";
  held_ += piece;
  size_t show = held_.size();
  for (const std::string& stop : stops_) {
    if (const size_t at = held_.find(stop); at != std::string::npos) {
      stopped_ = true;
      show = std::min(show, at);
    }
  }
  if (!stopped_) {
    for (const std::string& stop : stops_)  // the longest end of held_ that begins a stop text
      for (size_t begin = held_.size() - std::min(held_.size(), stop.size()); begin < held_.size(); ++begin)
        if (std::string_view(stop).starts_with(std::string_view(held_).substr(begin))) show = std::min(show, begin);
  }
  const std::string shown = held_.substr(0, show);
  held_.erase(0, show);
  return shown;
}

std::string StopFilter::rest() { return stopped_ ? "" : std::exchange(held_, ""); }

StreamedText::StreamedText(const text::Tokenizer& tokenizer, std::span<const int64_t> before,
                           std::vector<std::string> stop_strings)
    : stream_(tokenizer), filter_(std::move(stop_strings)) {
  for (const int64_t id : before) stream_.push(id);
}

std::string StreamedText::push(int64_t token) { return filter_.feed(stream_.push(token)); }

std::string StreamedText::finish() {
  std::string rest = filter_.feed(stream_.finish());
  return rest + filter_.rest();
}

bool StreamedText::stopped() const { return filter_.stopped(); }

}  // namespace attn::generate
