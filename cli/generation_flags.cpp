#include "generation_flags.h"

#include <unistd.h>

#include "commands.h"
#include "lines.h"
#include "options.h"
#include "output.h"
#include "signals.h"

namespace cli {
namespace {

constexpr double kTemperature = 0.8;

/// "True", as Python writes it.
std::string lower_case(std::string& text) {
  text = CLI::detail::to_lower(text);
  return {};
}

}  // namespace

void GenerationOptions::add(CLI::App& command) {
  // What is not given here is as generation_config.json of the model's folder says; the defaults are after that.
  command.add_option("--tokens,--max-new-tokens", tokens, "how many at most")->check(whole(1))->default_str("256");
  command.add_option("--temperature", temperature, "0 = always the most probable token, as answers of encoders are")
      ->check(number(0))
      ->default_str(fmt::format("{}", kTemperature));
  command.add_option("--top-k", top_k, "keep the k most probable; 0 = all")->check(whole(0))->default_str("0");
  command.add_option("--top-p", top_p, "keep the fewest that reach this probability")
      ->check(number(0, 1, "(]"))
      ->default_str("1");
  command.add_option("--min-p", min_p, "keep those of at least this part of the largest probability")
      ->check(number(0, 1))
      ->default_str("0");
  command.add_option("--repetition-penalty", repetition_penalty, "what tokens of the text are divided by; 1 = none")
      ->check(number(0, std::numeric_limits<double>::infinity(), "(]"))
      ->default_str("1");
  command.add_option("--min-tokens,--min-new-tokens", min_new_tokens, "no text ends before it has so many")
      ->check(whole(0))
      ->default_str("0");
  command
      .add_option("--no-repeat,--no-repeat-ngram-size", no_repeat_ngram_size,
                  "no run of so many tokens occurs twice; 0 = any may")
      ->check(whole(0))
      ->default_str("0");
  command
      .add_option("--beams,--num-beams", beams,
                  "search so many texts at a time for the most probable one, which is shown when it is whole")
      ->check(whole(1, 1024))
      ->default_str("1");
  command.add_option("--length-penalty", length_penalty, "of beams: above 0 for longer texts, below for shorter")
      ->check(number(-1e6, 1e6))
      ->default_str("1");
  command
      .add_option("--early-stopping", early_stopping,
                  "of beams: true ends with as many whole texts as beams, never goes on while a longer one could win")
      ->check(one_of({"true", "false", "never"}))
      ->transform(CLI::Validator(lower_case, ""));
  command
      .add_option("--do-sample", do_sample, "false: always the most probable token, as --temperature 0; true: drawn")
      ->check(one_of({"true", "false"}))
      ->transform(CLI::Validator(lower_case, ""))
      ->expected(0, 1);
  command.add_option("--seed", seed, "the same seed gives the same text")->check(whole(0));
  const auto has_text = [](const std::string& text) { return text.empty() ? "the text is empty" : ""; };
  command.add_option("--stop", stop, "a text that ends the output, not shown itself; may be given several times")
      ->allow_extra_args(false)
      ->check(CLI::Validator(has_text, ""));
  command
      .add_option("--context", context,
                  "tokens that the model sees at once, more only without learned positions; 0 = as trained")
      ->check(whole(0, 1 << 24));
  command.add_flag("--no-cache", no_cache, "compute the whole text again for every token");
}

namespace {

std::vector<int64_t> prompt_tokens(const attn::models::Loaded& loaded, const std::string& prompt) {
  const auto& tokenizer = loaded.source_tokenizer ? loaded.source_tokenizer : loaded.tokenizer;
  std::vector<int64_t> ids = tokenizer->encode_marked(prompt).ids;
  if (ids.empty()) throw UsageError("the prompt is empty");
  return ids;
}

}  // namespace

attn::generate::GenerateOptions GenerationOptions::for_model(const attn::models::Loaded& loaded) const {
  attn::generate::GenerateOptions options =
      attn::generate::options_of(loaded, {.sampling = {.temperature = kTemperature}});
  attn::generate::SamplingOptions& sampling = options.sampling;
  const bool never = do_sample == "false", draws = temperature || (do_sample && !never);
  if (never && temperature.value_or(0) > 0)
    throw UsageError("--do-sample false takes the most probable tokens: leave --temperature out");
  if (never) sampling.temperature = 0;
  else if (draws && sampling.temperature == 0) sampling.temperature = 1;
  sampling.temperature = temperature.value_or(sampling.temperature);
  sampling.top_k = top_k.value_or(sampling.top_k);
  sampling.top_p = top_p.value_or(sampling.top_p);
  sampling.min_p = min_p.value_or(sampling.min_p);
  sampling.repetition_penalty = repetition_penalty.value_or(sampling.repetition_penalty);
  if (min_new_tokens) {
    options.min_new_tokens = *min_new_tokens;
    options.min_length = 0;
  }
  options.no_repeat_ngram_size = no_repeat_ngram_size.value_or(options.no_repeat_ngram_size);
  options.beam.num_beams = beams.value_or(sampling.temperature == 0 || !draws ? options.beam.num_beams : 1);
  if (beams.value_or(1) > 1 && !draws) sampling.temperature = 0;
  using attn::generate::EarlyStopping;
  if (early_stopping)
    options.beam.early_stopping = early_stopping == "true"    ? EarlyStopping::full
                                  : early_stopping == "never" ? EarlyStopping::certain
                                                              : EarlyStopping::hopeless;
  options.beam.length_penalty = length_penalty.value_or(options.beam.length_penalty);
  options.beam.on_step = [] { return !signal_seen(); };
  if (tokens) {
    options.max_new_tokens = *tokens;
    options.max_length = 0;
  }
  if (!stop.empty()) std::erase_if(options.unsupported, [](const auto& said) { return said.field == "stop_strings"; });
  options.seed = seed;
  options.context = context;
  options.cache = !no_cache;
  return options;
}

GenerationOptions::Streamed GenerationOptions::stream(const attn::models::Loaded& loaded, const std::string& prompt,
                                                      bool with_statistics, attn::view::Recorder* recorder) const {
  const std::vector<int64_t> ids = prompt_tokens(loaded, prompt);
  const bool answers = loaded.model->config().encoder_layers > 0;
  if (answers && loaded.decoder_start_token_ids.empty())
    throw attn::Error(
        "generate",
        {"neither generation_config.json nor, without it, config.json says decoder_start_token_id, with which "
         "answers begin"});
  attn::generate::StopFilter filter(stop);
  attn::generate::GenerateOptions options = for_model(loaded);
  options.recorder = recorder;
  if (options.beam.num_beams > 1 && options.sampling.temperature > 0)
    throw UsageError("beams search for the most probable text: --temperature 0, or --beams 1");
  if (options.beam.num_beams > 1 && recorder) throw UsageError("--record goes without beams: --beams 1");
  attn::generate::check(*loaded.model, ids, options);
  attn::text::TextStream text(*loaded.tokenizer);
  if (!answers) {
    show(prompt);
    for (const int64_t id : ids) text.push(id);  // what comes next may depend on what stands before
  }
  options.on_token = [&](int64_t token) {
    show(filter.feed(text.push(token)));
    return !filter.stopped() && !signal_seen();
  };
  const attn::generate::Generated result = attn::generate::generate(*loaded.model, ids, options);
  show(filter.feed(text.finish()) + filter.rest() + "\n");
  const double count = static_cast<double>(result.tokens.size());
  if (with_statistics)
    say("prompt: {} tokens, {:.1f} tokens/s; then {} tokens, {:.1f} tokens/s\n", ids.size(),
        static_cast<double>(ids.size()) / result.prompt_seconds, result.tokens.size(),
        count > 1 ? (count - 1) / result.token_seconds : 0.0);
  Streamed streamed = {ids, answers ? options.decoder_start_token_ids : ids};
  streamed.text.insert(streamed.text.end(), result.tokens.begin(), result.tokens.end());
  streamed.text.erase(streamed.text.begin(), streamed.text.begin() + result.forgotten);
  return streamed;
}

void GenerationOptions::converse(const attn::models::Loaded& loaded) const {
  const bool terminal = isatty(STDIN_FILENO);
  if (terminal) say("Type the beginning of a text; an empty line or Ctrl-D ends.\n");
  Lines lines("-");
  std::string line;
  while (!signal_seen()) {
    if (terminal) say("> ");
    if (!lines.next(line) || line.empty()) return;
    try {
      stream(loaded, line, false);
    } catch (const attn::Error& error) {  // a character that the model does not know: the next line may do
      say("attn: {}\n", error.what());
    }
  }
}

}  // namespace cli
