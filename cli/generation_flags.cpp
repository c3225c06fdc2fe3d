#include "generation_flags.h"

#include <unistd.h>

#include "attn/core_names.h"
#include "attn/models.h"
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
  add_choice(command);
  add_search(command);
  add_context(command);
}

/// How long a text is, and how its tokens are drawn.
void GenerationOptions::add_choice(CLI::App& command) {
  // The defaults that help shows hold where generation_config.json in the model's folder says nothing.
  command.add_option("--max-new-tokens", text.max_new_tokens, "generate at most so many tokens")
      ->check(whole(1))
      ->default_str("256");
  command.add_option("--min-new-tokens", text.min_new_tokens, "do not end the text before it has so many new tokens")
      ->check(whole(0))
      ->default_str("0");
  command
      .add_option("--do-sample", do_sample, "false: take the most probable token, as --temperature 0 does; true: draw")
      ->check(one_of({"true", "false"}))
      ->transform(CLI::Validator(lower_case, ""))
      ->expected(0, 1);
  command
      .add_option("--temperature", text.temperature,
                  "divide logits by it; 0 takes the most probable token, as models with an encoder do by default")
      ->check(number(0))
      ->default_str(fmt::format("{}", attn::generate::kTemperature));
  command.add_option("--top-k", text.top_k, "draw from the k most probable tokens; 0 = from all")
      ->check(whole(0))
      ->default_str("0");
  command.add_option("--top-p", text.top_p, "draw from the fewest tokens that reach this probability together")
      ->check(number(0, 1, "(]"))
      ->default_str("1");
  command.add_option("--min-p", text.min_p, "draw from tokens with at least this share of the largest probability")
      ->check(number(0, 1))
      ->default_str("0");
  command
      .add_option("--repetition-penalty", text.repetition_penalty,
                  "divide positive logits of tokens that have occurred by it, multiply negative ones; 1 = none")
      ->check(number(0, std::numeric_limits<double>::infinity(), "(]"))
      ->default_str("1");
  command
      .add_option("--no-repeat-ngram-size", text.no_repeat_ngram_size,
                  "repeat no run of so many tokens; 0 = any run may repeat")
      ->check(whole(0))
      ->default_str("0");
}

/// Beams, and where a text ends.
void GenerationOptions::add_search(CLI::App& command) {
  command
      .add_option("--num-beams", text.num_beams,
                  "search for the most probable text with so many beams, and print it when it is complete")
      ->check(whole(1, 1024))
      ->default_str("1");
  command
      .add_option("--length-penalty", text.length_penalty,
                  "with beams: above 0 prefers longer texts, below 0 shorter ones")
      ->check(number(-1e6, 1e6))
      ->default_str("1");
  command
      .add_option("--early-stopping", early_stopping,
                  "with beams: true ends with as many complete texts as beams, never goes on while a longer text could"
                  " win")
      ->check(one_of(attn::names_of<attn::generate::EarlyStopping>()))
      ->transform(CLI::Validator(lower_case, ""));
  command.add_option("--seed", text.seed, "the same seed gives the same text")->check(whole(0));
  const auto has_text = [](const std::string& stop) { return stop.empty() ? "the text is empty" : ""; };
  command
      .add_option("--stop", text.stop_strings, "end the output before this text; the option may be given several times")
      ->allow_extra_args(false)
      ->check(CLI::Validator(has_text, ""));
}

/// What the model reads and keeps for each token.
void GenerationOptions::add_context(CLI::App& command) {
  CLI::Option* context =
      command
          .add_option("--context", text.context,
                      "tokens that the model reads at once, more than in training only without learned positions;"
                      " 0 = as in training")
          ->check(whole(0, 1 << 24));
  CLI::Option* no = command.add_flag("--no-cache", no_cache, "compute the whole text again for every token");
  command
      .add_option("--streaming", streaming,
                  "generate texts of any length in constant memory: keep the first SINKS tokens and the last WINDOW, as"
                  " 4,1020; the model forgets all tokens between")
      ->type_name("SINKS,WINDOW")
      ->delimiter(',')
      ->expected(2)
      ->check(whole(0, int64_t{1} << 40))
      ->excludes(no)
      ->excludes(context);
  kv_cache.add(command);
  CLI::Option* speculate =
      command
          .add_option("--speculate", draft_tokens,
                      "speculative decoding with drafts of up to so many tokens: the same text, often sooner; 0 = none")
          ->check(whole(0, 64))
          ->excludes(no);
  command
      .add_option(
          "--draft", draft,
          "a smaller model of the same vocabulary, which writes the drafts; none: they are what followed the same"
          " tokens before")
      ->type_name("FOLDER")
      ->needs(speculate);
}

attn::generate::TextOptions GenerationOptions::text_options() const {
  if (do_sample == "false" && text.temperature.value_or(0) > 0)
    throw UsageError("--do-sample false takes the most probable token, so --temperature must be 0 or absent");
  attn::generate::TextOptions options = text;
  if (do_sample) options.do_sample = do_sample != "false";
  if (early_stopping) options.early_stopping = attn::from_name<attn::generate::EarlyStopping>(*early_stopping);
  options.cache = !no_cache;
  options.cache_storage = kv_cache.of();
  if (!streaming.empty()) options.streaming = {.sink_tokens = streaming[0], .window = streaming[1]};
  if (!streaming.empty() && streaming[1] == 0)
    throw UsageError("--streaming keeps a window of 0 tokens, must be at least 1");
  options.speculation.tokens = draft_tokens;
  if (!draft.empty() && !draft_model_) draft_model_ = attn::models::open_with_tokenizer(draft).model;
  options.speculation.draft = draft_model_.get();
  options.return_full_text = true;
  return options;
}

attn::generate::GeneratedText GenerationOptions::stream(const attn::generate::TextGenerator& generator,
                                                        const std::string& prompt, bool with_statistics,
                                                        attn::Recorder* recorder) const {
  attn::generate::TextOptions options = text_options();
  options.recorder = recorder;
  const attn::generate::GenerateOptions all = generator.options(options);
  if (all.beam.num_beams > 1 && all.sampling.temperature > 0)
    throw UsageError("beams search for the most probable text and do not draw: give --temperature 0 or --num-beams 1");
  if (all.beam.num_beams > 1 && recorder)
    throw UsageError("--record cannot record a search of beams: give --num-beams 1");
  attn::generate::GeneratedText written = generator.write(prompt, options, [](std::string_view piece) {
    show(std::string(piece));
    return !signal_seen();
  });
  show("\n");
  if (with_statistics) say_statistics(std::ssize(written.prompt_ids), written.generated);
  return written;
}

attn::generate::TextOptions GenerationOptions::of_answers() const {
  if (no_cache || !streaming.empty() || text.num_beams.value_or(1) > 1)
    throw UsageError("a conversation supports no --no-cache, --streaming and --num-beams");
  return text_options();
}

attn::generate::TextOptions GenerationOptions::of_batch() const {
  if (no_cache || !streaming.empty() || text.num_beams.value_or(1) > 1 || draft_tokens > 0)
    throw UsageError("--batch supports no --no-cache, --streaming, --num-beams and --speculate");
  return text_options();
}

void say_statistics(int64_t prompt_tokens, const attn::generate::Generated& generated) {
  const size_t count = generated.tokens.size();
  const int64_t read = prompt_tokens - generated.reused;
  say("prompt: {} tokens, {:.1f} tokens/s; then {} tokens, {:.1f} tokens/s\n", read,
      static_cast<double>(read) / generated.prompt_seconds, count,
      count > 1 ? static_cast<double>(count - 1) / generated.token_seconds : 0.0);
  if (generated.drafted > 0) say("draft tokens: {} of {} accepted\n", generated.accepted, generated.drafted);
}

void GenerationOptions::converse(const attn::generate::TextGenerator& generator,
                                 attn::cluster::Communicator& ranks) const {
  const bool terminal = isatty(STDIN_FILENO);
  if (terminal) say("Type the beginning of a text; an empty line or Ctrl-D ends.\n");
  SharedLines lines(ranks);
  std::string line;
  while (!signal_seen()) {
    if (terminal) say("> ");
    if (!lines.next(line) || line.empty()) return;
    try {
      stream(generator, line, false);
    } catch (const attn::cluster::RanksError&) {
      throw;
    } catch (const attn::Error& error) {  // a character that the model does not know: the next line may do
      say("attn: {}\n", error.what());
    }
  }
}

}  // namespace cli
