// What the subcommands share: how one is registered, models from a directory, text on the terminal, signals.
#pragma once

#include <fmt/core.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "attn/core_lines.h"
#include "attn/generate.h"
#include "attn/models.h"
#include "attn/train.h"
#include "options.h"

namespace cli {

/// A wrong command line: exit status 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Each adds its subcommand, whose callback does the work.
void add_train(CLI::App& app);
void add_generate(CLI::App& app);
void add_classify(CLI::App& app);
void add_eval(CLI::App& app);
void add_embed(CLI::App& app);
void add_fill(CLI::App& app);
void add_convert(CLI::App& app);
void add_prune(CLI::App& app);
void add_see(CLI::App& app);
void add_heads(CLI::App& app);
void add_bench(CLI::App& app);
void add_tokenizer(CLI::App& app);
void add_info(CLI::App& app);
void add_completion(CLI::App& app);
void add_man(CLI::App& app);
void add_help(CLI::App& app);

/// "--embed-dim" for the field "embed_dim".
std::string flag_of(std::string field);

/// An option of a model's configuration: --embed-dim 128 and so on, one for each field.
struct ConfigOptions {
  std::string family, file;
  std::vector<std::pair<std::string, std::string>> fields;
  void add(CLI::App& command);
  /// Family, then file, then fields.
  attn::models::Config build(const std::string& default_family) const;
};

void add_precision(CLI::App& command, std::string& name, const std::string& description = "of the arithmetic");
attn::nn::Precision precision_named(const std::string& name);

/// How float32 enters products and attention of this process, by name: an option of all subcommands.
void add_float32_precision(CLI::App& app, std::string& name);
void set_float32_precision(const std::string& name);
std::string float32_precision();

/// A model directory and which checkpoint of it.
struct ModelOptions {
  std::string directory, which = "best", precision = "float32";
  void add(CLI::App& command);
  /// Says on standard error what was passed over.
  attn::models::Loaded load() const;
};

/// True for a model that continues texts.
bool writes(const attn::models::Config& config);
/// What attn does with a model, as a sentence ends: "it fills gaps: attn fill, attn embed".
std::string what_fits(const attn::models::Config& config);

/// How many tokens of a text a model is shown: --context, or 0 for as many as in training.
struct ContextOption {
  int64_t tokens = 0;
  void add(CLI::App& command);
  /// Throws UsageError for more than there are learned positions.
  int64_t of(const attn::models::Config& config) const;
  /// How a message of a text that is too long ends: "" where no larger --context is possible.
  static std::string larger(const attn::models::Config& config);
  /// What an error says of a longer text: its tokens, the limit, and the ways out.
  std::string too_long(int64_t count, const attn::models::Config& config) const;
};

/// How text becomes one token after another on standard output.
struct GenerationOptions {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;  ///< absent: as the model's folder says
  std::optional<int64_t> top_k, tokens, min_new_tokens, no_repeat_ngram_size, beams;
  std::optional<double> length_penalty;
  std::optional<std::string> do_sample, early_stopping;
  int64_t context = 0;
  uint64_t seed = 0;
  bool no_cache = false;
  std::vector<std::string> stop;
  void add(CLI::App& command);
  attn::generate::GenerateOptions for_model(const attn::models::Loaded& loaded) const;
  /// What a text was made of.
  struct Streamed {
    std::vector<int64_t> prompt, text;  ///< what an encoder read; prompt and continuation, or the answer with its start
  };
  /// Streams a continuation of `prompt`. Ends early at a stop text or a signal. The text is what a recorder, if one is
  /// given, has seen, and perhaps one token more.
  Streamed stream(const attn::models::Loaded& loaded, const std::string& prompt, bool with_statistics,
                  attn::view::Recorder* recorder = nullptr) const;
  /// Reads prompts line by line and answers each.
  void converse(const attn::models::Loaded& loaded) const;
};

/// Of each token what the pictures call it.
std::vector<std::string> token_labels(const attn::text::Tokenizer& tokenizer, const std::vector<int64_t>& ids);

/// From now on SIGINT, SIGTERM, SIGHUP and a closed pipe set signal_seen(), and the program ends with 128 + its number.
/// The second signal ends it at once. What was ignored when the program began, as nohup does, stays ignored.
void catch_signals();
/// The signal's number, or 0.
int signal_seen();

/// A text from outside as a terminal may have it: control characters but those of `kept`, and bytes that are no UTF-8,
/// as
/// "\x1b".
std::string printable(std::string_view text, std::string_view kept = "");

/// A text from outside as standard output may have it: where that is a terminal printable(), with line breaks and tabs.
std::string for_output(const std::string& text);

/// To standard output, at once, for_output(); throws std::system_error if it cannot be written.
void show(const std::string& text);

/// What a message takes of a value: of a text what is printable.
template <class Value>
auto as_said(const Value& value) {
  if constexpr (std::is_convertible_v<const Value&, std::string_view>) return printable(value);
  else return value;
}

/// To standard error, texts as printable(); it does not matter if nobody reads it.
template <class... Values>
void say(fmt::format_string<Values...> format, Values&&... values) {
  const auto print = [&](const auto&... each) {
    std::fputs(fmt::vformat(fmt::string_view(format), fmt::make_format_args(each...)).c_str(), stderr);
  };
  print(as_said(values)...);
}

/// The lines of a file, a pipe, a terminal or "-", as they come, each as an attn::LineCutter has it.
class Lines {
 public:
  explicit Lines(const std::string& path);
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  ~Lines();
  /// The next line without its break; false at the end and after a signal. Throws Error for a line that is not UTF-8.
  bool next(std::string& line);
  /// True if next() would answer without waiting.
  bool ready();
  /// Of the line given last, as errors name it: "lines.txt, line 3".
  std::string where() const { return cutter_.where(); }
  int64_t number() const { return cutter_.number(); }

 private:
  /// Reads the available input, and waits for input if `wait` is set. Returns false if there was none.
  bool read_more(bool wait);
  std::string path_;
  attn::LineCutter cutter_;
  int file_;
};

/// "1,234,567"
std::string grouped(int64_t number);
/// "12.3M"
std::string short_number(double number);
/// "1:02:03"
std::string clock_time(double seconds);

/// Multiply-adds a second, counted as two, that the quickest unit of the active instruction set allows for products of
/// this type, in the precision that --float32-precision chose, on all threads.
double measured_peak(attn::DType dtype);

}  // namespace cli
