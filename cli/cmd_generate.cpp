// attn generate: what a trained model makes of the beginning of a text.
#include <memory>

#include "common.h"

namespace cli {
namespace {

struct Generate {
  ModelOptions model;
  GenerationOptions generation;
  std::string prompt, file;
  bool interactive = false, statistics = false;

  void run() const {
    const attn::models::Loaded loaded = model.load();
    if (loaded.model->config().classes) throw UsageError(model.directory + " is a classifier: attn classify");
    std::string text = file.empty() ? prompt : attn::io::read_input(file);
    catch_signals();
    if (interactive) return generation.converse(loaded);
    if (text.empty() && loaded.model->config().encoder_layers)
      throw UsageError(model.directory + " answers texts: give one with --prompt, --file or --interactive");
    if (text.empty()) text = loaded.tokenizer->decode(std::vector<int64_t>{0});
    generation.stream(loaded, text, statistics);
  }
};

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "continue a text, or answer one");
  command->footer(
      "What is not given is as generation_config.json in the model's folder says, else the default. Models with an\n"
      "encoder answer with the most probable tokens, unless the file or --temperature says otherwise.\n\n"
      "Example:\n  attn generate model --prompt \"ROMEO:\" --temperature 0.8");
  auto run = std::make_shared<Generate>();
  run->model.add(*command);
  CLI::Option* prompt =
      command->add_option("--prompt", run->prompt, "the beginning, or what is answered; none: the first token");
  CLI::Option* file = command->add_option("--file", run->file, "a file with the beginning; - is standard input");
  file->type_name("FILE")->excludes(prompt);
  command->add_flag("--interactive", run->interactive, "read beginnings line by line")
      ->excludes(prompt)
      ->excludes(file);
  command->add_flag("--stats", run->statistics, "print tokens a second");
  run->generation.add(*command);
  command->callback([=] { run->run(); });
}

}  // namespace cli
