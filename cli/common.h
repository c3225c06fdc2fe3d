// What the subcommands share: how one is registered, models from a directory, text on the terminal, signals.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "attn/models.h"
#include "attn/train.h"

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
void add_see(CLI::App& app);
void add_bench(CLI::App& app);
void add_info(CLI::App& app);

/// The exit status that a subcommand ends with if it is not 0: 130 or 143 after a signal.
void set_exit_status(int status);

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

constexpr const char* kPrecisions = "float32, bfloat16 or float16";
/// --precision
attn::nn::Precision precision_named(const std::string& name);

/// A model directory and which checkpoint of it.
struct ModelOptions {
  std::string directory, which = "best", precision = "float32";
  void add(CLI::App& command);
  /// Says on standard error what was passed over.
  attn::models::Loaded load() const;
};

/// How text becomes one token after another on standard output.
struct GenerationOptions {
  double temperature = 0.8, top_p = 1, min_p = 0, repetition_penalty = 1;
  int64_t top_k = 0, tokens = 256;
  uint64_t seed = 0;
  bool no_cache = false;
  std::vector<std::string> stop;
  void add(CLI::App& command);
  /// Streams a continuation of `prompt`; returns tokens and seconds. Ends early at a stop text or a signal.
  void stream(const attn::models::Loaded& loaded, const std::string& prompt, bool with_statistics) const;
  /// Reads prompts line by line and answers each.
  void converse(const attn::models::Loaded& loaded) const;
};

/// From now on SIGINT, SIGTERM and SIGHUP set signal_seen(); the second one ends the program at once.
void catch_signals();
/// The signal's number, or 0.
int signal_seen();

/// "1,234,567"
std::string grouped(int64_t number);
/// "12.3M"
std::string short_number(double number);
/// "1:02:03"
std::string clock_time(double seconds);

/// Multiply-adds a second, counted as two, that large products of this type reach on all threads: the best of several
/// shapes, many times each.
double measured_peak(attn::DType dtype);

}  // namespace cli
