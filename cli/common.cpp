#include "common.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <system_error>
#include <utility>

#include "attn/ops.h"
#include "attn/peaks.h"
#include "progress.h"

namespace cli {

// ---------------------------------------------------------------------------------------------------- configurations

std::string flag_of(std::string field) {
  std::replace(field.begin(), field.end(), '_', '-');
  return "--" + field;
}

namespace {

/// The default of every family: "0.00001; encoder 1e-12".
std::string defaults_of(size_t field) {
  const std::string common = attn::models::field_info(attn::models::family("gpt"))[field].value;
  std::string text = common;
  for (const std::string& name : attn::models::families())
    if (const auto value = attn::models::field_info(attn::models::family(name))[field].value; value != common)
      text += "; " + name + " " + value;
  return text;
}

/// As models::set_field() says it.
CLI::Validator field_check(const attn::models::FieldInfo& field) {
  const auto check = [name = field.name](const std::string& text) {
    try {
      attn::models::Config config;
      attn::models::set_field(config, name, text);
    } catch (const attn::Error& error) {
      const std::string& reason = error.reasons().front();
      return reason.starts_with(name + " ") ? reason.substr(name.size() + 1) : reason;
    }
    return std::string();
  };
  const std::string limits = field.kind == "number" ? fmt::format("[{}, {}]", field.lowest, field.highest)
                             : field.kind == "text" && field.choices.empty() ? std::string("TEXT")
                             : field.kind == "list of numbers"               ? std::string("[NUMBER,...]")
                             : field.kind.starts_with("list of lists")       ? std::string("[[INT,...],...]")
                             : field.choices.empty() ? fmt::format("{:.0f} to {:.0f}", field.lowest, field.highest)
                                                     : "{" + joined(field.choices, ",") + "}";
  return CLI::Validator(check, limits);
}

constexpr std::pair<const char*, attn::nn::Precision> kPrecisions[] = {
    {"float32", attn::nn::Precision::float32},
    {"bfloat16", attn::nn::Precision::bfloat16},
    {"float16", attn::nn::Precision::float16},
};

constexpr std::pair<const char*, attn::Float32Precision> kFloat32Precisions[] = {
    {"full", attn::Float32Precision::full},
    {"high", attn::Float32Precision::high},
    {"fast", attn::Float32Precision::fast},
};

template <class Table>
std::vector<std::string> names_of(const Table& table) {
  std::vector<std::string> names;
  for (const auto& [name, value] : table) names.emplace_back(name);
  return names;
}

}  // namespace

void ConfigOptions::add(CLI::App& command) {
  command.add_option("--model", family, "the family, whose defaults the other options change")
      ->group("Model")
      ->check(one_of(attn::models::families()));
  command.add_option("--config", file, "a JSON file with fields of the model")->group("Model")->type_name("FILE");
  const std::vector<attn::models::FieldInfo> infos = attn::models::field_info();
  fields.clear();
  fields.reserve(infos.size());  // options keep the places
  for (size_t n = 0; n < infos.size(); ++n) {
    const attn::models::FieldInfo& info = infos[n];
    if (info.name == "model" || info.name.ends_with("vocab_size")) continue;  // the data say it
    fields.emplace_back(info.name, "");
    command.add_option(flag_of(info.name), fields.back().second, info.description)
        ->group("Model")
        ->type_name(info.kind == "number"         ? "FLOAT"
                    : info.kind == "whole number" ? "INT"
                                                  : "TEXT")
        ->check(field_check(info))
        ->default_str(defaults_of(n));
  }
}

attn::models::Config ConfigOptions::build(const std::string& default_family) const {
  attn::models::Config config = attn::models::family(family.empty() ? default_family : family);
  if (!file.empty()) attn::models::apply_json(config, attn::io::read_input(file, 1 << 20), file);
  if (!family.empty() && config.model != family)
    throw UsageError(fmt::format("--model is {}, but {} says \"model\": \"{}\"", family, file, config.model));
  for (const auto& [name, value] : fields)
    if (!value.empty()) attn::models::set_field(config, name, value);
  attn::models::Config whole = config;
  whole.vocab_size = std::max<int64_t>(whole.vocab_size, 1);  // the data may still have to say it
  try {
    attn::models::check(whole);
  } catch (const attn::Error& error) {
    throw UsageError(error.what());
  }
  return config;
}

void add_precision(CLI::App& command, std::string& name, const std::string& description) {
  command.add_option("--precision", name, description)->check(one_of(names_of(kPrecisions)));
}

attn::nn::Precision precision_named(const std::string& name) {
  for (const auto& [each, precision] : kPrecisions)
    if (name == each) return precision;
  throw UsageError("there is no precision '" + name + "'");  // a training.json may say so
}

void add_float32_precision(CLI::App& app, std::string& name) {
  app.add_option("--float32-precision", name,
                 "how float32 enters products and attention where the processor has matrix tiles: as accurate as "
                 "float32, as 16 bits, or rounded to bfloat16")
      ->check(one_of(names_of(kFloat32Precisions)));
}

void set_float32_precision(const std::string& name) {
  for (const auto& [each, precision] : kFloat32Precisions)
    if (name == each) return attn::ops::set_matmul_precision(precision);
  throw UsageError("there is no float32_precision '" + name + "'");  // a training.json may say so
}

std::string float32_precision() {
  for (const auto& [name, precision] : kFloat32Precisions)
    if (precision == attn::ops::matmul_precision()) return name;
  return {};
}

void ModelOptions::add(CLI::App& command) {
  command.add_option("directory", directory, "what attn train wrote, or a folder of the Hugging Face hub")
      ->required()
      ->type_name("FOLDER");
  command.add_option("--checkpoint", which, "of the training")->check(one_of({"best", "last"}));
  add_precision(command, precision);
}

attn::models::Loaded ModelOptions::load() const {
  Loading loading;
  attn::models::Loaded loaded = attn::models::open(
      directory, {.precision = precision_named(precision), .which = which, .on_progress = loading.listener()});
  if (!loaded.tokenizer) loaded.tokenizer = attn::text::open_tokenizer(directory);  // says what is missing
  for (const std::string& note : loaded.notes) say("attn: {}\n", note);
  return loaded;
}

bool writes(const attn::models::Config& config) { return config.causal && config.head && !config.classes; }

std::string what_fits(const attn::models::Config& config) {
  if (config.encoder_layers) return "it answers texts: attn generate";
  if (config.classes && config.pooling == attn::models::ClassifierPooling::each)
    return "it has a class for each token, which no command prints: attn embed, attn see, attn heads";
  if (config.classes) return "it classifies: attn classify";
  if (writes(config)) return "it continues texts: attn generate";
  return config.head ? "it fills gaps: attn fill, attn embed" : "it makes vectors: attn embed";
}

void ContextOption::add(CLI::App& command) {
  command
      .add_option("--context", tokens,
                  "tokens of a text that the model sees, the first, more than in training only without learned"
                  " positions; 0 = as trained")
      ->check(whole(0, 1 << 24));
}

namespace {

/// Of what a model reads, which with an encoder may have a context of its own.
int64_t trained_context(const attn::models::Config& config) {
  return config.encoder_layers && config.source_context ? config.source_context : config.context;
}

}  // namespace

std::string ContextOption::larger(const attn::models::Config& config) {
  return attn::models::learns_positions(config) ? "" : "; a larger --context takes more";
}

int64_t ContextOption::of(const attn::models::Config& config) const {
  const int64_t own = trained_context(config);
  if (tokens > own && attn::models::learns_positions(config))
    throw UsageError(fmt::format("--context is {}, but the model has learned {} positions", tokens, own));
  return tokens ? tokens : own;
}

std::string ContextOption::too_long(int64_t count, const attn::models::Config& config) const {
  const int64_t own = trained_context(config);
  return fmt::format("the text has {} tokens, the model's context is {}: --context {} takes the first of them, {}",
                     count, own, own,
                     attn::models::learns_positions(config) ? "all are possible only without learned positions"
                                                            : fmt::format("--context {} all", count));
}

// --------------------------------------------------------------------------------------------------------- generation

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
    for (const int64_t id : ids) text.push(id);  // what comes next may depend on what is before
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

std::vector<std::string> token_labels(const attn::text::Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  std::vector<std::string> labels;  // what is beyond the tokenizer begins an answer
  for (const int64_t id : ids) labels.push_back(id < tokenizer.size() ? tokenizer.label(id) : "<start>");
  return labels;
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

// ------------------------------------------------------------------------------------------------------------ signals

namespace {

std::atomic<int> seen{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int number) {
  if (seen.exchange(number) != 0 && number != SIGPIPE) _exit(128 + number);  // what is said at the end may raise that
}

}  // namespace

void catch_signals() {
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE})
    if (std::signal(number, on_signal) == SIG_IGN) std::signal(number, SIG_IGN);
}

int signal_seen() { return seen.load(); }

// --------------------------------------------------------------------------------------------------- input, output

std::string printable(std::string_view text, std::string_view kept) {
  std::string out;
  while (!text.empty()) {
    const size_t good = std::min(attn::malformed_utf8(text), text.size());
    for (size_t n = 0; n < good; ++n) {
      const auto byte = static_cast<uint8_t>(text[n]);
      const bool second = byte == 0xC2 && static_cast<uint8_t>(text[n + 1]) < 0xA0;  // U+0080 to U+009F
      const bool plain = byte >= 0x20 && byte != 0x7F && !second;
      if (plain || kept.find(text[n]) != std::string_view::npos) out += text[n];
      else out += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[n += second]));
    }
    if (good < text.size()) out += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[good]));
    text.remove_prefix(std::min(good + 1, text.size()));
  }
  return out;
}

std::string for_output(const std::string& text) { return isatty(STDOUT_FILENO) ? printable(text, "\n\t") : text; }

void show(const std::string& given) {
  const std::string text = for_output(given);
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw std::system_error(errno, std::generic_category(), "standard output");
}

Lines::Lines(const std::string& path)
    : path_(path == "-" ? "standard input" : path),
      cutter_(path_),
      file_(path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_NOCTTY | O_CLOEXEC)) {
  if (file_ < 0) throw attn::Error("read", {path_ + ": " + std::generic_category().message(errno)});
}

Lines::~Lines() {
  if (file_ != STDIN_FILENO) ::close(file_);
}

bool Lines::read_more(bool wait) {
  constexpr int kPause = 200;  // ms: a signal that comes between a look for signals and poll() does not end the wait
  pollfd what{file_, POLLIN, 0};
  int ready = 0;
  do ready = ::poll(&what, 1, wait ? kPause : 0);
  while (ready == 0 && wait && !signal_seen());
  if (ready == 0 || signal_seen()) return false;
  char piece[1 << 14];
  const ssize_t got = ready < 0 ? -1 : ::read(file_, piece, sizeof piece);
  if (got < 0 && errno != EINTR) throw attn::Error("read", {path_ + ": " + std::generic_category().message(errno)});
  if (got > 0) cutter_.feed({piece, static_cast<size_t>(got)});
  if (got == 0) cutter_.finish();
  return true;
}

bool Lines::ready() {
  while (!cutter_.ready())
    if (!read_more(false)) return false;
  return true;
}

bool Lines::next(std::string& line) {
  while (!cutter_.ready())
    if (!read_more(true)) return false;
  if (signal_seen()) return false;
  const std::optional<std::string_view> found = cutter_.next();
  if (found) line = *found;
  return found.has_value();
}

// ------------------------------------------------------------------------------------------------------------ numbers

std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  const size_t sign = number < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > 3 + sign;) digits.insert(at -= 3, ",");
  return digits;
}

std::string short_number(double number) {
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  for (; number >= 1000 && unit + 1 < std::size(kUnits); ++unit) number /= 1000;
  return fmt::format("{:.{}f} {}", number, unit == 0 ? 0 : number < 10 ? 2 : 1, kUnits[unit]);
}

std::string clock_time(double seconds) {
  const int64_t whole = static_cast<int64_t>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

double measured_peak(attn::DType dtype) {
  return 1e9 * attn::peaks::measure_products(dtype, attn::ops::matmul_precision());
}

}  // namespace cli
