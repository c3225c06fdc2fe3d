// The subcommands of attn, and the error of a command line that none of them accepts.
#pragma once

#include <stdexcept>

namespace CLI {
class App;
}

namespace cli {

/// The command line is wrong: the program ends with status 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// An error whose message has been written: the program only ends, with this status.
struct AlreadySaid {
  int status = 1;
};

// Each function adds one subcommand to the program. The subcommand's callback does the work.
void add_train(CLI::App& app);
void add_generate(CLI::App& app);
void add_chat(CLI::App& app);
void add_classify(CLI::App& app);
void add_eval(CLI::App& app);
void add_embed(CLI::App& app);
void add_fill(CLI::App& app);
void add_convert(CLI::App& app);
void add_export(CLI::App& app);
void add_quantize(CLI::App& app);
void add_lora(CLI::App& app);
void add_prune(CLI::App& app);
void add_see(CLI::App& app);
void add_heads(CLI::App& app);
void add_serve(CLI::App& app);
void add_bench(CLI::App& app);
void add_profile(CLI::App& app);
void add_sweep(CLI::App& app);
void add_tokenizer(CLI::App& app);
void add_info(CLI::App& app);
void add_completion(CLI::App& app);
void add_man(CLI::App& app);
void add_help(CLI::App& app);

}  // namespace cli
