#include "generation_flags.h"

#include <unistd.h>

#include "commands.h"
#include "lines.h"
#include "options.h"
#include "output.h"
#include "signals.h"

namespace cli {
namespace {

/// "True", as Python writes it.
std::string lower_case(std::string& text) {
  text = CLI::detail::to_lower(text);
  return {};
}

}  // namespace

void GenerationOptions::add(CLI::App& command) {
  // What is not given here is as generation_config.json of the model's folder says; the defaults are behind that.
  command.add_option("--tokens,--max-new-tokens", text.max_new_tokens, "how many at most")->check(whole(1))->default_str("256");
  command.add_option("--temperature", text.temperature, "0 = always the most probable token, as answers of encoders are")
      ->check(number(0))
      ->default_str(fmt::format("{}", attn::generate::kTemperature));
  command.add_option("--top-k", text.top_k, "keep the k most probable; 0 = all")->check(whole(0))->default_str("0");
  command.add_option("--top-p", text.top_p, "keep the fewest that reach this probability")
      ->check(number(0, 1, "(]"))
      ->default_str("1");
  command.add_option("--min-p", text.min_p, "keep those of at least this part of the largest probability")
      ->check(number(0, 1))
      ->default_str("0");
  command.add_option("--repetition-penalty", text.repetition_penalty, "what tokens of the text are divided by; 1 = none")
      ->check(number(0, std::numeric_limits<double>::infinity(), "(]"))
      ->default_str("1");
  command.add_option("--min-tokens,--min-new-tokens", text.min_new_tokens, "no text ends before it has so many")
      ->check(whole(0))
      ->default_str("0");
  command
      .add_option("--no-repeat,--no-repeat-ngram-size", text.no_repeat_ngram_size,
                  "no run of so many tokens occurs twice; 0 = any may")
      ->check(whole(0))
      ->default_str("0");
  command
      .add_option("--beams,--num-beams", text.num_beams,
                  "search so many texts at a time for the most probable one, which is shown when it is whole")
      ->check(whole(1, 1024))
      ->default_str("1");
  command.add_option("--length-penalty", text.length_penalty, "of beams: above 0 for longer texts, below for shorter")
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
  command.add_option("--seed", text.seed, "the same seed gives the same text")->check(whole(0));
  const auto has_text = [](const std::string& stop) { return stop.empty() ? "the text is empty" : ""; };
  command.add_option("--stop", text.stop_strings, "a text that ends the output, not shown itself; may be given several times")
      ->allow_extra_args(false)
      ->check(CLI::Validator(has_text, ""));
  command
      .add_option("--context", text.context,
                  "tokens that the model sees at once, more only without learned positions; 0 = as trained")
      ->check(whole(0, 1 << 24));
  command.add_flag("--no-cache", no_cache, "compute the whole text again for every token");
}

attn::generate::TextOptions GenerationOptions::text_options() const {
  if (do_sample == "false" && text.temperature.value_or(0) > 0)
    throw UsageError("--do-sample false takes the most probable tokens: leave --temperature out");
  attn::generate::TextOptions options = text;
  if (do_sample) options.do_sample = do_sample != "false";
  using attn::generate::EarlyStopping;
  if (early_stopping)
    options.early_stopping = early_stopping == "true"    ? EarlyStopping::full
                             : early_stopping == "never" ? EarlyStopping::certain
                                                         : EarlyStopping::hopeless;
  options.cache = !no_cache;
  options.return_full_text = true;
  return options;
}

attn::generate::GeneratedText GenerationOptions::stream(const attn::generate::TextGenerator& generator,
                                                        const std::string& prompt, bool with_statistics,
                                                        attn::view::Recorder* recorder) const {
  attn::generate::TextOptions options = text_options();
  options.recorder = recorder;
  const attn::generate::GenerateOptions all = generator.options(options);
  if (all.beam.num_beams > 1 && all.sampling.temperature > 0)
    throw UsageError("beams search for the most probable text: --temperature 0, or --beams 1");
  if (all.beam.num_beams > 1 && recorder) throw UsageError("--record goes without beams: --beams 1");
  attn::generate::GeneratedText written = generator.write(prompt, options, [](std::string_view piece) {
    show(std::string(piece));
    return !signal_seen();
  });
  show("\n");
  const attn::generate::Generated& result = written.generated;
  const size_t read = written.prompt_ids.size(), count = result.tokens.size();
  if (with_statistics)
    say("prompt: {} tokens, {:.1f} tokens/s; then {} tokens, {:.1f} tokens/s\n", read,
        static_cast<double>(read) / result.prompt_seconds, count,
        count > 1 ? static_cast<double>(count - 1) / result.token_seconds : 0.0);
  return written;
}

void GenerationOptions::converse(const attn::generate::TextGenerator& generator) const {
  const bool terminal = isatty(STDIN_FILENO);
  if (terminal) say("Type the beginning of a text; an empty line or Ctrl-D ends.\n");
  Lines lines("-");
  std::string line;
  while (!signal_seen()) {
    if (terminal) say("> ");
    if (!lines.next(line) || line.empty()) return;
    try {
      stream(generator, line, false);
    } catch (const attn::Error& error) {  // a character that the model does not know: the next line may do
      say("attn: {}\n", error.what());
    }
  }
}

}  // namespace cli
